"""Keeps drafters' weights in memory: those of the level in force, of a level about to be stepped up to, and those
borrowed by a probe. All others are released."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

from draftd.core import MODEL_DRAFTERS, DrafterName, FallbackLevel, LadderLevel
from draftd.engine.handle import EngineHandle
from draftd.errors import DraftdError, NotServing, QueueFull

log = logging.getLogger(__name__)
LOAD_SECONDS = 120.0  # after this, a draft counts as unavailable
_AGAIN_SECONDS = 30.0  # before failed weights are tried again


def needed_drafters(level: LadderLevel) -> frozenset[DrafterName]:
    """Returns the drafters that requests may use at this level. Down to SHORT_BLOCK a client may name the draft model
    or the draft head, whatever the level's own drafter is. Either may stand in for the other at any level."""
    if (drafter := level.drafter) is None:
        return frozenset()
    if level.kind >= FallbackLevel.SHORT_BLOCK or drafter in MODEL_DRAFTERS:
        return frozenset({drafter, *MODEL_DRAFTERS})
    return frozenset({drafter})


class LoadedDrafters:
    """Loads and releases drafters. Any thread, one caller of `ready` at a time; only `borrow` waits. `clock` is
    monotonic."""

    def __init__(
        self,
        engine: EngineHandle,
        *,
        load_seconds: float = LOAD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._seconds, self._clock = engine, load_seconds, clock
        self._lock = threading.Lock()
        self._own: frozenset[DrafterName] = frozenset()
        self._ahead: frozenset[DrafterName] = frozenset()
        self._borrowed: Counter[DrafterName] = Counter()
        self._revoked: Counter[DrafterName] = Counter()  # how many of the borrowed ones were revoked
        self._wanted_before: frozenset[DrafterName] | None = None  # last requested from the engine
        self._answer: Future[int] | None = None
        self._failed_at: float | None = None
        # The level to step up to, its load, and the deadline.
        self._step_up: tuple[LadderLevel, Future[int], float] | None = None
        self._no_step_before = float("-inf")

    def hold(self, level: LadderLevel, *, revoke: bool = False) -> None:
        """Keeps only this level's weights and borrowed ones, and ends any step up. `revoke` also releases borrowed
        ones; the borrowers' requests go on autoregressively."""
        self._step_up = None
        with self._lock:
            self._own, self._ahead = needed_drafters(level), frozenset()
            if revoke:
                self._revoked = Counter(self._borrowed)
            self._ask(retry=False)

    def ready(self, level: LadderLevel, now: float, again_seconds: float) -> bool:
        """Whether the weights for a step up to `level` are loaded. The first call starts loading; they stay until
        `hold` is called. Weights that cannot be loaded are released, and not tried again for `again_seconds`. `now` is
        the ladder's clock."""
        if now < self._no_step_before:
            return False
        if self._step_up is None or self._step_up[0] != level:
            with self._lock:
                self._ahead = needed_drafters(level)
                self._step_up = level, self._ask(retry=True), self._clock() + LOAD_SECONDS
        _, answer, deadline = self._step_up
        if not answer.done() and self._clock() < deadline:
            return False
        self._step_up = None
        error = answer.exception() if answer.done() else TimeoutError("they took too long")
        if error is None or isinstance(error, (NotServing, QueueFull)):
            return error is None  # otherwise the engine is busy, which says nothing about the draft
        log.warning("no step up to %s: its drafter cannot be loaded: %s", level.label, error)
        self._no_step_before = now + again_seconds
        with self._lock:
            self._ahead = frozenset()
            self._ask(retry=False)
        return False

    @contextlib.contextmanager
    def borrow(self, drafter: DrafterName | None) -> Iterator[None]:
        """Keeps these weights loaded inside the block too. Raises NotServing, ModelLoadError or TimeoutError if they
        are unavailable."""
        if drafter is None:
            yield
            return
        with self._lock:
            self._borrowed[drafter] += 1
            answer = self._ask(retry=True)
        try:
            answer.result(self._seconds)
            yield
        finally:
            with self._lock:
                self._borrowed[drafter] -= 1
                self._revoked[drafter] = min(self._revoked[drafter], self._borrowed[drafter])
                self._ask(retry=False)

    def refresh(self) -> None:
        """Sends the wanted drafters to the engine if they were not sent yet: while loading it takes no orders."""
        with self._lock:
            self._ask(retry=False)

    def _ask(self, *, retry: bool) -> Future[int]:
        """Returns the future of loading the wanted drafters. Called with the lock held."""
        wanted = self._own | self._ahead | frozenset(self._borrowed - self._revoked)
        again = retry or self._failed_at is None or self._clock() - self._failed_at >= _AGAIN_SECONDS
        failed = self._answer is not None and self._answer.done() and self._answer.exception() is not None
        if self._answer is not None and wanted == self._wanted_before and not (failed and again):
            return self._answer
        try:
            answer = self._engine.keep(wanted)
        except DraftdError as error:
            self._wanted_before = self._answer = None
            answer = Future()
            answer.set_exception(error)
            return answer
        self._wanted_before, self._answer = wanted, answer
        answer.add_done_callback(self._note_answer)
        return answer

    def _note_answer(self, done: Future[int]) -> None:
        """Notes the engine's answer. Runs on the engine thread, or on the caller's if the future is already done, so it
        takes no lock."""
        error = done.exception()
        self._failed_at = None if error is None else self._clock()
        if error is not None and not isinstance(error, (NotServing, QueueFull)):
            log.warning("the weights of %s cannot be kept in memory: %s", self._own_names, error)

    @property
    def _own_names(self) -> str:
        """Names the level's drafters that the daemon has."""
        own = self._own
        with contextlib.suppress(DraftdError):
            own &= frozenset(self._engine.info.drafters)
        return ", ".join(sorted(own)) or "no drafter"


def why_missing(drafter: DrafterName | None, engine: EngineHandle) -> str:
    """Returns why the drafter is unavailable; empty if it or its stand-in is available, if it is None, or if it is
    unknown yet."""
    try:
        info = engine.info
    except DraftdError:
        return ""
    if drafter is None or info.stand_in(drafter) in info.drafters:
        return ""
    return info.why_no(drafter) or f"{drafter} is not configured"


def missing_drafters(ladder: Sequence[LadderLevel], engine: EngineHandle) -> dict[DrafterName, str]:
    """Returns the unavailable drafters of a ladder, and why."""
    kinds = dict.fromkeys(drafter for level in ladder if (drafter := level.drafter) is not None)
    return {kind: why for kind in kinds if (why := why_missing(kind, engine))}
