"""Collects events for the guard: requests, errors and the machine's state."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from draftd.core import DecodeRequest, DrafterName, FallbackLevel, Origin, Outcome, WorkloadClass
from draftd.counts import DraftCounts, StepCounts
from draftd.engine.observer import EngineObserver
from draftd.fallback.ladder import Cause
from draftd.fallback.remote_guard import RemoteAnswer
from draftd.fallback.signals import MachineReading
from draftd.hardware.state import HardwareView, MemoryPressure, ThermalLevel
from draftd.strategies import Strategy

_LEAST_STALE_SECONDS, _STALE_READINGS = 60.0, 3  # without a reading for so long, and for as many periods


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """What `drafter` did of a client's request that drafted as its plan has it, at `level` and with at most so many
    tokens. Times are monotonic."""

    at: float
    arrival: float
    level: FallbackLevel
    max_draft_tokens: int
    drafter: DrafterName
    workload: WorkloadClass
    counts: DraftCounts


@dataclass(frozen=True, slots=True)
class DraftFailure:
    """A speculative step, or a draft, that failed. `at` is monotonic."""

    at: float
    cause: Cause


class RequestFeed(EngineObserver):
    """An EngineObserver. Each call takes constant time and never waits: when it is full, the oldest is forgotten."""

    def __init__(self, capacity: int = 4096, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: deque[FinishedRequest | DraftFailure | RemoteAnswer] = deque(maxlen=capacity)
        self._failed: dict[Cause, set[str]] = {}  # requests of the step that failed last
        self._shared: dict[str, dict[DrafterName, DraftCounts]] = {}  # requests that several drafters may serve, by id
        self.woken = threading.Event()  # set where something must not wait for the controller's next look

    def take(self) -> list[FinishedRequest | DraftFailure | RemoteAnswer]:
        """All since the last time, oldest first. One caller at a time."""
        taken: list[FinishedRequest | DraftFailure | RemoteAnswer] = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        if not result.drafted:
            return
        self._failed.clear()  # a failed step is followed by plain ones, in which its sequences are prefilled anew
        if result.strategy is not Strategy.LOCAL or request.peer is not None:
            return
        if request.plan.alternatives and result.drafter is not None and request.origin is Origin.CLIENT:
            self._shared.setdefault(request.id, {}).setdefault(result.drafter, DraftCounts()).add(result)

    def on_drafter_error(self, request: DecodeRequest, drafter: DrafterName | None, message: str) -> None:
        self._fail(request, Cause.DRAFTER_ERRORS)

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        self._fail(request, Cause.VERIFIER_ERRORS)

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        self._failed.clear()
        counts, plan = outcome.stats.counts, request.plan
        shared = self._shared.pop(request.id, {})
        if plan.strategy is not Strategy.LOCAL or request.peer is not None or outcome.failed_over:
            self._remote(request, outcome)
            return  # another target judged those drafts, or another daemon made them: they say nothing of the ladder's
        if request.origin is not Origin.CLIENT or not counts.drafts or outcome.lowered or plan.drafter is None:
            return  # a lowered one drafted at two levels: its sums are neither's
        at, level, most = self._clock(), plan.level, plan.max_draft_tokens
        # By drafter, each by its own sums: what one is worth says nothing of another that takes its place.
        for drafter, drafter_counts in shared.items() or [(plan.drafter, counts)]:
            self._events.append(
                FinishedRequest(at, request.arrival, level, most, drafter, request.workload, drafter_counts)
            )

    def _remote(self, request: DecodeRequest, outcome: Outcome) -> None:
        """One of the remote's target."""
        stats, at = outcome.stats, self._clock()
        if stats.remote is None or request.origin is not Origin.CLIENT:
            return
        if outcome.failed_over or outcome.unavailable is not None:
            self._events.append(RemoteAnswer(at, request.arrival, failed=True))
        elif request.plan.strategy is Strategy.SPECULATIVE and stats.first_token and stats.last_token:
            tokens, seconds = stats.counts.emitted - stats.first_chunk_tokens, stats.last_token - stats.first_token
            answer = RemoteAnswer(at, request.arrival, tokens=tokens, seconds=seconds, workload=request.workload)
            self._events.append(answer)
        else:
            self._events.append(RemoteAnswer(at, request.arrival))

    def _fail(self, request: DecodeRequest, cause: Cause) -> None:
        """The sequences of one step are reported one after the other: together they are one failure."""
        if request.origin is not Origin.CLIENT:
            return
        failed = self._failed.setdefault(cause, set())
        if not failed or request.id in failed:
            failed.clear()
            self._events.append(DraftFailure(self._clock(), cause))
            self.woken.set()
        failed.add(request.id)


class MachineFeed:
    """One caller at a time. `clock` is monotonic, as the readings' times are."""

    def __init__(self, view: HardwareView, clock: Callable[[], float] = time.monotonic) -> None:
        self._view, self._clock = view, clock
        self._at: float | None = None
        self._period = 0.0
        self._stale = False

    def reading(self) -> MachineReading | None:
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
            return MachineReading(False, False, None)
        self._period = state.at - self._at if self._at is not None else 0.0
        self._at, self._stale = state.at, False
        pressure, thermal = state.sample.memory_pressure, state.sample.thermal_level
        return MachineReading(
            None if pressure is None else pressure is MemoryPressure.CRITICAL,
            None if thermal is None else thermal >= ThermalLevel.HEAVY,
            state.swap_ins,
        )
