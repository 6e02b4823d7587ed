"""The daemon's own guard, with nothing outside it: a real engine under traffic whose draft goes bad and is mended."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from draftd.control.controller import Controller
from draftd.control.examiner import Examiner
from draftd.control.intake import Intake
from draftd.control.journal import Journal
from draftd.control.planner import FixedFlag, PlanAsk, Planner
from draftd.control.residency import Residency
from draftd.control.store import NoStore
from draftd.core import DecodeRequest, DrafterKind, Emission, FinishReason, Outcome, WorkloadClass
from draftd.engine.blas import load_blas
from draftd.engine.model import LoadedModels
from draftd.engine.worker import EngineWorker
from draftd.errors import QueueFull
from draftd.hardware.state import FixedView
from draftd.policy.ladder import rungs
from draftd.policy.plan import Wish
from draftd.settings_fallback import FallbackSettings
from draftd.telemetry.control import NullControlRecorder
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LADDER = rungs(4, (3, 2), DrafterKind.DRAFT_MODEL, (DrafterKind.LIGHT_DRAFT_MODEL,))
DOWN = [rung.label for rung in LADDER]
SETTINGS = FallbackSettings(
    window_seconds=1.0, dwell_seconds=0.5, longest_wait_seconds=2.0, least_requests=2, probe_share=0.5,
    canary_period_seconds=0,
)  # fmt: skip
PROMPTS = tuple(tuple(range(first, first + 12)) for first in (1, 40, 80, 120))
TOKENS = 48


class Answer:
    """A TokenSink."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.outcome: Outcome | None = None
        self.ended = threading.Event()

    def on_tokens(self, emission: Emission) -> None:
        self.tokens += emission.tokens

    def on_finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.ended.set()


@dataclass
class Guarded:
    """An engine, a controller and those who ask, without a pause. `wrong` has every answer that was not as it should
    be; `drafts` the scripted drafts, whose mistakes the test sets."""

    worker: EngineWorker
    planner: Planner
    controller: Controller
    journal: Journal
    models: list[LoadedModels]
    answered: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        """The rungs that it went through."""
        steps = [step for step in self.journal.latest(100) if step.previous != step.current]
        return [step.current for step in steps]

    def draft(self, *, mistakes: int) -> None:
        """Of a thousand positions, by both drafts."""
        models = self.models[0]
        for model in (models.draft, models.sources[DrafterKind.LIGHT_DRAFT_MODEL].open()):
            model._wrong = mistakes

    def ask(self, number: int, *, plain: bool = False) -> Answer:
        answer = Answer()
        ask = PlanAsk(Wish(max_draft_tokens=0) if plain else Wish())
        request = DecodeRequest(
            id=f"request {number}",
            prompt=PROMPTS[number % len(PROMPTS)],
            max_tokens=TOKENS,
            plan=self.planner.plan(ask, self.worker.info),
            arrival=time.monotonic(),
            workload=WorkloadClass.CODE,
        )
        while True:
            try:
                self.worker.submit(request, answer)
                return answer
            except QueueFull:
                time.sleep(0.01)

    @contextlib.contextmanager
    def traffic(self, clients: int = 2) -> Iterator[None]:
        expected = []
        for number in range(len(PROMPTS)):
            answer = self.ask(-number, plain=True)
            assert answer.ended.wait(30)
            expected.append(self.ask(number, plain=True))
            assert expected[-1].ended.wait(30)
        numbers, stop = itertools.count(1), threading.Event()

        def client() -> None:
            while not stop.is_set():
                number = next(numbers)
                answer = self.ask(number)
                if not answer.ended.wait(30) or answer.outcome is None:
                    self.wrong.append(f"{number}: no end")
                elif answer.outcome.reason is not FinishReason.LENGTH:
                    self.wrong.append(f"{number}: {answer.outcome.reason} {answer.outcome.error}")
                elif answer.tokens != expected[number % len(PROMPTS)].tokens:
                    self.wrong.append(f"{number}: another text")
                self.answered += 1

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(40)


@contextlib.contextmanager
def guarded() -> Iterator[Guarded]:
    made: list[LoadedModels] = []

    def load(progress: object) -> LoadedModels:
        load_blas()
        from draftd.engine.scripted import scripted_models

        made.append(scripted_models(0.9, step_seconds=0.004, light_acceptance=0.9))
        return made[-1]

    journal, intake = Journal(), Intake()
    planner = Planner(FixedFlag(), LADDER, journal=journal)
    worker = EngineWorker(load, observer=intake)
    residency, telemetry = Residency(worker), NullControlRecorder()
    examiner = Examiner(worker, residency.borrow, SETTINGS, telemetry, stands=planner)
    controller = Controller(
        planner,
        worker,
        examiner=examiner,
        residency=residency,
        intake=intake,
        hardware=FixedView(),
        settings=SETTINGS,
        lease_seconds=60.0,
        journal=journal,
        telemetry=telemetry,
        store=NoStore(),
    )
    worker.start()
    worker.wait_ready(60)
    examiner.start()
    controller.start()
    try:
        yield Guarded(worker, planner, controller, journal, made)
    finally:
        assert examiner.close(30)
        assert controller.close(30)
        assert worker.close(5)


def test_a_draft_that_goes_bad_is_stepped_down_from_through_each_level_and_returned_to_when_it_is_good() -> None:
    with guarded() as running:
        with running.traffic():
            time.sleep(4)
            assert running.labels == []

            running.draft(mistakes=1000)
            until(lambda: running.planner.rung is LADDER[-1], 60, f"all the way down: {running.labels}")
            assert running.labels == DOWN[1:]
            until(lambda: running.worker.status().loaded == frozenset(), 20, "the drafts' weights are let go of")
            time.sleep(5)
            assert running.labels == DOWN[1:], "down for as long as it is bad, though nothing is drafted to judge"
            assert running.controller.readings().probe_acceptance is not None

            running.draft(mistakes=100)
            until(lambda: running.planner.rung is LADDER[0], 60, "all the way up")
            assert running.labels == [*DOWN[1:], *reversed(DOWN[:-1])]
            until(lambda: running.worker.status().loaded == {DrafterKind.DRAFT_MODEL}, 20, "the draft's weights")
            time.sleep(3)
            assert running.planner.rung is LADDER[0]
        assert running.wrong == [], "no request failed, and every greedy text is the target's own"
        assert running.answered > 100
        causes = {step.cause for step in running.journal.latest(100)}
        assert causes <= {"acceptance_floor", "acceptance_drift", "break_even", "recovered"}
        assert all(step.evidence for step in running.journal.latest(100))


def test_a_hold_keeps_the_level_under_traffic_whatever_the_draft_does() -> None:
    with guarded() as running:
        with running.traffic():
            running.controller.hold(LADDER[1].level, None)
            running.draft(mistakes=1000)
            time.sleep(5)
            assert running.labels == [DOWN[1]]
            assert running.controller.release()
            until(lambda: running.planner.rung is LADDER[-1], 60, "all the way down")
        assert running.wrong == []
