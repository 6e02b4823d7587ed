"""A step up waits until the weights that it needs are there."""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from concurrent.futures import Future

from draftd.control.residency import LOAD_SECONDS, Residency
from draftd.errors import NotServing, QueueFull
from draftd.policy.ladder import Rung

log = logging.getLogger(__name__)


class Weights(enum.Enum):
    THERE = "there"
    COMING = "coming"
    MISSING = "missing"


class Ascent:
    """One thread's. Times are the ladder's clock. After a failure nothing is tried again for `again_seconds`."""

    def __init__(
        self,
        residency: Residency,
        ladder: Sequence[Rung],
        *,
        again_seconds: float,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        self._residency, self._ladder = residency, tuple(ladder)
        self._again, self._seconds = again_seconds, load_seconds
        self._target: int | None = None
        self._answer: Future[int] | None = None
        self._deadline = 0.0
        self._not_before = float("-inf")

    def weights(self, target: int, now: float) -> Weights:
        """Of that rung; the first time that they are asked for they begin to be loaded."""
        if now < self._not_before:
            return Weights.COMING
        if self._answer is None or self._target != target:
            self._target, self._answer = target, self._residency.prepare(self._ladder[target])
            self._deadline = now + self._seconds
        answer = self._answer
        if not answer.done() and now < self._deadline:
            return Weights.COMING
        error = answer.exception() if answer.done() and not answer.cancelled() else TimeoutError("they took too long")
        if error is None:
            self._forget()
            return Weights.THERE
        self._forget()
        if isinstance(error, (NotServing, QueueFull)):  # the engine loads, ends, or has no time: no word on the draft
            return Weights.COMING
        log.warning("no step up to %s: its drafter cannot be loaded: %s", self._ladder[target].label, error)
        self._not_before = now + self._again
        return Weights.MISSING

    def give_up(self, standing: int) -> None:
        """Nothing is climbed to any more: lets go of what was loaded for it."""
        if self._answer is not None:
            self._forget()
            self._residency.stand(self._ladder[standing])

    def _forget(self) -> None:
        self._target = self._answer = None
