"""Which drafters' weights are in memory: those of the rung that is stood on, of the one that is climbed to, and what a
probe has borrowed. All else is let go of."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

from draftd.core import DRAFT_MODEL, DrafterName, FallbackLevel
from draftd.errors import DraftdError, NotServing, QueueFull
from draftd.fallback.ladder import Rung
from draftd.fallback.seams import EngineControl

log = logging.getLogger(__name__)


LOAD_SECONDS = 120.0  # a draft that is not loaded by then is taken not to be had


_AGAIN_SECONDS = 30.0  # after weights could not be loaded, until they are tried again unasked


def needed(rung: Rung) -> frozenset[DrafterName]:
    """What requests may draft with on this rung. Down to SHORT_BLOCK a caller may name the draft, whatever the rung's
    own drafter is."""
    if rung.drafter is None:
        return frozenset()
    if rung.level >= FallbackLevel.SHORT_BLOCK:
        return frozenset({rung.drafter, DRAFT_MODEL})
    return frozenset({rung.drafter})


class Residency:
    """Any thread; only `borrow` waits. `clock` is monotonic."""

    def __init__(
        self,
        engine: EngineControl,
        *,
        load_seconds: float = LOAD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._seconds, self._clock = engine, load_seconds, clock
        self._lock = threading.Lock()
        self._own: frozenset[DrafterName] = frozenset()
        self._ahead: frozenset[DrafterName] = frozenset()
        self._borrowed: Counter[DrafterName] = Counter()
        self._revoked: Counter[DrafterName] = Counter()  # of those
        self._asked: frozenset[DrafterName] | None = None  # of the engine, last
        self._answer: Future[int] | None = None
        self._failed_at: float | None = None
        self._told: Future[int] | None = None  # the last answer that was looked at by `tend`

    def stand(self, rung: Rung) -> None:
        """This rung's weights, and no more than them and what is borrowed."""
        with self._lock:
            self._own, self._ahead = needed(rung), frozenset()
        self.tend()

    def revoke(self) -> None:
        """What is borrowed now is let go of too: its borrowers' requests go on autoregressively."""
        with self._lock:
            self._revoked = Counter(self._borrowed)
        self.tend()

    def prepare(self, rung: Rung) -> Future[int]:
        """This rung's weights too, until `stand` is called. The future ends when they are there."""
        with self._lock:
            self._ahead = needed(rung)
            return self._ask(retry=True)

    @contextlib.contextmanager
    def borrow(self, drafter: DrafterName | None) -> Iterator[None]:
        """These weights too, meanwhile. Raises NotServing, ModelLoadError or TimeoutError where they cannot be had."""
        if drafter is None:
            yield
            return
        with self._lock:
            self._borrowed[drafter] += 1
        try:
            with self._lock:
                answer = self._ask(retry=True)
            answer.result(self._seconds)
            yield
        finally:
            with self._lock:
                self._borrowed[drafter] -= 1
                self._revoked[drafter] = min(self._revoked[drafter], self._borrowed[drafter])
            self.tend()

    def tend(self) -> None:
        """Asks the engine for what is wanted, where it was not asked yet: while it loads it takes no wishes."""
        with self._lock:
            answer = self._ask(retry=False)
        if not answer.done() or answer is self._told or answer.cancelled():
            return
        self._told = answer
        if (error := answer.exception()) is not None and not isinstance(error, (NotServing, QueueFull)):
            log.warning("weights of %s cannot be held: %s", ", ".join(sorted(self._own)) or "no drafter", error)

    def _ask(self, *, retry: bool) -> Future[int]:
        """What becomes of what is wanted now. Under the lock."""
        wanted = self._own | self._ahead | frozenset(self._borrowed - self._revoked)
        again = retry or self._failed_at is None or self._clock() - self._failed_at >= _AGAIN_SECONDS
        failed = self._answer is not None and self._answer.done() and self._answer.exception() is not None
        if self._answer is not None and wanted == self._asked and not (failed and again):
            return self._answer
        try:
            answer = self._engine.keep(wanted)
        except DraftdError as error:
            self._asked = self._answer = None
            answer = Future()
            answer.set_exception(error)
            return answer
        self._asked, self._answer = wanted, answer
        answer.add_done_callback(self._kept)
        return answer

    def _kept(self, done: Future[int]) -> None:
        """On the engine thread, or on the one that asks where it is done already: takes no lock."""
        failed = done.cancelled() or done.exception() is not None
        self._failed_at = self._clock() if failed else None


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


def absent(drafter: DrafterName, engine: EngineControl) -> str:
    """Why it cannot be had; empty where it can, and while nobody knows yet."""
    try:
        info = engine.info
    except DraftdError:
        return ""
    if drafter in info.drafters:
        return ""
    return info.why_no(drafter) or f"{drafter} is not configured"


def absentees(ladder: Sequence[Rung], engine: EngineControl) -> dict[DrafterName, str]:
    """All of a ladder's, with the reason."""
    kinds = dict.fromkeys(rung.drafter for rung in ladder if rung.drafter is not None)
    return {kind: why for kind in kinds if (why := absent(kind, engine))}
