"""Which drafters' weights are in memory: those of the rung that is stood on, of the one that is climbed to, and what a
probe has borrowed. All else is let go of."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from draftd.control.seams import EngineControl
from draftd.core import DrafterKind, FallbackLevel
from draftd.errors import DraftdError, NotServing, QueueFull
from draftd.policy.ladder import Rung

log = logging.getLogger(__name__)

LOAD_SECONDS = 120.0  # a draft that is not loaded by then is taken not to be had
_AGAIN_SECONDS = 30.0  # after weights could not be loaded, until they are tried again unasked


def needed(rung: Rung) -> frozenset[DrafterKind]:
    """What requests may draft with on this rung. Down to SHORT_BLOCK a caller may name the draft, whatever the rung's
    own drafter is."""
    if rung.drafter is None:
        return frozenset()
    if rung.level >= FallbackLevel.SHORT_BLOCK:
        return frozenset({rung.drafter, DrafterKind.DRAFT_MODEL})
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
        self._own: frozenset[DrafterKind] = frozenset()
        self._ahead: frozenset[DrafterKind] = frozenset()
        self._borrowed: Counter[DrafterKind] = Counter()
        self._revoked: Counter[DrafterKind] = Counter()  # of those
        self._asked: frozenset[DrafterKind] | None = None  # of the engine, last
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
    def borrow(self, drafter: DrafterKind | None) -> Iterator[None]:
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
