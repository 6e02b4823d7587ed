"""Feeds the guard with what the daemon sees: requests, errors, the machine, and the canaries' verdict."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from draftd.core import (
    PROMPT_LOOKUP,
    DecodePlan,
    DecodeRequest,
    DraftCounts,
    DrafterName,
    Origin,
    Outcome,
    StepCounts,
    WorkloadClass,
)
from draftd.engine.observer import EngineObserver
from draftd.fallback.drift import Baseline, Cusum, StreamKey
from draftd.fallback.ladder import Cause, LadderLevel, Signal
from draftd.fallback.probes import CanaryReport
from draftd.fallback.signals import Guard, Machine
from draftd.hardware.state import HardwareView, MemoryPressure, ThermalLevel

_LEAST_STALE_SECONDS, _STALE_READINGS = 60.0, 3  # without a reading for so long, and for as many periods


class SteadyClock:
    """The ladder's clock: seconds since 1970 as they were at the start, and monotonic since. A clock that is set
    meanwhile changes nothing. Any thread."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._offset = wall() - monotonic()

    def __call__(self) -> float:
        return self._offset + self.monotonic()

    def of(self, monotonic: float) -> float:
        """What this clock showed at a time of `time.monotonic()`."""
        return self._offset + monotonic


@dataclass(frozen=True, slots=True)
class Ended:
    """A client's request that drafted as its plan has it, or what one drafter did of it: `plan` names the drafter whose
    counts these are. Times are monotonic."""

    at: float
    arrival: float
    plan: DecodePlan
    workload: WorkloadClass
    counts: DraftCounts


@dataclass(frozen=True, slots=True)
class Failed:
    """A speculative step, or a draft, that failed. `at` is monotonic."""

    at: float
    cause: Cause


class RequestFeed(EngineObserver):
    """An EngineObserver. Each call takes constant time and never waits: when it is full, the oldest is forgotten."""

    def __init__(self, capacity: int = 4096, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: deque[Ended | Failed] = deque(maxlen=capacity)
        self._failed: dict[Cause, set[str]] = {}  # requests of the step that failed last
        self._shared: dict[str, dict[DrafterName, DraftCounts]] = {}  # requests that several drafters may serve, by id
        self.woken = threading.Event()  # set where something must not wait for the controller's next look

    def take(self) -> list[Ended | Failed]:
        """All since the last time, oldest first. One thread's."""
        taken: list[Ended | Failed] = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        if not result.drafted:
            return
        self._failed.clear()  # a failed step is followed by plain ones, in which its sequences are prefilled anew
        plan = request.plan
        if plan.alternatives and plan.drafter is not None and request.origin is Origin.CLIENT:
            self._shared.setdefault(request.id, {}).setdefault(plan.drafter, DraftCounts()).add(result)

    def on_drafter_error(self, request: DecodeRequest, message: str) -> None:
        self._fail(request, Cause.DRAFTER_ERRORS)

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        self._fail(request, Cause.VERIFIER_ERRORS)

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        self._failed.clear()
        counts, plan = outcome.stats.counts, request.plan
        shared = self._shared.pop(request.id, {})
        if request.origin is not Origin.CLIENT or not counts.drafts or outcome.lowered:
            return  # a lowered one drafted at two levels: its sums are neither's
        at = self._clock()
        # By drafter, each by its own sums: what one is worth says nothing of another that takes its place.
        for drafter, one in shared.items() or [(plan.drafter, counts)]:
            own = plan if plan.drafter == drafter else replace(plan, drafter=drafter, alternatives=frozenset())
            self._events.append(Ended(at, request.arrival, own, request.workload, one))

    def _fail(self, request: DecodeRequest, cause: Cause) -> None:
        """The sequences of one step are reported one after the other: together they are one failure."""
        if request.origin is not Origin.CLIENT:
            return
        failed = self._failed.setdefault(cause, set())
        if not failed or request.id in failed:
            failed.clear()
            self._events.append(Failed(self._clock(), cause))
            self.woken.set()
        failed.add(request.id)


class MachineFeed:
    """One thread's. `clock` is monotonic, as the readings' times are."""

    def __init__(self, view: HardwareView, clock: Callable[[], float] = time.monotonic) -> None:
        self._view, self._clock = view, clock
        self._at: float | None = None
        self._period = 0.0
        self._stale = False

    def reading(self) -> Machine | None:
        """The latest, where it is new. A machine that cannot be read any more is not critical for ever: it is reported
        as well, once."""
        state = self._view.state
        if state is None:
            return None
        if state.at == self._at:
            limit = max(_LEAST_STALE_SECONDS, _STALE_READINGS * self._period)
            if self._stale or self._clock() - state.at < limit:
                return None
            self._stale = True
            return Machine(False, False, None)
        self._period = state.at - self._at if self._at is not None else 0.0
        self._at, self._stale = state.at, False
        pressure, thermal = state.sample.memory_pressure, state.sample.thermal_level
        return Machine(
            None if pressure is None else pressure is MemoryPressure.CRITICAL,
            None if thermal is None else thermal >= ThermalLevel.HEAVY,
            state.swap_ins,
        )


class SignalFeed:
    """One thread's. `judge` False: only the canaries ask for anything."""

    def __init__(
        self,
        requests: RequestFeed,
        machine: MachineFeed,
        guard: Guard,
        ladder: Sequence[LadderLevel],
        clock: SteadyClock,
        *,
        judge: bool = True,
        frozen: Mapping[StreamKey, Baseline] | None = None,
    ) -> None:
        """`frozen` baselines come from a file: they are never forgotten."""
        self._requests, self._machine, self.guard = requests, machine, guard
        self._ladder, self._clock, self._judge = tuple(ladder), clock, judge
        self._frozen = dict(frozen or {})
        self._anew_at = float("-inf")

    def look(self, now: float) -> None:
        """Takes in what there is."""
        for event in self._requests.take():
            at = min(self._clock.of(event.at), now)
            if isinstance(event, Failed):
                self.guard = self.guard.failed(event.cause, at)
            elif (drafter := event.plan.drafter) is not None and self._counts(event):
                self.guard = self.guard.finished(at, drafter, event.workload, event.counts)
        reading = self._machine.reading()
        if reading is not None:
            self.guard = self.guard.machine(reading, now)
        self.guard = self.guard.advance(now)

    def canaries(self, report: CanaryReport) -> None:
        self.guard = self.guard.canaries(report)

    def signals(self, now: float) -> tuple[Signal, ...]:
        found = self.guard.signals(now)
        return found if self._judge else tuple(signal for signal in found if signal.cause is Cause.QUALITY)

    def anew(self, position: int, now: float) -> None:
        """Another level is in force, or the draft is another: requests from before count no more."""
        self.guard = self.guard.stepped(now, position)
        self._anew_at = now

    def forget(self) -> None:
        """The drafts with weights are others on purpose: what was learnt of the old ones is no baseline any more."""
        kept = {kind: stream for kind, stream in self.guard.streams.items() if kind[0] == PROMPT_LOOKUP}
        frozen = {kind: Cusum(baseline) for kind, baseline in self._frozen.items()}
        self.guard = replace(self.guard, streams={**frozen, **kept})

    def _counts(self, event: Ended) -> bool:
        """Whether its plan is of the level in force, and it began since that is so."""
        level, plan = self._ladder[self.guard.position], event.plan
        same = plan.level is level.kind and plan.max_draft_tokens <= level.max_draft_tokens
        return same and self._clock.of(event.arrival) >= self._anew_at
