"""Feeds the guard with what the daemon sees: requests, errors, the machine, and the canaries' verdict."""

from __future__ import annotations

import enum
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
from draftd.fallback.drift import Baseline, StreamKey
from draftd.fallback.ladder import LadderLevel, Signal, Source
from draftd.fallback.probes import CanaryReport
from draftd.fallback.signals import Finished, Guard, GuardSettings, Machine
from draftd.hardware.sample import MemoryPressure, ThermalLevel
from draftd.hardware.state import HardwareView

_LEAST_STALE_SECONDS, _STALE_READINGS = 60.0, 3  # without a reading for so long, and for as many periods


class SteadyClock:
    """The ladder's clock: seconds since 1970 as they were at the start, and monotonic since. A clock that is set
    meanwhile changes nothing. Any thread."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def __call__(self) -> float:
        return self._offset + self._monotonic()

    def of(self, monotonic: float) -> float:
        """What this clock showed at a time of `time.monotonic()`."""
        return self._offset + monotonic


class Failure(enum.Enum):
    VERIFIER = "verifier"
    DRAFTER = "drafter"


@dataclass(frozen=True, slots=True)
class Ended:
    """A client's request that drafted as its plan has it, or what one drafter did of it: `plan` names the drafter whose
    figures these are. Times are monotonic."""

    at: float
    arrival: float
    plan: DecodePlan
    workload: WorkloadClass
    accepted: int
    rollbacks: int
    drafts: int
    break_even_tokens: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A speculative step, or a draft, that failed. `at` is monotonic."""

    at: float
    what: Failure


class RequestFeed:
    """An EngineObserver. Each call takes constant time and never waits: when it is full, the oldest is forgotten."""

    def __init__(self, capacity: int = 4096, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: deque[Ended | Failed] = deque(maxlen=capacity)
        self._failed: dict[Failure, set[str]] = {
            what: set() for what in Failure
        }  # requests of the step that failed last
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
        self._forget_failed()  # a failed step is followed by plain ones, in which its sequences are prefilled anew
        plan = request.plan
        if plan.alternatives and plan.drafter is not None and request.origin is Origin.CLIENT:
            self._shared.setdefault(request.id, {}).setdefault(plan.drafter, DraftCounts()).add(result)

    def on_drafter_error(self, request: DecodeRequest, message: str) -> None:
        self._fail(request, Failure.DRAFTER)

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        self._fail(request, Failure.VERIFIER)

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        self._forget_failed()
        counts, plan = outcome.stats.counts, request.plan
        shared = self._shared.pop(request.id, {})
        if request.origin is not Origin.CLIENT or not counts.drafts or outcome.lowered:
            return  # a lowered one drafted at two levels: its sums are neither's
        at = self._clock()
        # By drafter, each by its own sums: what one is worth says nothing of another that takes its place.
        for drafter, one in shared.items() or [(plan.drafter, counts)]:
            own = plan if plan.drafter == drafter else replace(plan, drafter=drafter, alternatives=frozenset())
            self._events.append(
                Ended(
                    at,
                    request.arrival,
                    own,
                    request.workload,
                    one.accepted,
                    one.rollbacks,
                    one.drafts,
                    one.break_even_tokens,
                )
            )

    def _forget_failed(self) -> None:
        for failed in self._failed.values():
            failed.clear()

    def _fail(self, request: DecodeRequest, what: Failure) -> None:
        """The sequences of one step are reported one after the other: together they are one failure."""
        if request.origin is not Origin.CLIENT:
            return
        failed = self._failed[what]
        if not failed or request.id in failed:
            failed.clear()
            self._events.append(Failed(self._clock(), what))
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
        pressure, thermal = state.sample.memory_pressure, state.thermal_level
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
        feed: MachineFeed,
        guard: Guard,
        ladder: Sequence[LadderLevel],
        settings: GuardSettings,
        clock: SteadyClock,
        *,
        judge: bool = True,
        frozen: Mapping[StreamKey, Baseline] | None = None,
    ) -> None:
        """`frozen` baselines come from a file: they are never forgotten."""
        self._requests, self._feed, self._guard = requests, feed, guard
        self._ladder, self._settings, self._clock, self._judge = tuple(ladder), settings, clock, judge
        self._frozen = dict(frozen or {})
        self._position = guard.position or 0
        self._anew_at = float("-inf")

    @property
    def baselines(self) -> Mapping[StreamKey, Baseline]:
        return self._guard.learnt()

    @property
    def quality(self) -> str:
        """What the canaries complain of; empty where they do not."""
        return self._guard.quality

    @property
    def complaint(self) -> bool:
        return bool(self._guard.quality)

    @property
    def drift(self) -> Mapping[str, float]:
        return self._guard.drift(self._settings)

    def look(self, now: float) -> None:
        """Takes in what there is."""
        guard, settings = self._guard, self._settings
        for event in self._requests.take():
            at = min(self._clock.of(event.at), now)
            if isinstance(event, Ended):
                finished = self._finished(event, at) if self._clock.of(event.arrival) >= self._anew_at else None
                guard = guard if finished is None else guard.finished(finished, settings)
            elif event.what is Failure.VERIFIER:
                guard = guard.verifier_error(at)
            else:
                guard = guard.drafter_error(at)
        reading = self._feed.reading()
        if reading is not None:
            guard = guard.machine(reading, now, settings)
        self._guard = guard.advance(now, settings)

    def canaries(self, report: CanaryReport, now: float) -> None:
        self._guard = self._guard.canaries(report, now)

    def signals(self, now: float) -> tuple[Signal, ...]:
        found = self._guard.signals(now, self._settings)
        return found if self._judge else tuple(signal for signal in found if signal.source is Source.CANARIES)

    def anew(self, position: int, now: float) -> None:
        """Another level is in force, or the draft is another: requests from before count no more."""
        self._guard = self._guard.stepped(now, position)
        self._position, self._anew_at = position, now

    def forget(self) -> None:
        """The drafts with weights are others on purpose: what was learnt of the old ones is no baseline any more."""
        lookup = PROMPT_LOOKUP
        kept = {kind: stream for kind, stream in self._guard.streams.items() if kind[0] == lookup}
        self._guard = replace(self._guard, streams={**Guard.new(self._frozen).streams, **kept})

    def _finished(self, event: Ended, at: float) -> Finished | None:
        """None where its plan is not of the level in force."""
        level, plan = self._ladder[self._position], event.plan
        if plan.level is not level.kind or plan.max_draft_tokens > level.max_draft_tokens or plan.drafter is None:
            return None
        return Finished(
            at,
            event.accepted,
            event.rollbacks,
            event.drafts,
            event.break_even_tokens,
            plan.drafter,
            event.workload,
            self._position,
        )
