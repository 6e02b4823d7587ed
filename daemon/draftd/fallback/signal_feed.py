"""Collects the events that signals are made of: requests, errors and the machine's state."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from draftd.core import DecodeRequest, DrafterName, FallbackLevel, Origin, WorkloadClass
from draftd.counts import DraftCounts, StepCounts
from draftd.engine.observer import EngineObserver
from draftd.fallback.ladder import Cause
from draftd.fallback.remote_guard import RemoteAnswer
from draftd.fallback.signals import MachineReading
from draftd.hardware.state import HardwareView, MemoryPressure, ThermalLevel
from draftd.outcome import Outcome
from draftd.strategies import Strategy

_LEAST_STALE_SECONDS, _STALE_READINGS = 60.0, 3  # seconds, and periods, without a reading


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A client's finished request that drafted as planned, by `drafter`, at `level` and with up to `max_draft_tokens`.
    Times are monotonic."""

    at: float
    arrival: float
    level: FallbackLevel
    max_draft_tokens: int
    drafter: DrafterName
    workload: WorkloadClass
    counts: DraftCounts


@dataclass(frozen=True, slots=True)
class DraftFailure:
    """A failed speculative step or draft. `at` is monotonic."""

    at: float
    cause: Cause


class RequestFeed(EngineObserver):
    """An EngineObserver that queues events. Each call takes constant time and never waits: when full, the oldest is
    dropped."""

    def __init__(self, capacity: int = 4096, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: deque[FinishedRequest | DraftFailure | RemoteAnswer] = deque(maxlen=capacity)
        self._failed: dict[Cause, set[str]] = {}  # requests of the last failed step
        self._shared: dict[str, dict[DrafterName, DraftCounts]] = {}  # by id: requests that several drafters may serve
        self.woken = threading.Event()  # set if an event must not wait for the controller's next look

    def take(self) -> list[FinishedRequest | DraftFailure | RemoteAnswer]:
        """Returns all events since the last call, oldest first. One caller at a time."""
        taken: list[FinishedRequest | DraftFailure | RemoteAnswer] = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        if not result.drafted:
            return
        self._failed.clear()  # a failed step is followed by plain ones, while its sequences prefill again
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
            return  # judged by another target, or made by another daemon: they say nothing about the ladder's drafts
        if request.origin is not Origin.CLIENT or not counts.drafts or outcome.lowered or (own := plan.drafter) is None:
            return  # a lowered request drafted at two levels: its sums belong to neither
        at, level, most = self._clock(), plan.level, plan.max_draft_tokens
        # Each drafter by its own sums: one says nothing about another that takes its place.
        for drafter, drafter_counts in shared.items() or [(own, counts)]:
            self._events.append(
                FinishedRequest(at, request.arrival, level, most, drafter, request.workload, drafter_counts)
            )

    def _remote(self, request: DecodeRequest, outcome: Outcome) -> None:
        """Queues a client's request that was sent to the remote's target."""
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
        """Queues a failure. The sequences of one step are reported one by one, and count as one failure."""
        if request.origin is not Origin.CLIENT:
            return
        failed = self._failed.setdefault(cause, set())
        if not failed or request.id in failed:
            failed.clear()
            self._events.append(DraftFailure(self._clock(), cause))
            self.woken.set()
        failed.add(request.id)


class MachineFeed:
    """Turns hardware readings into events. One caller at a time. `clock` is monotonic, like the readings' times."""

    def __init__(self, view: HardwareView, clock: Callable[[], float] = time.monotonic) -> None:
        self._view, self._clock = view, clock
        self._at: float | None = None
        self._period = 0.0
        self._stale = False

    def reading(self) -> MachineReading | None:
        """Returns the latest reading if it is new. If readings stop, returns an empty one once, so that a machine does
        not stay critical forever."""
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
