"""Probes and canaries on the real engine: scripted models, whose acceptance and speed are known, and the nano pair."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftd.canaries.prompts import FrozenPrompts
from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName, FallbackLevel, LadderLevel
from draftd.engine.limits import Limits
from draftd.engine.loop import EngineWorker
from draftd.engine.pair import LoadedModels, load_models
from draftd.engine.step import StepResult
from draftd.engine.targets.local import LocalTarget
from draftd.fallback.ladder import ladder_levels
from draftd.fallback.loaded_drafters import LoadedDrafters
from draftd.fallback.probe_runner import ProbeRunner
from draftd.fallback.probes import ProbeVerdict
from draftd.settings import FallbackSettings
from tests import rig
from tests.conftest import NanoPair
from tests.fake_engine import Told
from tests.scripted import scripted_models
from tests.unit.engine.drafts import change_weights
from tests.unit.fallback.probing import at, checked
from tests.wait_until import loaded, until

LADDER = ladder_levels(4, (2,), DRAFT_MODEL, (LIGHT_DRAFT_MODEL, PROMPT_LOOKUP))
FULL, SHORT, LIGHT, LOOKUP, PLAIN = LADDER
SECONDS = 120.0
SHIPPED = FrozenPrompts.of_package()


def few(tokens: int = 24) -> FrozenPrompts:
    """A few prompts: a scripted text never ends by itself, and has no expected answer."""
    some = tuple(prompt.model_copy(update={"max_tokens": tokens}) for prompt in SHIPPED.probe[::4])
    return FrozenPrompts(some, tuple(checked(prompt, "") for prompt in some))


class Bench:
    """An engine, its loaded drafters, and a probe runner on it."""

    def __init__(
        self, models: Callable[[], LoadedModels], prompts: FrozenPrompts, level: LadderLevel, capacity: int
    ) -> None:
        self.engine = EngineWorker(lambda progress: models(), limits=Limits(queue_capacity=capacity, max_batch=2))
        self.engine.start()
        loaded(self.engine, SECONDS)
        self.drafters = LoadedDrafters(self.engine)
        self.drafters.hold(level)
        self.told = Told()
        self.runner = ProbeRunner(
            self.engine,
            self.drafters.borrow,
            FallbackSettings(),
            self.told,
            ladder=at(level, LADDER),
            prompts=prompts,
        )

    def holds(self, *drafters: DrafterName) -> None:
        until(lambda: self.engine.status().loaded == frozenset(drafters), what=f"{drafters} and no more in memory")


@contextmanager
def bench(
    models: Callable[[], LoadedModels], prompts: FrozenPrompts, level: LadderLevel = FULL, capacity: int = 8
) -> Iterator[Bench]:
    new_bench = Bench(models, prompts, level, capacity)
    try:
        yield new_bench
    finally:
        assert new_bench.runner.close(SECONDS)
        assert new_bench.engine.close()


def scripted(acceptance: float, **more: Any) -> Callable[[], LoadedModels]:
    return lambda: scripted_models(acceptance, **{"step_seconds": 0.01, **more})


def test_probe_of_accurate_draft_is_good_and_of_inaccurate_draft_is_bad() -> None:
    with bench(scripted(0.95), few()) as right:
        report = right.runner.probe(FULL).result(SECONDS)
    assert report.verdict is ProbeVerdict.GOOD, report
    assert report.acceptance is not None
    assert report.speedup is not None
    assert report.acceptance > 0.8
    assert report.speedup > 1.5
    assert report.seconds > 0
    with bench(scripted(0.1), few()) as wrong:
        report = wrong.runner.probe(FULL).result(SECONDS)
    assert report.verdict is ProbeVerdict.BAD, report
    assert "floor 0.40" in report.reason


def test_probe_of_accurate_but_slow_draft_is_bad() -> None:
    with bench(scripted(0.95, draft_step_seconds=0.05), few(16)) as slow:
        report = slow.runner.probe(FULL).result(SECONDS)
    assert report.verdict is ProbeVerdict.BAD, report
    assert "speed-up 0." in report.reason


def test_probe_of_light_draft_loads_its_weights_and_releases_them_afterwards() -> None:
    with bench(scripted(0.1, light_acceptance=0.95), few(), PLAIN) as engine_bench:
        engine_bench.holds()
        report = engine_bench.runner.probe(LIGHT).result(SECONDS)
        assert report.verdict is ProbeVerdict.GOOD, report
        engine_bench.holds()
        assert engine_bench.engine.status().draft_weight_bytes == 0


def test_probes_and_canaries_are_left_out_of_engine_token_and_request_counts() -> None:
    with bench(scripted(0.95), few(8)) as engine_bench:
        engine_bench.runner.probe(FULL).result(SECONDS)
        engine_bench.runner.canaries().result(SECONDS)
        status = engine_bench.engine.status()
    assert status.counts.emitted == 0
    assert not any(status.finished.values())


def test_probe_stops_as_failed_while_client_requests_wait_for_a_batch_slot() -> None:
    with bench(scripted(0.95, step_seconds=0.05), few(), capacity=16) as engine_bench:
        prompt = engine_bench.engine.tokenizer.encode("a caller's text")
        callers = [rig.request(prompt, rig.autoregressive(), max_tokens=2000) for _ in range(6)]
        for caller in callers:
            engine_bench.engine.submit(caller, rig.Collected())
        until(lambda: engine_bench.engine.status().active == 2, what="a full batch")
        report = engine_bench.runner.probe(FULL).result(SECONDS)
        assert report.verdict is ProbeVerdict.FAILED
        assert "it gave way to 4 waiting requests" in report.reason
        for caller in callers:
            engine_bench.engine.cancel(caller.id)


def test_probe_on_a_closed_engine_reports_failed() -> None:
    with bench(scripted(0.95), few()) as engine_bench:
        assert engine_bench.engine.close()
        report = engine_bench.runner.probe(FULL).result(SECONDS)
    assert report.verdict is ProbeVerdict.FAILED
    assert "was refused: " in report.reason


def test_probe_running_at_close_is_ended_and_its_kv_cache_freed() -> None:
    with bench(scripted(0.95, step_seconds=0.05), few(200)) as engine_bench:
        future = engine_bench.runner.probe(FULL)
        until(lambda: engine_bench.engine.status().kv_cache_bytes > 0, what="a probe under way")
        assert engine_bench.runner.close(SECONDS)
        assert future.result(0).reason == "the daemon is stopping"
        until(lambda: engine_bench.engine.status().kv_cache_bytes == 0, what="its request's end")


def spoil(monkeypatch: pytest.MonkeyPatch, emitted: int) -> list[int]:
    """Makes the target emit another token, once in each text, after at least so many tokens; the list collects the
    places."""
    real = LocalTarget.results
    spoilt: set[int] = set()
    places: list[int] = []

    def results(self: LocalTarget) -> Iterator[StepResult]:
        for result in real(self):
            entries = list(result.entries)
            for i, entry in enumerate(entries):
                sequence, accepted, following, *_ = entry
                target_sequence = self._sequences[sequence]
                place = len(target_sequence.ids) - 1 - target_sequence.options.prompt
                if result.width > 1 and place - len(accepted) >= emitted and sequence not in spoilt:
                    assert following is not None
                    spoilt.add(sequence)
                    places.append(place)
                    target_sequence.ids[-1] = (following + 1) % 200
                    entries[i] = entry._replace(following=target_sequence.ids[-1])
            yield replace(result, entries=entries)

    monkeypatch.setattr(LocalTarget, "results", results)
    return places


def test_canaries_and_probe_find_the_token_where_speculative_text_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(scripted(0.9), few()) as engine_bench:
        places = spoil(monkeypatch, emitted=6)
        report = engine_bench.runner.canaries().result(SECONDS)
        probed = engine_bench.runner.probe(FULL).result(SECONDS)
    assert report.verdict is ProbeVerdict.BAD
    assert report.divergences == len(report.outcomes) == 4
    divergences = [outcome.divergence for outcome in report.outcomes if outcome.divergence is not None]
    assert [divergence.at for divergence in divergences] == places[:4]
    assert [divergence.logit_gap for divergence in divergences] == pytest.approx(
        [12.0] * 4
    )  # how sure a scripted model is
    assert engine_bench.told.runs == [(FallbackLevel.FULL, "bad", 4)]
    assert probed.verdict is ProbeVerdict.BAD
    assert f"{SHIPPED.probe[0].id} leaves the autoregressive text at token {places[4]}" in probed.reason


@pytest.mark.slow
def test_embedded_model_pair_passes_its_canaries_with_identical_texts_in_both_modes(nano_pair: NanoPair) -> None:
    some = FrozenPrompts(SHIPPED.probe[:2], SHIPPED.canaries[::8])
    with bench(lambda: load_models(nano_pair.target, nano_pair.draft), some) as engine_bench:
        report = engine_bench.runner.canaries().result(SECONDS)
        assert report.verdict is ProbeVerdict.GOOD, report
        assert report.divergences == 0
        assert len(report.outcomes) == 3
        assert report.score_speculative == report.score_autoregressive >= 0.9
        complaints = {outcome.id: outcome.complaint for outcome in report.outcomes if outcome.complaint}
        assert all(complaints.values())
        probed = engine_bench.runner.probe(FULL).result(SECONDS)
    # Its gain in speed depends on this machine.
    assert probed.acceptance is not None
    assert probed.acceptance > 0.6
    assert "leaves the autoregressive text" not in probed.reason


@pytest.mark.slow
def test_damaged_draft_fails_its_probe_passes_canaries_and_recovers_after_reload(
    nano_pair: NanoPair, tmp_path: Path
) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(nano_pair.draft, draft)
    change_weights(draft, lambda name, array: array[..., ::-1])  # the same shapes and sizes, and next to no sense
    some = FrozenPrompts(SHIPPED.probe[::5], SHIPPED.canaries[:1])
    with bench(lambda: load_models(nano_pair.draft, str(draft)), some) as engine_bench:
        bad = engine_bench.runner.probe(FULL).result(SECONDS)
        assert (bad.verdict, "leaves the" in bad.reason) == (ProbeVerdict.BAD, False), bad
        assert engine_bench.runner.canaries().result(SECONDS).verdict is ProbeVerdict.GOOD
        shutil.copyfile(Path(nano_pair.draft) / "model.safetensors", draft / "mended")
        (draft / "mended").replace(draft / "model.safetensors")
        engine_bench.engine.reload_draft().result(SECONDS)
        mended = engine_bench.runner.probe(FULL).result(SECONDS)
    assert bad.acceptance is not None
    assert mended.acceptance is not None
    assert bad.acceptance < 0.3
    assert mended.acceptance > 0.6
