"""A soak's results from its ticks and samples, how it resumes, and when it gives up."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from draftd.client.client import DraftdClient
from draftd.client.timing import TimedChunk
from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, FallbackLevel, FinishReason
from draftd.counts import DraftCounts
from draftd.fallback.ladder import Cause, Signal
from draftd.v1 import inference_pb2 as pb
from draftd_acceptance import session as session_module
from draftd_acceptance import soak as module
from draftd_acceptance import soak as soak_run
from draftd_acceptance.folder import RunError, RunFolder
from draftd_acceptance.options import OptionError, SoakOptions
from draftd_acceptance.session import Advance, MeasurementStopped, Session
from draftd_acceptance.soak import SoakResult, run_soak, soak_complete, soak_result, soaked_seconds
from draftd_acceptance.ticks import MachineSample, RunPlace, Stage, Tick
from tests.in_process_daemon import Served, serving
from tests.scripted import scripted_models
from tests.synthetic_run import GIB, manifest, synthetic_run

MODEL = pb.GetModelResponse(drafters=[DRAFT_MODEL], max_draft_tokens=6, context_length=1024)


def judged(folder: RunFolder) -> SoakResult:
    found = soak_result(folder)
    assert found is not None
    return found


def soaked(tmp_path: Path, **knobs: Any) -> SoakResult:
    return judged(synthetic_run(tmp_path / "run", stages=[Stage.SOAK], **knobs))


def tick(elapsed: float, ended: float = 1.0, *, session: int = 1, counts: DraftCounts | None = None) -> Tick:
    """A tick of ten tokens: one at a tenth of its time, and nine at the end."""
    return Tick(
        RunPlace(Stage.SOAK, session, "k4", 1, "p", "g"),
        elapsed,
        0.0,
        ended,
        (TimedChunk(ended / 10, 1, 0), TimedChunk(ended, 9, 5)),
        output_tokens=10,
        finish_reason=FinishReason.LENGTH,
        counts=counts or DraftCounts(steps=40, drafts=30, drafted=120, accepted=60, rollbacks=20),
    )


def written(tmp_path: Path, ticks: Sequence[Tick], samples: Sequence[MachineSample] = (), **plan: Any) -> RunFolder:
    folder = RunFolder.create(tmp_path / "run")
    folder.freeze_plan(Stage.SOAK, plan)
    for one in ticks:
        folder.keep_tick(one)
    for sample in samples:
        folder.keep_sample(sample)
    return folder


def sample(elapsed: float, *, session: int = 1, **known: Any) -> MachineSample:
    return MachineSample(Stage.SOAK, session, "k4", elapsed, elapsed, **known)


class TestResult:
    def test_soak_of_daemon_with_constant_memory_has_no_complaints(self, tmp_path: Path) -> None:
        result = soaked(tmp_path)
        assert result.complaints == ()
        assert result.complete
        assert result.days_to_exhaustion == math.inf
        assert (result.swap_in, result.longest_critical, result.throttles, result.errors) == (0, 0, 0, 0)
        assert result.floor == 10 * GIB
        assert len(result.windows) == 10
        assert result.sustained_acceptance() == pytest.approx(0.73, abs=0.05)

    def test_soak_of_leaking_daemon_complains_of_unbounded_memory_growth(self, tmp_path: Path) -> None:
        result = soaked(tmp_path, leak=200_000)
        assert result.resident is not None
        assert result.resident.slope.low < 200_000 < result.resident.slope.high
        assert result.days_to_exhaustion == pytest.approx(3 * GIB / 200_000 / 86_400, rel=0.2)
        (said,) = result.complaints
        assert said.startswith("memory grows without bound: the daemon's resident set by ")
        assert "hours" in said

    def test_soak_accepts_slow_leak_when_free_memory_lasts_more_than_week(self, tmp_path: Path) -> None:
        result = soaked(tmp_path, leak=200_000, headroom=400 * GIB)
        assert result.days_to_exhaustion is not None
        assert 7 < result.days_to_exhaustion < math.inf
        assert result.complaints == ()

    def test_soak_days_to_exhaustion_use_free_memory_at_end_of_soak(self, tmp_path: Path) -> None:
        ticks = [tick(at) for at in range(200)]
        grows = [sample(at, resident=GIB + at * 10**6, headroom=(300 - at) * 10**6) for at in range(200)]
        result = judged(written(tmp_path, ticks, grows))
        assert result.days_to_exhaustion is not None
        assert result.days_to_exhaustion * 86_400 == pytest.approx(101, rel=0.02)
        assert result.least_headroom == 101 * 10**6

    def test_soak_complains_of_unbounded_growth_of_mlx_memory_alone(self, tmp_path: Path) -> None:
        ticks = [tick(at) for at in range(400)]
        grows = [
            sample(at, resident=GIB, mlx_active=GIB + at * 500_000, mlx_cache=5, headroom=GIB) for at in range(400)
        ]
        result = judged(written(tmp_path, ticks, grows))
        assert result.resident is not None
        assert result.resident.certain == 0
        assert result.grows_without_bound
        assert "MLX's memory" in result.complaints[0]

    def test_soak_figures_are_none_without_machine_readings(self, tmp_path: Path) -> None:
        result = judged(written(tmp_path, [tick(at) for at in range(60)], [sample(at) for at in range(60)]))
        assert (result.peak_resident, result.resident, result.mlx, result.days_to_exhaustion) == (None,) * 4
        assert (result.least_headroom, result.floor) == (None, None)
        assert (result.swap_in, result.longest_critical, result.throttles) == (None,) * 3
        assert result.too_few_samples == ""

    @pytest.mark.parametrize(
        ("count", "every", "told"),
        [
            (45, 1.0, "34 in 33 s after the warm-up, at least 60 in 60 s"),
            (440, 0.1, "330 in 32 s after the warm-up, at least 60 in 60 s"),  # often, but not for long
            (20, 10.0, "15 in 140 s after the warm-up, at least 60 in 60 s"),  # for long, but seldom
            (2, 1.0, "1 in 0 s after the warm-up, at least 60 in 60 s"),
            (81, 1.0, ""),
        ],
    )
    def test_soak_does_not_extrapolate_memory_growth_from_too_few_samples(
        self, tmp_path: Path, count: int, every: float, told: str
    ) -> None:
        leaking = [
            sample(at * every, resident=GIB + at * 10**7, mlx_active=GIB, mlx_cache=at, headroom=GIB)
            for at in range(count)
        ]
        result = judged(written(tmp_path, [tick(0, count * every)], leaking))
        assert result.too_few_samples == told
        assert (result.resident is None, result.mlx is None, result.days_to_exhaustion is None) == (bool(told),) * 3
        assert result.grows_without_bound is not bool(told)
        assert (result.complaints == ()) is bool(told)

    def test_soak_sums_counter_increases_across_daemon_restart_and_counter_reset(self, tmp_path: Path) -> None:
        first = [sample(at, swap_in=1000 + at, throttles=3 + (at > 5)) for at in range(10)]
        second = [sample(at, session=2, swap_in=(0, 50, 10, 30)[at], throttles=0) for at in range(4)]
        ticks = [tick(0, 10), tick(0, 4, session=2)]
        result = judged(written(tmp_path, ticks, [*first, *second]))
        assert result.swap_in == 9 + 50 + 10 + 20
        assert result.throttles == 1

    def test_soak_longest_critical_memory_pressure_is_longest_continuous_span(self, tmp_path: Path) -> None:
        # Critical for 4 s and then for 7 s; the daemon reads every other second.
        counted = [0, 0, 2, 2, 4, 4, 4, 4, 6, 6, 8, 8, 10, 11, 11, 11]
        kinds = ["normal", "critical", "critical", "critical", "critical", "normal", "normal"]
        kinds += ["critical"] * 7 + ["normal"] * 2
        samples = [
            sample(at, pressure=kind, critical_seconds=spent)
            for at, (kind, spent) in enumerate(zip(kinds, counted, strict=True))
        ]
        assert judged(written(tmp_path, [tick(0, 16)], samples)).longest_critical == 7

    def test_soak_counts_request_errors_and_shows_example(self, tmp_path: Path) -> None:
        result = soaked(tmp_path, soak_errors=3)
        assert result.errors == 3
        assert result.error_examples == ("INTERNAL: decoding failed (3 times)",)
        assert "3 of " in result.complaints[0]

    def test_soak_duration_sums_session_times_and_excludes_time_between_sessions(self, tmp_path: Path) -> None:
        folder = written(tmp_path, [tick(100), tick(104, 6), tick(7, 5, session=2)], duration=20.0)
        assert soaked_seconds(folder) == 10 + 5
        assert judged(folder).sessions == 2
        assert not judged(folder).complete
        assert not soak_complete(folder)
        folder.keep_tick(tick(12, 5, session=2))
        assert soak_complete(folder)

    def test_run_folder_without_soak_has_no_soak_result(self, tmp_path: Path) -> None:
        folder = RunFolder.create(tmp_path / "run")
        assert soak_result(folder) is None
        assert not soak_complete(folder)


class TestWindows:
    def test_soak_windows_count_requests_at_end_time_and_tokens_at_arrival_time(self, tmp_path: Path) -> None:
        ticks = [tick(0, 8), tick(8, 4), tick(9, 10), tick(19, 1)]
        first, second = judged(written(tmp_path, ticks, window_seconds=10)).windows
        assert (first.start, first.seconds, first.requests, first.drafts) == (0, 10, 1, 30)
        assert (second.start, second.seconds, second.requests, second.drafts) == (10, 10, 3, 90)
        # The request that crosses the edge had its first token before it.
        assert first.tokens_per_second == pytest.approx((10 + 1) / 10)
        assert second.tokens_per_second == pytest.approx((9 + 10 + 10) / 10, abs=0.11)
        assert first.inter_token_p50 == pytest.approx(7.2 / 9)
        assert second.acceptance == 0.5
        assert second.alpha == 60 / 80
        assert (first.enough, second.enough) == (False, True)

    def test_soak_merges_short_last_window_into_previous_window(self, tmp_path: Path) -> None:
        folder = written(tmp_path, [tick(at) for at in range(24)], window_seconds=10)
        assert [window.seconds for window in judged(folder).windows] == [10, 14]
        longer = written(tmp_path / "b", [tick(at) for at in range(26)], window_seconds=10)
        assert [window.seconds for window in judged(longer).windows] == [10, 10, 6]

    def test_soak_window_does_not_span_two_sessions(self, tmp_path: Path) -> None:
        ticks = [tick(at) for at in range(10)] + [tick(at, session=2) for at in range(50, 60)]
        found = judged(written(tmp_path, ticks, window_seconds=10)).windows
        assert [(window.session, window.start, window.requests) for window in found] == [(1, 0, 10), (2, 10, 10)]

    def test_soak_windows_together_count_every_request_and_token(self, tmp_path: Path) -> None:
        result = soaked(tmp_path, soak_seconds=200.0)
        assert sum(window.requests for window in result.windows) == result.requests
        tokens = sum((window.tokens_per_second or 0) * window.seconds for window in result.windows)
        assert tokens == pytest.approx(result.output_tokens)

    @pytest.mark.parametrize(
        ("alphas", "held"),
        [((0.9, 0.2, 0.9, 0.2, 0.9), True), ((0.9, 0.2, 0.2, 0.9), False), ((0.9,), True)],
        ids=["never two on end", "two on end", "never"],
    )
    def test_soak_sustained_acceptance_falls_only_after_two_consecutive_low_windows(
        self, tmp_path: Path, alphas: tuple[float, ...], held: bool
    ) -> None:
        share = soaked(tmp_path, soak_alpha=alphas, soak_seconds=300.0).sustained_acceptance()
        assert share is not None
        assert (share >= 0.4) is held

    def test_soak_with_single_window_has_no_sustained_acceptance(self, tmp_path: Path) -> None:
        assert soaked(tmp_path, soak_seconds=60.0).sustained_acceptance() is None


class TestOptions:
    @pytest.mark.parametrize(
        ("wrong", "named"),
        [
            ({"duration": 0.5}, "duration: got 0.5; allowed: greater than or equal to 1"),
            ({"duration": math.inf}, "duration: got inf"),
            ({"window_seconds": 0.0}, "window_seconds: got 0.0"),
            ({"sample_seconds": 0.0}, "sample_seconds: got 0.0"),
            ({"streams": 0}, "streams: got 0; allowed: greater than or equal to 1"),
            ({"block_length": 65}, "block_length: got 65"),
            ({"max_tokens": 7}, "max_tokens: got 7"),
            ({"seed": -1}, "seed: got -1"),
        ],
    )
    def test_soak_options_out_of_bounds_are_refused_with_option_name(self, wrong: dict[str, Any], named: str) -> None:
        with pytest.raises(OptionError, match=named):
            SoakOptions.resume(None, **wrong)

    def test_soak_options_default_to_limits_of_daemon(self) -> None:
        settled = SoakOptions().settle(MODEL, 2)
        assert (settled.streams, settled.block_length, settled.max_tokens) == (2, 6, 256)
        assert settled.arm.id == "k6-x2"
        assert settled.lengths == (32, 64, 128, 256)
        assert SoakOptions().settle(MODEL, None).streams == 4
        assert SoakOptions(block_length=0).settle(MODEL, None).arm.id == "ar-x4"
        assert SoakOptions().settle(pb.GetModelResponse(context_length=100), None).arm.id == "ar-x4"

    def test_soak_options_exceeding_daemon_limits_are_refused_with_option_name(self) -> None:
        with pytest.raises(
            OptionError, match="block_length: got 7; allowed: at most 6, which is the most that this daemon drafts"
        ):
            SoakOptions(block_length=7).settle(MODEL, None)
        with pytest.raises(OptionError, match="block_length: got 1; allowed: at most 0.*no draft"):
            SoakOptions(block_length=1).settle(pb.GetModelResponse(speculation_reason="no draft"), None)
        with pytest.raises(OptionError, match="drafter: got .*prompt_lookup"):
            SoakOptions(drafter=PROMPT_LOOKUP).settle(MODEL, None)

    def test_soak_options_resume_from_stored_plan_unless_overridden(self) -> None:
        chosen = SoakOptions(duration=30.0, seed=4).settle(MODEL, 8)
        assert SoakOptions.resume(chosen.plan()) == chosen
        assert SoakOptions.resume(chosen.plan(), duration=60.0) == chosen.model_copy(update={"duration": 60.0})
        with pytest.raises(OptionError, match="soak.json: duration"):
            SoakOptions.from_plan({"duration": "long"})


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    def models() -> Any:
        return scripted_models(0.7, step_seconds=0.001, context_length=16_384)

    with serving(tmp_path_factory.mktemp("daemon"), models) as served:
        yield served


def session_of(client: DraftdClient, path: Path) -> Session:
    folder = RunFolder.open(path) if (path / "run.json").exists() else RunFolder.create(path)
    return Session(client, folder, folder.begin_session(manifest(settings={"engine.max_batch": "2"})))


def silent(advance: Advance) -> None: ...


def streams() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith(("draftd-soak", "draftd-sampler"))]


class TestRun:
    OPTIONS = SoakOptions(duration=1.5, max_tokens=16, sample_seconds=0.1, block_length=3)

    def test_soak_keeps_two_streams_busy_until_duration_ends(self, daemon: Served, tmp_path: Path) -> None:
        session, said = session_of(daemon.client, tmp_path / "run"), list[Advance]()
        run_soak(session, self.OPTIONS, daemon.client.model(), said.append)
        assert soak_complete(session.folder)
        assert streams() == []
        ticks = session.folder.ticks(Stage.SOAK)
        assert {one.error for one in ticks} == {""}
        assert {one.place.arm for one in ticks} == {"k3-x2"}
        assert {one.granted.max_draft_tokens for one in ticks if one.granted is not None} == {3}
        # Never more than two at a time, and mostly two.
        spans = sorted((one.elapsed, one.elapsed + one.ended) for one in ticks)
        edges = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
        assert max(itertools.accumulate(step for _, step in edges)) == 2
        asked = sum(ended - began for began, ended in spans)
        assert asked > 1.5 * soaked_seconds(session.folder)
        assert len({one.place.group for one in ticks}) >= 3 or len(ticks) < 12
        assert session.folder.samples(Stage.SOAK)
        assert (said[0].total, said[0].done < 1) == (1.5, True)

    def test_resumed_soak_counts_time_of_earlier_sessions_and_stops_when_complete(
        self, daemon: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "run"

        def impatient(advance: Advance) -> None:
            if advance.done >= 0.4:
                raise KeyboardInterrupt

        monkeypatch.setattr(soak_run, "_LOOK_SECONDS", 0.1)
        with pytest.raises(KeyboardInterrupt):
            run_soak(session_of(daemon.client, path), self.OPTIONS, daemon.client.model(), impatient)
        assert streams() == []
        folder = RunFolder.open(path)
        first = soaked_seconds(folder)
        assert 0.3 < first < 1.5 or soak_complete(folder)
        said = list[Advance]()
        run_soak(session_of(daemon.client, path), self.OPTIONS, daemon.client.model(), said.append)
        assert soak_complete(folder)
        assert said == [] or said[0].done >= first
        kept = (path / "soak.jsonl").read_bytes()
        run_soak(session_of(daemon.client, path), self.OPTIONS, daemon.client.model(), silent)
        assert (path / "soak.jsonl").read_bytes() == kept
        with pytest.raises(RunError, match="soak: block_length: got 2; allowed: 3, as this run began with"):
            run_soak(
                session_of(daemon.client, path),
                self.OPTIONS.model_copy(update={"block_length": 2}),
                daemon.client.model(),
                silent,
            )

    def test_interrupted_soak_ends_its_streams_and_remains_incomplete(
        self, daemon: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def impatient(advance: Advance) -> None:
            if advance.done >= 0.3:
                raise KeyboardInterrupt

        monkeypatch.setattr(soak_run, "_LOOK_SECONDS", 0.1)
        monkeypatch.setattr(session_module, "STOP_SECONDS", 5.0)
        session = session_of(daemon.client, tmp_path / "run")
        with pytest.raises(KeyboardInterrupt):
            run_soak(session, self.OPTIONS.model_copy(update={"duration": 600.0}), daemon.client.model(), impatient)
        assert streams() == []
        assert 0 < soaked_seconds(session.folder) < 60
        assert not soak_complete(session.folder)

    def test_soak_counts_answer_at_reduced_draft_length_as_error(self, daemon: Served, tmp_path: Path) -> None:
        session = session_of(daemon.client, tmp_path / "run")
        model = daemon.client.model()
        daemon.ladder.move(1, Signal(Cause.MEMORY, FallbackLevel.SHORT_BLOCK))
        try:
            run_soak(
                session,
                self.OPTIONS.model_copy(update={"block_length": model.max_draft_tokens, "duration": 1.0}),
                model,
                silent,
            )
        finally:
            daemon.ladder.position = 0
        result = judged(session.folder)
        assert result.errors == result.requests
        assert f"asked for {model.max_draft_tokens}, the daemon allowed" in result.error_examples[0]

    def test_soak_gives_up_when_daemon_is_unreachable(
        self, daemon: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.3)
        model = daemon.client.model()
        with DraftdClient("127.0.0.1:1") as away:
            session = session_of(away, tmp_path / "run")
            began = time.monotonic()
            with pytest.raises(MeasurementStopped, match="nothing was answered for .* UNAVAILABLE"):
                run_soak(session, self.OPTIONS.model_copy(update={"duration": 600.0}), model, silent)
        assert time.monotonic() - began < 30
        assert streams() == []
        result = judged(session.folder)
        assert result.errors == result.requests > 0
        assert result.complaints[-1] == "no request was answered"
