"""What the daemon sees for itself: feeds the guard with requests, errors, the machine and the canaries' word."""

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
    RoundResult,
    WorkloadClass,
)
from draftd.fallback.clock import SteadyClock
from draftd.fallback.drift import Baseline
from draftd.fallback.ladder import Demand, Rung, Signal
from draftd.fallback.reports import CanaryReport
from draftd.fallback.signals import Finished, Guard, GuardSettings, Kind, Machine
from draftd.hardware.sample import MemoryPressure, ThermalLevel
from draftd.hardware.state import HardwareView


class Failure(enum.Enum):
    VERIFIER = "verifier"
    DRAFTER = "drafter"


@dataclass(frozen=True, slots=True)
class Ended:
    """A request of a client's that drafted as its plan has it, or what one drafter did of it: `plan` names whose
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
    """A round, or a draft, that failed. `at` is monotonic."""

    at: float
    what: Failure


class Intake:
    """An EngineObserver. Each call takes constant time and never waits: when it is full, the oldest is forgotten."""

    def __init__(self, capacity: int = 4096, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: deque[Ended | Failed] = deque(maxlen=capacity)
        self._rows: dict[Failure, set[str]] = {what: set() for what in Failure}  # of the round that failed last
        self._shared: dict[str, dict[DrafterName, DraftCounts]] = {}  # requests that several drafters may serve, by id
        self.woken = threading.Event()  # set where something must not wait for the controller's next look

    def take(self) -> list[Ended | Failed]:
        """All since the last time, oldest first. One thread's."""
        taken: list[Ended | Failed] = []
        while self._heard:
            taken.append(self._heard.popleft())
        return taken

    def on_round(self, request: DecodeRequest, result: RoundResult, gap: float | None) -> None:
        if not result.drafted:
            return
        self._forget_rows()  # a failed round is followed by plain ones, in which its rows are taken in anew
        plan = request.plan
        if plan.alternatives and plan.drafter is not None and request.origin is Origin.CLIENT:
            self._shared.setdefault(request.id, {}).setdefault(plan.drafter, DraftCounts()).add(result)

    def on_drafter_error(self, request: DecodeRequest, message: str) -> None:
        self._fail(request, Failure.DRAFTER)

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        self._fail(request, Failure.VERIFIER)

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        self._forget_rows()
        counts, plan = outcome.stats.counts, request.plan
        shared = self._shared.pop(request.id, {})
        if request.origin is not Origin.CLIENT or not counts.drafts or outcome.lowered:
            return  # a lowered one drafted at two rungs: its sums are neither's
        at = self._clock()
        # By drafter, each by its own sums: what one is worth says nothing of another that takes its place.
        for drafter, one in shared.items() or [(plan.drafter, counts)]:
            own = plan if plan.drafter == drafter else replace(plan, drafter=drafter, alternatives=frozenset())
            self._heard.append(
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

    def _forget_rows(self) -> None:
        for rows in self._rows.values():
            rows.clear()

    def _fail(self, request: DecodeRequest, what: Failure) -> None:
        """The rows of one round are told one after the other: together they are one failure."""
        if request.origin is not Origin.CLIENT:
            return
        rows = self._rows[what]
        if not rows or request.id in rows:
            rows.clear()
            self._heard.append(Failed(self._clock(), what))
            self.woken.set()
        rows.add(request.id)


_LEAST_STALE_SECONDS, _STALE_READINGS = 60.0, 3  # without a reading for so long, and for as many periods


class MachineFeed:
    """One thread's. `clock` is monotonic, as the readings' times are."""

    def __init__(self, view: HardwareView, clock: Callable[[], float] = time.monotonic) -> None:
        self._view, self._clock = view, clock
        self._at: float | None = None
        self._period = 0.0
        self._stale = False

    def reading(self) -> Machine | None:
        """The latest, where it is new. A machine that cannot be read any more is not critical for ever: it is told to
        be well, once."""
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


class Senses:
    """One thread's. `judge` False: only the canaries' word asks for anything."""

    def __init__(
        self,
        intake: Intake,
        feed: MachineFeed,
        guard: Guard,
        ladder: Sequence[Rung],
        settings: GuardSettings,
        clock: SteadyClock,
        *,
        judge: bool = True,
        frozen: Mapping[Kind, Baseline] | None = None,
    ) -> None:
        """`frozen` baselines are a person's word: they are never forgotten."""
        self._intake, self._feed, self._guard = intake, feed, guard
        self._ladder, self._settings, self._clock, self._judge = tuple(ladder), settings, clock, judge
        self._frozen = dict(frozen or {})
        self._rung = guard.rung or 0
        self._anew_at = float("-inf")

    @property
    def baselines(self) -> Mapping[Kind, Baseline]:
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
        for heard in self._intake.take():
            at = min(self._clock.of(heard.at), now)
            if isinstance(heard, Ended):
                finished = self._finished(heard, at) if self._clock.of(heard.arrival) >= self._anew_at else None
                guard = guard if finished is None else guard.finished(finished, settings)
            elif heard.what is Failure.VERIFIER:
                guard = guard.verifier_error(at)
            else:
                guard = guard.drafter_error(at)
        reading = self._feed.reading()
        if reading is not None:
            guard = guard.machine(reading, now, settings)
        self._guard = guard.advance(now, settings)

    def canaries(self, report: CanaryReport, now: float) -> None:
        self._guard = self._guard.canaries(report, now)

    def demands(self, now: float) -> tuple[Demand, ...]:
        found = self._guard.demands(now, self._settings)
        return found if self._judge else tuple(demand for demand in found if demand.signal is Signal.QUALITY)

    def anew(self, rung: int, now: float) -> None:
        """The ladder stands elsewhere, or the draft is another: requests from before count no more."""
        self._guard = self._guard.stepped(now, rung)
        self._rung, self._anew_at = rung, now

    def forget(self) -> None:
        """The drafts with weights are others on purpose: what was learnt of the old ones is no norm any more."""
        lookup = PROMPT_LOOKUP
        kept = {kind: stream for kind, stream in self._guard.streams.items() if kind[0] == lookup}
        self._guard = replace(self._guard, streams={**Guard.new(self._frozen).streams, **kept})

    def _finished(self, heard: Ended, at: float) -> Finished | None:
        """None where its plan is not of the rung that is stood on."""
        rung, plan = self._ladder[self._rung], heard.plan
        if plan.level is not rung.level or plan.max_draft_tokens > rung.max_draft_tokens or plan.drafter is None:
            return None
        return Finished(
            at,
            heard.accepted,
            heard.rollbacks,
            heard.drafts,
            heard.break_even_tokens,
            plan.drafter,
            heard.workload,
            self._rung,
        )
