"""What the engine tells the guard: ends of requests and failures, kept until the controller's thread takes them."""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from draftd.core import (
    DecodePlan,
    DecodeRequest,
    DraftCounts,
    DrafterKind,
    Origin,
    Outcome,
    RoundResult,
    WorkloadClass,
)


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
        self._shared: dict[str, dict[DrafterKind, DraftCounts]] = {}  # requests that several drafters may serve, by id
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
            own = plan if plan.drafter is drafter else replace(plan, drafter=drafter, alternatives=frozenset())
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
