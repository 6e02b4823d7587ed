"""A controller without a thread, over an engine and an examiner that do as they are told, and a clock that is set.

Everything that leaves a trace outside the controller is written down in one list, in order; a test may have the process
"die" before the n-th of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftd.core import (
    BUILT_IN_DRAFTERS,
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DraftCounts,
    DrafterName,
    FallbackLevel,
    FinishReason,
    ModelInfo,
    Origin,
    Outcome,
    RequestStats,
    WorkloadClass,
)
from draftd.engine.observer import EngineStatus
from draftd.errors import NotNow
from draftd.fallback.clock import SteadyClock
from draftd.fallback.controller import Controller
from draftd.fallback.journal import Journal
from draftd.fallback.ladder import Rung, rungs
from draftd.fallback.reports import CanaryOutcome, CanaryReport, ProbeReport, Verdict
from draftd.fallback.signal_feed import Intake
from draftd.fallback.store import NoStore, StateStore
from draftd.fallback.weights import Residency
from draftd.hardware.state import FixedView
from draftd.planning.planner import FixedFlag, Planner
from draftd.settings import FallbackSettings

LADDER = rungs(4, (3, 2), DRAFT_MODEL, (PROMPT_LOOKUP,))
TOP, SHORT, SHORTER, LIGHT, BOTTOM = range(5)
FULL, SHORT_BLOCK, LIGHT_DRAFT, PLAIN = sorted(FallbackLevel, reverse=True)
START = 1_800_000_000.0
DWELL, WINDOW = 100.0, 50.0


class Died(BaseException):
    """The process was killed here."""


@dataclass
class Trace:
    """What was done, in order."""

    done: list[str] = field(default_factory=list)
    dies_before: int | None = None  # the n-th entry

    def add(self, what: str) -> None:
        if self.dies_before is not None and len(self.done) >= self.dies_before:
            raise Died(what)
        self.done.append(what)


class FakeEngine:
    """Holds what it is asked to, at once, unless `slow`; then when `load` is called."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace if trace is not None else Trace()
        self.held: frozenset[DrafterName] = frozenset({DRAFT_MODEL})
        self.lowered: list[tuple[int, frozenset[DrafterName], str]] = []
        self.failure: Exception | None = None
        self.not_serving: Exception | None = None
        self.drafters = tuple(BUILT_IN_DRAFTERS)
        self.slow = False
        self.active = 0
        self.reloads: list[Future[int]] = []
        self._loading: list[tuple[frozenset[DrafterName], Future[int]]] = []

    @property
    def info(self) -> ModelInfo:
        if self.not_serving is not None:
            raise self.not_serving
        reason = "" if DRAFT_MODEL in self.drafters else "no draft model is loaded"
        return ModelInfo("m", "d", 4096, 256, self.drafters, reason, 0, 0, "cpu")

    @property
    def tokenizer(self) -> Any:
        raise NotImplementedError

    def status(self) -> EngineStatus:
        known = {"active": self.active, "counts": DraftCounts(), "finished": {}, "loaded": self.held}
        return EngineStatus(**{name: known.get(name, 0) for name in EngineStatus.__dataclass_fields__})  # type: ignore[arg-type]

    def submit(self, request: DecodeRequest, sink: object) -> None:
        raise NotImplementedError

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        raise NotImplementedError

    def keep(self, drafters: frozenset[DrafterName]) -> Future[int]:
        if self.not_serving is not None:
            raise self.not_serving
        self.trace.add("keep " + ",".join(sorted(drafters)))
        future: Future[int] = Future()
        self._loading.append((drafters, future))
        if not self.slow:
            self.load()
        return future

    def load(self) -> None:
        for drafters, future in self._loading:
            if self.failure is not None and DRAFT_MODEL in drafters:
                future.set_exception(self.failure)
            else:
                self.held = drafters
                future.set_result(1000 * (DRAFT_MODEL in drafters))
        self._loading = []

    def lower(self, max_draft_tokens: int, drafters: frozenset[DrafterName], reason: str) -> None:
        self.trace.add(f"lower {max_draft_tokens}")
        self.lowered.append((max_draft_tokens, drafters, reason))

    def reload_draft(self) -> Future[int]:
        self.reloads.append(Future())
        return self.reloads[-1]

    def logit_gap(self, tokens: tuple[int, ...], chosen: int, other: int) -> Future[float]:
        raise NotImplementedError


class FakeExaminer:
    """Answers a probe with `verdict` at once, unless `slow`; then when `end` is called."""

    def __init__(self) -> None:
        self.verdict, self.quality = Verdict.GOOD, Verdict.GOOD
        self.verdicts: dict[Rung, Verdict] = {}
        self.probed: list[Rung] = []
        self.learnt: list[Rung] = []
        self.tested = 0
        self.known: set[Rung] = set(LADDER)
        self.slow, self.teaches = False, True
        self._ends: list[tuple[Future[Any], Any]] = []

    @property
    def busy(self) -> bool:
        return bool(self._ends)

    def probe(self, rung: Rung, baselines: object) -> Future[ProbeReport]:
        self.probed.append(rung)
        return self._begun(ProbeReport(rung, self.verdicts.get(rung, self.verdict), "as told", 0.7, 1.5, 0.1))

    def learn(self, rung: Rung) -> Future[ProbeReport]:
        if self.teaches:
            self.known.add(rung)
        self.learnt.append(rung)
        return self._begun(ProbeReport(rung, Verdict.GOOD, "as told", 0.7, 1.5, 0.1))

    def knows(self, rung: Rung) -> bool:
        return rung in self.known

    @property
    def lessons(self) -> FakeExaminer:
        return self

    def forget(self) -> None:
        self.known = {rung for rung in self.known if rung.drafter == PROMPT_LOOKUP}

    def document(self) -> dict[str, object]:
        return {"known": sorted(LADDER.index(rung) for rung in self.known)}

    def recall(self, document: Mapping[str, Any]) -> None:
        if "known" not in document:
            raise ValueError("lessons.known: got None; allowed: a list")
        self.known = {LADDER[index] for index in document["known"]}

    def canaries(self) -> Future[CanaryReport]:
        self.tested += 1
        outcomes = (CanaryOutcome("one", True, self.quality is Verdict.GOOD),)
        return self._begun(CanaryReport(self.quality, "as told", outcomes, 0.1))

    def end(self) -> None:
        ends, self._ends = self._ends, []
        for future, report in ends:
            future.set_result(report)

    def _begun(self, report: Any) -> Future[Any]:
        if self._ends:
            raise NotNow("one is under way")
        future: Future[Any] = Future()
        self._ends.append((future, report))
        if not self.slow:
            self.end()
        return future


class TracingPlanner(Planner):
    def __init__(self, trace: Trace, journal: Journal) -> None:
        super().__init__(FixedFlag(), LADDER, journal=journal)
        self._trace = trace

    def move(self, rung: int, cause: str, evidence: str = "") -> bool:
        self._trace.add(f"move {rung}")
        return super().move(rung, cause, evidence)


class MemoryStore:
    """Keeps the document as JSON would."""

    path: Path | None = Path("state.json")

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace if trace is not None else Trace()
        self.document: Mapping[str, Any] | None = None
        self.failure: OSError | None = None
        self.aside = 0

    def load(self) -> Mapping[str, Any] | None:
        return self.document

    def save(self, document: Mapping[str, Any]) -> None:
        if self.failure is not None:
            raise self.failure
        self.trace.add(f"save {document['ladder']['rung']['level']} {document['ladder']['rung']['max_draft_tokens']}")
        self.document = document

    def set_aside(self) -> None:
        self.aside += 1
        self.document = None


@dataclass
class Told:
    """A ControlTelemetry that keeps what it is told."""

    transitions: list[tuple[FallbackLevel, FallbackLevel, str]] = field(default_factory=list)
    saves_failed: int = 0

    def transition(self, previous: FallbackLevel, current: FallbackLevel, signal: str) -> None:
        self.transitions.append((previous, current, signal))

    def save_failed(self) -> None:
        self.saves_failed += 1

    def notification(self, result: str) -> None:
        raise NotImplementedError

    def poll(self, result: str) -> None:
        raise NotImplementedError

    def annotation(self, result: str) -> None:
        raise NotImplementedError

    def probe(self, *args: object) -> None:
        raise NotImplementedError

    def canaries(self, *args: object) -> None:
        raise NotImplementedError


class Steered:
    """`at(seconds)` sets the clock, counted from the start, and has the controller look once."""

    def __init__(
        self,
        store: StateStore | None = None,
        *,
        trace: Trace | None = None,
        engine: FakeEngine | None = None,
        hardware: Any = None,
        start: float = START,
        pair: str = "",
        journal: Journal | None = None,
        **settings: Any,
    ) -> None:
        self.trace = trace if trace is not None else Trace()
        self.engine = engine if engine is not None else FakeEngine(self.trace)
        self.examiner, self.telemetry = FakeExaminer(), Told()
        self.journal = journal if journal is not None else Journal()
        self.planner = TracingPlanner(self.trace, self.journal)
        self.start, self.now = start, 0.0
        self.hardware = hardware if hardware is not None else FixedView()
        self.intake = Intake(clock=lambda: self.now)
        self.residency = Residency(self.engine, clock=lambda: self.now)
        defaults = {"dwell_seconds": DWELL, "window_seconds": WINDOW, "least_requests": 2, "canary_period_seconds": 0}
        self.controller = Controller(
            self.planner,
            self.engine,
            examiner=self.examiner,
            residency=self.residency,
            intake=self.intake,
            hardware=self.hardware,
            settings=FallbackSettings(**{**defaults, **settings}),
            lease_seconds=1000.0,
            journal=self.journal,
            telemetry=self.telemetry,
            store=store if store is not None else NoStore(),
            pair=pair,
            clock=SteadyClock(lambda: start, lambda: self.now),
            monotonic=lambda: self.now,
        )

    def at(self, seconds: float) -> int:
        """The rung after it."""
        self.now = seconds
        self.controller.tick()
        return self.rung

    def until(self, seconds: float, every: float = 1.0) -> int:
        """Looks again and again, up to that time."""
        while self.now < seconds:
            self.at(min(self.now + every, seconds))
        return self.rung

    @property
    def rung(self) -> int:
        return self.planner.standing.rung

    @property
    def told(self) -> list[tuple[str, str, str]]:
        return [(t.previous, t.current, t.cause) for t in self.journal.latest(100)]

    def request(
        self,
        accepted: int = 90,
        rollbacks: int = 10,
        *,
        drafts: int = 40,
        break_even: float = 20.0,
        origin: Origin = Origin.CLIENT,
        rung: Rung | None = None,
        arrival: float | None = None,
    ) -> None:
        """One that ends now."""
        rung = rung if rung is not None else self.planner.rung
        counts = DraftCounts(
            rounds=drafts, drafts=drafts, accepted=accepted, rollbacks=rollbacks, break_even_tokens=break_even
        )
        request = a_request(rung, origin, self.now if arrival is None else arrival)
        self.intake.on_finish(request, Outcome(FinishReason.STOP, RequestStats(1, request.arrival, counts=counts)))

    def traffic(self, until: float, acceptance: float, **more: Any) -> int:
        """Two requests a window's fifth, and a look."""
        while self.now < until:
            self.now = min(self.now + WINDOW / 5, until)
            for _ in range(2):
                self.request(round(100 * acceptance), round(100 * (1 - acceptance)), **more)
            self.controller.tick()
        return self.rung


def a_request(rung: Rung = LADDER[0], origin: Origin = Origin.CLIENT, arrival: float = 0.0) -> DecodeRequest:
    mode = DecodeMode.AUTOREGRESSIVE if rung.drafter is None else DecodeMode.SPECULATIVE
    plan = DecodePlan(mode, rung.max_draft_tokens, rung.drafter, rung.level, "on", "")
    return DecodeRequest("r", (1,), 8, plan, arrival, workload=WorkloadClass.CODE, origin=origin)


def wait_for(asked: Sequence[Future[Any]], steered: Steered) -> None:
    """Has the controller look until they have ended."""
    for _ in range(5):
        if all(future.done() for future in asked):
            return
        steered.controller.tick()
    raise AssertionError("not done after five looks")
