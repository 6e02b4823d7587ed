"""A controller without a thread, over a fake engine and a fake probe runner, and with a clock that the test sets.

Every action with a trace outside the controller is recorded in one list, in order. A test may make the process "die"
before the n-th of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from draftd.clocks import SteadyClock
from draftd.core import (
    BUILT_IN_DRAFTERS,
    DRAFT_HEAD,
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DrafterName,
    FallbackLevel,
    FinishReason,
    LadderLevel,
    Origin,
    WorkloadClass,
)
from draftd.counts import DraftCounts
from draftd.engine.observer import EngineStatus
from draftd.engine.remote.verifier_link import LinkState
from draftd.errors import NotNow
from draftd.fallback.baselines import ProbeBaselines
from draftd.fallback.controller import Controller
from draftd.fallback.drift import Baseline
from draftd.fallback.ladder import Ladder, LadderSettings, Signal, ladder_levels
from draftd.fallback.leases import Applied, Notice
from draftd.fallback.loaded_drafters import LoadedDrafters
from draftd.fallback.probes import CanaryOutcome, CanaryReport, ProbeReport, ProbeVerdict
from draftd.fallback.remote_guard import REMOTE_LADDER, RemoteGuard
from draftd.fallback.signal_feed import RequestFeed
from draftd.fallback.store import StateStore
from draftd.hardware.state import HardwareSample, HardwareState, HardwareView
from draftd.journal import Journal, Subject
from draftd.model_info import ModelInfo
from draftd.outcome import Outcome, RequestStats
from draftd.settings import FallbackSettings

T = TypeVar("T")

LADDER = ladder_levels(4, (3, 2), DRAFT_MODEL, (PROMPT_LOOKUP,))
TOP, SHORT, SHORTER, LIGHT, BOTTOM = range(5)
FULL, SHORT_BLOCK, LIGHT_DRAFT, PLAIN = sorted(FallbackLevel, reverse=True)
AT_BEST = Baseline(0.7, 0.1)
GOOD, POOR = 0.8, 0.2
START = 1_800_000_000.0
COOLDOWN, WINDOW = 100.0, 50.0
PACE = 0.02  # seconds a token that the remote streams


class Died(BaseException):
    """The process was killed here."""


@dataclass
class Trace:
    """A log of actions, in order."""

    done: list[str] = field(default_factory=list)
    dies_before: int | None = None  # the entry before which the process dies

    def add(self, what: str) -> None:
        if self.dies_before is not None and len(self.done) >= self.dies_before:
            raise Died(what)
        self.done.append(what)


class FakeEngine:
    """An engine that loads the kept drafters at once; if `slow`, when `load` is called."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace if trace is not None else Trace()
        self.held: frozenset[DrafterName] = frozenset({DRAFT_MODEL})
        self.lowered: list[tuple[int, frozenset[DrafterName], str]] = []
        self.failure: Exception | None = None
        self.not_serving: Exception | None = None
        self.drafters = tuple(name for name in BUILT_IN_DRAFTERS if name != DRAFT_HEAD)
        self.slow = False
        self.active = 0
        self.reloads: list[Future[int]] = []
        self._loading: list[tuple[frozenset[DrafterName], Future[int]]] = []

    @property
    def info(self) -> ModelInfo:
        if self.not_serving is not None:
            raise self.not_serving
        refused = {} if DRAFT_MODEL in self.drafters else {DRAFT_MODEL: "no draft model is loaded"}
        return ModelInfo("m", "d", 4096, 256, self.drafters, 0, 0, "cpu", refused_drafters=refused)

    @property
    def tokenizer(self) -> Any:
        raise NotImplementedError

    def status(self) -> EngineStatus:
        return EngineStatus(DraftCounts(), {}, active=self.active, loaded=self.held)

    def submit(self, request: DecodeRequest, sink: object) -> None:
        raise NotImplementedError

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        raise NotImplementedError

    def keep(self, drafters: frozenset[DrafterName]) -> Future[int]:
        if self.not_serving is not None:
            raise self.not_serving
        drafters -= {DRAFT_HEAD}  # as an engine whose model has none
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


class FakeProbeRunner:
    """A runner that answers a probe with `verdict` at once; if `slow`, when `end` is called."""

    def __init__(self) -> None:
        self.verdict, self.quality = ProbeVerdict.GOOD, ProbeVerdict.GOOD
        self.verdicts: dict[LadderLevel, ProbeVerdict] = {}
        self.probed: list[LadderLevel] = []
        self.learnt: list[LadderLevel] = []
        self.tested = 0
        self.baselines = ProbeBaselines.of(())
        for drafter in BUILT_IN_DRAFTERS:
            self.baselines.drafters[drafter] = AT_BEST
        self.slow, self.teaches = False, True
        self._ends: list[tuple[Future[Any], Any]] = []

    @property
    def busy(self) -> bool:
        return bool(self._ends)

    @property
    def known(self) -> set[DrafterName]:
        return set(self.baselines.drafters)

    def probe(self, level: LadderLevel, *, learn: bool = False) -> Future[ProbeReport]:
        (self.learnt if learn else self.probed).append(level)
        if learn and self.teaches and level.drafter is not None:
            self.baselines.drafters[level.drafter] = AT_BEST
        verdict = ProbeVerdict.GOOD if learn else self.verdicts.get(level, self.verdict)
        return self._begun(ProbeReport(level, verdict, "as set", 0.7, 1.5, 0.1, verdict is ProbeVerdict.GOOD))

    def unlearn(self) -> None:
        self.baselines.drafters = {}

    def canaries(self) -> Future[CanaryReport]:
        self.tested += 1
        outcomes = (CanaryOutcome("one", True, self.quality is ProbeVerdict.GOOD),)
        return self._begun(CanaryReport(self.quality, "as set", outcomes, 0.1))

    def end(self, seconds: float = 0.1) -> None:
        """Ends the pending jobs, with this duration."""
        ends, self._ends = self._ends, []
        for future, report in ends:
            future.set_result(replace(report, seconds=seconds))

    def _begun(self, report: Any) -> Future[Any]:
        if self._ends:
            raise NotNow("one is already running")
        future: Future[Any] = Future()
        self._ends.append((future, report))
        if not self.slow:
            self.end()
        return future


class TracedLadder(Ladder[LadderLevel]):
    def __init__(self, trace: Trace, journal: Journal, settings: LadderSettings) -> None:
        super().__init__(LADDER, journal, settings)
        self._trace = trace
        self.signal: Signal | None = None  # of the last move

    def move(self, position: int, signal: Signal) -> bool:
        self._trace.add(f"move {position}")
        self.signal = signal
        return super().move(position, signal)


class MemoryStore(StateStore):
    """A store that keeps the document in memory, as a file would."""

    def __init__(self, trace: Trace | None = None) -> None:
        super().__init__(Path("state.json"))
        self.trace = trace if trace is not None else Trace()
        self.text: str | None = None
        self.failure: OSError | None = None
        self.aside = 0

    @property
    def document(self) -> dict[str, Any]:
        assert self.text is not None
        found: dict[str, Any] = json.loads(self.text)
        return found

    def load(self) -> str | None:
        return self.text

    def save(self, document: str) -> None:
        if self.failure is not None:
            raise self.failure
        level = json.loads(document)["level"]
        self.trace.add(f"save {FallbackLevel(level['kind']).label} {level['max_draft_tokens']}")
        self.text = document

    def set_aside(self) -> None:
        self.aside += 1


class Controlled:
    """A controller under test. `at(seconds)` sets the clock, counted from the start, and makes the controller check
    once."""

    def __init__(
        self,
        store: StateStore | None = None,
        *,
        trace: Trace | None = None,
        engine: FakeEngine | None = None,
        hardware: Any = None,
        start: float = START,
        journal: Journal | None = None,
        link: LinkState | None = None,
        **settings: Any,
    ) -> None:
        self.trace = trace if trace is not None else Trace()
        self.engine = engine if engine is not None else FakeEngine(self.trace)
        self.runner = FakeProbeRunner()
        self.journal = journal if journal is not None else Journal()
        self.start, self.now = start, 0.0
        self.asleep = self.ahead = 0.0  # seconds of sleep until now; by which the wall clock was set forward
        self.hardware = hardware if hardware is not None else HardwareView()
        self.requests = RequestFeed(clock=self.awake)
        self.drafters = LoadedDrafters(self.engine, clock=self.awake)
        defaults = {
            "cooldown_seconds": COOLDOWN,
            "window_seconds": WINDOW,
            "least_requests": 2,
            "canary_period_seconds": 0,
        }
        made, self.link, self.remote = FallbackSettings(**{**defaults, **settings}), link, None
        limits = LadderSettings.of(made)
        self.ladder = TracedLadder(self.trace, self.journal, limits)
        if link is not None:
            self.remote = RemoteGuard(
                Ladder(REMOTE_LADDER, self.journal, limits, subject=Subject.REMOTE),
                lambda: self.link or LinkState(),
                lambda: {WorkloadClass.UNSPECIFIED: PACE},
                made,
            )
        self.controller = Controller(
            self.ladder,
            self.engine,
            runner=self.runner,
            drafters=self.drafters,
            requests=self.requests,
            hardware=self.hardware,
            settings=made,
            lease_seconds=1000.0,
            journal=self.journal,
            store=store if store is not None else StateStore(None),
            clock=SteadyClock(lambda: start + self.now + self.ahead, lambda: self.now, self.awake),
            remote=self.remote,
        )

    def awake(self) -> float:
        return self.now - self.asleep

    def sleep(self, seconds: float) -> None:
        """Advances the clock by a sleep of the machine."""
        self.now += seconds
        self.asleep += seconds

    def at(self, seconds: float) -> int:
        """Sets the clock, makes the controller check once, and returns the position."""
        self.now = seconds
        self.controller.tick()
        return self.position

    def until(self, seconds: float, every: float = 1.0) -> int:
        """Makes the controller check `every` so many seconds up to that time. Returns the position."""
        while self.now < seconds:
            self.at(min(self.now + every, seconds))
        return self.position

    @property
    def position(self) -> int:
        return self.ladder.position

    def asked_for(self) -> dict[str, FallbackLevel]:
        """Returns the level that each signal asks for, by cause."""
        return {signal.cause.value: signal.asks_for for signal in self.controller.state().signals}

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
        level: LadderLevel | None = None,
        arrival: float | None = None,
    ) -> None:
        """Reports a request that ends now."""
        level = level if level is not None else self.ladder.level
        counts = DraftCounts(
            steps=drafts, drafts=drafts, accepted=accepted, rollbacks=rollbacks, break_even_tokens=break_even
        )
        request = a_request(level, origin, self.now if arrival is None else arrival)
        self.requests.on_finish(request, Outcome(FinishReason.STOP, RequestStats(1, request.arrival, counts=counts)))

    def traffic(self, until: float, acceptance: float, **more: Any) -> int:
        """Reports two requests each fifth of a window, with a check after them. Returns the position."""
        while self.now < until:
            self.now = min(self.now + WINDOW / 5, until)
            for _ in range(2):
                self.request(round(100 * acceptance), round(100 * (1 - acceptance)), **more)
            self.controller.tick()
        return self.position


def a_request(level: LadderLevel = LADDER[0], origin: Origin = Origin.CLIENT, arrival: float = 0.0) -> DecodeRequest:
    mode = DecodeMode.AUTOREGRESSIVE if level.drafter is None else DecodeMode.SPECULATIVE
    plan = DecodePlan(mode, level.max_draft_tokens, level.drafter, level.kind, "on", "")
    return DecodeRequest("r", (1,), 8, plan, arrival, workload=WorkloadClass.CODE, origin=origin)


@dataclass
class Machine:
    """A HardwareView whose readings the test sets."""

    state: HardwareState | None = None
    errors: dict[str, int] = field(default_factory=dict)

    def reads(self, at: float, swap_ins: int | None = None, **sample: object) -> None:
        self.state = HardwareState(HardwareSample(**sample), at, swap_ins=swap_ins)  # type: ignore[arg-type]


def notice(level: FallbackLevel, *, hard: bool = False, firing: bool = True, starts_at: float = START) -> Notice:
    return Notice("DraftdSomething", "abc", firing, starts_at, level, hard)


def tell(controlled: Controlled, *notices: Notice) -> list[Applied]:
    """Sends notices to the controller as the webhook does."""
    return controlled.controller.notices(notices)


def tell_and_resolve(
    controlled: Controlled, level: FallbackLevel, *, hard: bool = False, starts_at: float = START
) -> None:
    """Sends an alert and its end."""
    tell(controlled, notice(level, hard=hard, starts_at=starts_at))
    tell(controlled, notice(level, hard=hard, starts_at=starts_at, firing=False))


def fail(controlled: Controlled, observed: str, times: int = 3) -> None:
    for n in range(times):
        request = replace(a_request(), id=f"request {n}")
        drafter = (request.plan.drafter,) if observed == "on_drafter_error" else ()
        getattr(controlled.requests, observed)(request, *drafter, "broken")
        controlled.request()


def wait_for(asked: Sequence[Future[Any]], controlled: Controlled) -> None:
    """Makes the controller check until the futures are done."""
    for _ in range(5):
        if all(future.done() for future in asked):
            return
        controlled.controller.tick()
    raise AssertionError("not done after five looks")
