"""A sweep of a real daemon: what is kept of it, where it stops and resumes, how it waits, and the time that is left."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftd.client.client import DraftdClient
from draftd.client.prompts import from_texts
from draftd.core import DRAFT_MODEL, DecodeMode, FallbackLevel
from draftd.fallback.ladder import Cause, Signal
from draftd_acceptance import session as module
from draftd_acceptance.folder import RunError, RunFolder
from draftd_acceptance.options import SweepOptions
from draftd_acceptance.session import MOST_ERRORS, Advance, MeasurementStopped, Session, all_at_once, ask_for
from draftd_acceptance.sweep import plan as sweep_run
from draftd_acceptance.sweep.plan import (  # type: ignore[attr-defined]
    Heat,
    Key,
    NothingToMeasure,
    SweepPlan,
    measured_keys,
    pending,
    plan_sweep,
    run_sweep,
    schedule,
    sweep_complete,
)
from draftd_acceptance.sweep.result import Sweep
from draftd_acceptance.ticks import Arm, MachineSample, Stage, Tick
from tests.in_process_daemon import Served, serving
from tests.scripted import scripted_models
from tests.synthetic_run import manifest
from tests.unit.acceptance.sweep.conftest import BEGUN
from tests.wait_until import until

SMALL = SweepOptions(
    block_lengths=(0, 2, 4),
    drafters=(DRAFT_MODEL,),
    concurrency=(3,),
    groups=("short_control",),
    repetitions=1,
    max_tokens=6,
    cool_down=0.0,
)


def silent(advance: Advance) -> None: ...


def key(tick: Tick) -> Key:
    return tick.place.arm, *tick.place.key, tick.place.repetition


def counted(folder: RunFolder) -> list[Tick]:
    return [tick for tick in folder.ticks(Stage.SWEEP) if not tick.place.warm_up]


def whole(daemon: Served, options: SweepOptions = SMALL) -> SweepPlan:
    return plan_sweep(options, daemon.client.model(), 8)


class InHand(list[str]):
    """The list of arms in progress, which notes each arm added, and an empty text for each removed."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[str] = []

    def append(self, arm: str) -> None:
        self.marks.append(arm)
        super().append(arm)

    def remove(self, arm: str) -> None:
        self.marks.append("")
        super().remove(arm)


Swept = tuple[Session, list[Advance], list[str]]


@pytest.fixture(scope="module")
def swept(daemon: Served, begin: BEGUN, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """A whole sweep: its session, its progress reports, and the arms that were in progress."""
    in_hand, said = InHand(), list[Advance]()
    session = replace(begin(tmp_path_factory.mktemp("runs") / "run"), in_hand=in_hand)
    run_sweep(session, SMALL, daemon.client.model(), said.append)
    return session, said, in_hand.marks


class TestWhole:
    def test_sweep_measures_every_prompt_in_every_arm_with_requested_decoding(
        self, daemon: Served, swept: Swept
    ) -> None:
        session, said, _ = swept
        plan = whole(daemon)
        ticks = counted(session.folder)
        assert Counter(map(key, ticks)) == Counter(k for step in schedule(plan) for k in step.keys)
        assert {tick.error for tick in ticks} == {""}
        for tick in ticks:
            arm = Arm.parse(tick.place.arm)
            assert arm is not None
            assert tick.granted is not None
            assert tick.granted.max_draft_tokens == arm.block_length
            assert tick.granted.drafter == arm.drafter
            assert (tick.granted.mode is DecodeMode.SPECULATIVE) == arm.speculative
            assert tick.output_tokens == 6
        warm = [tick for tick in session.folder.ticks(Stage.SWEEP) if tick.place.warm_up]
        assert {tick.place.arm for tick in warm} == {arm.id for arm in plan.arms}
        assert sweep_complete(session.folder)
        assert [one.done for one in said] == sorted(one.done for one in said)
        assert (said[-1].done, said[-1].total, said[-1].remaining) == (len(ticks), len(ticks), 0)
        assert [one.remaining is None for one in said] == [not one.done for one in said]

    def test_sweep_greedy_answers_agree_between_arms_and_all_answers_agree_between_runs(
        self, daemon: Served, swept: Swept, begin: BEGUN, tmp_path: Path
    ) -> None:
        again = begin(tmp_path / "run")
        run_sweep(again, SMALL, daemon.client.model(), silent)
        one, other = ({key(t): t.digest for t in counted(session.folder)} for session in (swept[0], again))
        assert one == other
        greedy: dict[str, set[str]] = {}
        for (arm, _, prompt, _), digest in one.items():
            if "-t" not in arm:
                greedy.setdefault(prompt, set()).add(digest)
        assert {len(found) for found in greedy.values()} == {1}

    def test_sweep_requests_of_concurrent_arm_overlap_in_time(self, swept: Swept) -> None:
        together = sorted((t for t in counted(swept[0].folder) if t.place.arm == "k4-x3"), key=lambda t: t.elapsed)
        assert len(together) == 6  # two groups of three; of eight prompts two are left over
        for group in (together[:3], together[3:]):
            assert max(t.elapsed for t in group) < min(t.elapsed + t.ended for t in group)

    def test_sweep_marks_machine_samples_with_arm_being_measured(self, daemon: Served, swept: Swept) -> None:
        session, _, marks = swept
        assert session.folder.samples(Stage.SWEEP)
        steps = [step.arm.id for step in schedule(whole(daemon))]
        assert marks[-2 * len(steps) :: 2] == steps
        assert set(marks[1::2]) == {""}

    def test_complete_sweep_asks_no_request_when_run_again(self, daemon: Served, swept: Swept, begin: BEGUN) -> None:
        path = swept[0].folder.path
        before = (path / "sweep.jsonl").read_bytes()
        run_sweep(begin(path), SMALL, daemon.client.model(), silent)
        assert (path / "sweep.jsonl").read_bytes() == before


class TestStopped:
    def test_interrupted_sweep_resumes_with_exactly_missing_requests(
        self, daemon: Served, begin: BEGUN, tmp_path: Path
    ) -> None:
        path, file = tmp_path / "run", tmp_path / "run" / "sweep.jsonl"
        drawn, model, plan = random.Random(0), daemon.client.model(), whole(daemon)
        stops = sorted(drawn.randrange(1, 60) for _ in range(3))
        for number, stop in enumerate(stops, 1):
            calls = iter(range(1, 10_000))

            def interrupt(advance: Advance, calls: object = calls, stop: int = stop) -> None:
                if next(calls) == stop:  # type: ignore[call-overload]
                    raise KeyboardInterrupt

            kept = file.read_bytes() if file.exists() else b""
            kept = kept[: kept.rfind(b"\n") + 1]
            missing = pending(schedule(plan), measured_keys(RunFolder(path).ticks(Stage.SWEEP)))
            session = begin(path)
            assert session.number == number
            with contextlib.suppress(KeyboardInterrupt):
                run_sweep(session, SMALL, model, interrupt)
            assert file.read_bytes().startswith(kept)
            asked = [key(tick) for tick in counted(session.folder) if tick.place.session == number]
            assert asked == [k for step in missing for k in step.keys][: len(asked)]
            with file.open("ab") as torn:  # a kill in the middle of a line
                torn.write(b'{"place": {"stage": "sw'[: drawn.randrange(1, 20)])
        run_sweep(begin(path), SMALL, model, silent)
        assert Counter(map(key, counted(RunFolder(path)))) == Counter(k for s in schedule(plan) for k in s.keys)
        assert sweep_complete(RunFolder(path))

    @pytest.mark.slow
    def test_killed_sweep_process_resumes_without_losing_recorded_answers(
        self, daemon: Served, begin: BEGUN, tmp_path: Path
    ) -> None:
        path = tmp_path / "run"
        begin(path)
        program = (
            "import sys; from pathlib import Path\n"
            "from draftd_acceptance.folder import RunFolder; from draftd_acceptance.session import Session\n"
            "from draftd_acceptance.sweep.plan import run_sweep; from draftd.client.client import DraftdClient\n"
            "from tests.unit.acceptance.sweep.test_run import SMALL\n"
            "client = DraftdClient(sys.argv[1])\n"
            "run_sweep(Session(client, RunFolder.open(Path(sys.argv[2])), 1), SMALL, client.model(), print)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", program, daemon.target, str(path)], stdout=subprocess.DEVNULL)
        try:
            until(lambda: len(counted(RunFolder(path))) >= 7, 60)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
        before = counted(RunFolder(path))
        missing = pending(schedule(whole(daemon)), measured_keys(before))
        assert missing
        session = begin(path)
        run_sweep(session, SMALL, daemon.client.model(), silent)
        after = counted(session.folder)
        assert after[: len(before)] == before
        assert [key(tick) for tick in after[len(before) :]] == [k for step in missing for k in step.keys]
        assert sweep_complete(session.folder)

    def test_interrupt_during_concurrent_sweep_requests_waits_only_limited_time(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(module, "STOP_SECONDS", 0.2)
        with serving(tmp_path, lambda: scripted_models(0.8, step_seconds=0.05)) as served:
            plan = whole(served, SweepOptions(groups=("short_control",)))
            arm = Arm(0, None, concurrency=2)
            asks = [
                ask_for(prompt, arm, chat=True, seed=0, repetition=1) for prompt in plan.prompts[:2]
            ]  # 64 tokens: more than a second

            class Interrupted(Future[object]):
                def result(self, timeout: float | None = None) -> object:
                    raise KeyboardInterrupt

            monkeypatch.setattr(module, "Future", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                all_at_once(served.client, asks, timeout=30.0)
            still = [thread for thread in threading.enumerate() if thread.name.startswith("draftd-sweep")]
            assert still
            for thread in still:
                thread.join(30)

    def test_resumed_sweep_refuses_changed_option_and_names_it(
        self, daemon: Served, swept: Swept, begin: BEGUN
    ) -> None:
        path = swept[0].folder.path
        other = SweepOptions.resume(SMALL.plan(), repetitions=2)
        with pytest.raises(RunError, match="sweep: repetitions: got 2; allowed: 1, as this run began with"):
            run_sweep(begin(path), other, daemon.client.model(), silent)
        own = SweepOptions.resume(SMALL.plan(), max_tokens=5)
        with pytest.raises(RunError, match="sweep: max_tokens"):
            run_sweep(begin(path), own, daemon.client.model(), silent)


class TestLess:
    def test_sweep_stops_when_ladder_lowers_draft_length_and_can_be_resumed(
        self, daemon: Served, begin: BEGUN, tmp_path: Path
    ) -> None:
        """The daemon says that it drafts 4, and its ladder stands at 2."""
        options = SweepOptions.resume(
            SMALL.plan(), block_lengths=(0, 2, 4), temperatures=(), concurrency=(), repetitions=3, max_tokens=2
        )
        ladder = daemon.ladder
        position = next(at for at, one in enumerate(ladder.levels) if one.max_draft_tokens == 2)
        session = begin(tmp_path / "run")
        ladder.move(position, Signal(Cause.MEMORY, FallbackLevel.SHORT_BLOCK))
        try:
            with pytest.raises(
                MeasurementStopped, match=f"{MOST_ERRORS} requests of (k4|auto4) failed in a row.*the daemon allowed 2"
            ):
                run_sweep(session, options, daemon.client.model(), silent)
        finally:
            ladder.position = 0
        ticks = counted(session.folder)
        lowered = [tick for tick in ticks if tick.place.arm in ("k4", "auto4")]
        counts = Counter(tick.place.arm for tick in lowered)
        assert max(counts.values()) == MOST_ERRORS - 1  # and the warm-up
        for tick in lowered:
            assert tick.error.startswith("asked for 4, the daemon allowed 2: level short_block")
        assert not any(tick.error for tick in ticks if tick.place.arm in ("ar", "k2"))
        assert not sweep_complete(session.folder)
        run_sweep(begin(tmp_path / "run"), options, daemon.client.model(), silent)
        assert sweep_complete(session.folder)
        result = Sweep.read(session.folder)
        assert result is not None
        assert (result.missing, result.errors) == (0, {})
        requests = {arm.id: one.requests for arm, one in result.summaries.items()}
        assert requests == dict.fromkeys(("ar", "k2", "k4", "auto4"), 24)

    def test_sweep_without_drafter_measures_autoregressive_arms_and_lists_left_out_arms(self, tmp_path: Path) -> None:
        with serving(tmp_path, lambda: scripted_models(0.8, with_draft=False)) as served:
            folder = RunFolder.create(tmp_path / "run")
            session = Session(served.client, folder, folder.begin_session(manifest()))
            model = served.client.model()
            options = SweepOptions.resume(SMALL.plan(), max_tokens=4)
            run_sweep(session, options, model, silent)
        assert {tick.place.arm for tick in folder.ticks(Stage.SWEEP)} == {"ar", "ar-t0.8", "ar-x3"}
        result = Sweep.read(folder)
        assert result is not None
        assert result.knee is None
        assert set(result.left_out) == {"k2", "k4", "auto4", "k4-t0.8", "k4-x3"}
        assert all("offers no draft_model" in reason for reason in result.left_out.values())
        assert sweep_complete(folder)

    def test_sweep_stops_after_few_failed_requests_when_daemon_is_unreachable(self, tmp_path: Path) -> None:
        with serving(tmp_path, lambda: scripted_models(0.8)) as served:
            model = served.client.model()
        folder = RunFolder.create(tmp_path / "run")
        wanted = f"{MOST_ERRORS} requests failed in a row.*can be resumed"
        with DraftdClient(served.target) as client, pytest.raises(MeasurementStopped, match=wanted):
            run_sweep(Session(client, folder, folder.begin_session(manifest())), SMALL, model, silent)
        assert len(folder.ticks(Stage.SWEEP)) <= MOST_ERRORS + 2
        result = Sweep.read(folder)
        assert result is not None
        assert result.missing == 8 * 6 + 6 * 2
        assert result.errors

    def test_failed_sweep_request_marks_its_whole_concurrent_group_as_not_measured(
        self, daemon: Served, begin: BEGUN, tmp_path: Path
    ) -> None:
        """A byte is a token to this model: the longest prompt does not fit, and that shows only when it is asked."""
        prompts = (*from_texts(["one", "two", "three"]), *from_texts(["many " * 1000]))
        options = SweepOptions.resume(
            SMALL.plan(), concurrency=(4,), temperatures=(), block_lengths=(0,), groups=(), prompts=prompts
        )
        session = begin(tmp_path / "run")
        run_sweep(session, options, daemon.client.model(), silent)
        ticks = counted(session.folder)
        alone = {tick.place.prompt: tick.error for tick in ticks if tick.place.arm == "ar"}
        assert {name for name, error in alone.items() if not error} == {"one", "two", "three"}
        together = [tick for tick in ticks if tick.place.arm == "ar-x4"]
        assert sum(tick.error.startswith("one beside it failed: INVALID_ARGUMENT") for tick in together) == 3
        assert sum(tick.error.startswith("INVALID_ARGUMENT") for tick in together) == 1
        result = Sweep.read(session.folder)
        assert result is not None
        assert result.missing == sum(bool(tick.error) for tick in ticks)
        assert all(key(tick) not in measured_keys(ticks) for tick in together)

    def test_sweep_is_refused_when_no_prompt_fits_context(self, begin: BEGUN, daemon: Served, tmp_path: Path) -> None:
        model = daemon.client.model()
        model.context_length = 8
        with pytest.raises(NothingToMeasure, match="context of 8 tokens"):
            run_sweep(begin(tmp_path / "run"), SMALL, model, silent)


class Machine:
    """A clock that moves when one sleeps on it, and a machine that cools at a given time."""

    def __init__(self, patience: float = 60.0, cools_at: float = float("inf")) -> None:
        self.now, self.cools_at = 0.0, cools_at
        self.said: list[str] = []
        self.heat = Heat(patience)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        if self.now >= self.cools_at:
            self.is_now("moderate")

    def is_now(self, level: str | None) -> None:
        self.heat.observe(MachineSample(Stage.SWEEP, 1, "", self.now, self.now, thermal=level))

    def wait(self) -> float:
        began = self.now
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep_run, "time", SimpleNamespace(perf_counter=lambda: self.now, sleep=self.sleep))
            self.heat.wait(self.said.append)
        return self.now - began


@pytest.mark.parametrize("level", [None, "nominal", "moderate"])
def test_sweep_does_not_wait_at_nominal_moderate_or_unknown_thermal_level(level: str | None) -> None:
    machine = Machine()
    machine.is_now(level)
    assert machine.wait() == 0
    assert machine.said == []


@pytest.mark.parametrize("level", ["heavy", "trapping", "sleeping"])
def test_sweep_waits_for_hot_machine_to_cool_and_reports_wait(level: str) -> None:
    machine = Machine(cools_at=17)
    machine.is_now(level)
    assert machine.wait() == 17
    assert machine.said[0] == f"waiting for the machine to cool: thermal level {level}, 60 s at most"
    assert machine.wait() == 0


def test_sweep_heat_wait_is_limited_and_not_repeated_until_machine_has_cooled() -> None:
    machine = Machine(patience=30.5)
    machine.is_now("heavy")
    assert machine.wait() == 30.5
    assert machine.wait() == 0
    machine.is_now("nominal")
    assert machine.wait() == 0
    machine.is_now("heavy")
    assert machine.wait() == 30.5


def test_sweep_heat_wait_keeps_last_thermal_level_when_reading_is_missing() -> None:
    machine = Machine(cools_at=5)
    machine.is_now("heavy")
    machine.is_now(None)
    assert machine.wait() == 5


def test_sweep_with_zero_heat_limit_does_not_wait_for_hot_machine() -> None:
    machine = Machine(patience=0)
    machine.is_now("heavy")
    assert machine.wait() == 0
