"""Logs that cannot be flooded and still show the present state: changes of a state, outages, and lines by reason."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from draftd.token_bucket import TokenBucket

S = TypeVar("S")

_MOST_CHANGES, _CHANGE_SECONDS = 10, 30.0  # changes at once; seconds between two later ones
_MOST_ORIGINS = 64  # origins with a line of one reason in an interval


class LimitedChanges(Generic[S]):
    """Passes on changes of a state: ten at once, then the latest one every half minute. `tell` receives the present
    state, and the number of changes that were left out since its last call. A change that has to wait is passed on by a
    later call of `settle`. One caller at a time."""

    def __init__(self, tell: Callable[[S, int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._allowance = tell, TokenBucket(1 / _CHANGE_SECONDS, _MOST_CHANGES, clock=clock)
        self._untold = 0  # changes that were not passed on
        self._latest: S

    def change(self, state: S) -> None:
        """Sets the present state."""
        self._latest = state
        self._untold += 1
        self.settle()

    def settle(self) -> float | None:
        """Passes on the latest state if that is allowed now. Returns the seconds until it is; None if there is nothing
        to pass on."""
        if not self._untold:
            return None
        if wait := self._allowance.take():
            return wait
        left_out, self._untold = self._untold - 1, 0
        self._tell(self._latest, left_out)
        return None


class OutageLog:
    """Logs a failure once for each cause, until it is over. Call `report` for every failure and `clear` for every
    success: both also write a line that the rate limit has delayed. One caller at a time."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._cause: Hashable = None  # None: no failure
        self._changes = LimitedChanges(self._write, clock)

    def report(
        self, text: str, cause: Hashable = "", *, level: int = logging.WARNING, error: BaseException | None = None
    ) -> None:
        """Logs a failure, unless one with this cause was the last."""
        if cause != self._cause:
            self._cause = cause
            self._changes.change((level, text, error))
        self._changes.settle()

    def clear(self, text: str) -> None:
        """Logs the end of a failure, if there was one."""
        if self._cause is not None:
            self._cause = None
            self._changes.change((logging.INFO, text, None))
        self._changes.settle()

    def _write(self, line: tuple[int, str, BaseException | None], left_out: int) -> None:
        level, text, error = line
        self._log.log(level, "%s%s", text, changes_left_out(left_out), exc_info=error)


def changes_left_out(count: int) -> str:
    """Describes the changes that were not logged; empty if there were none."""
    return f" ({count} more changes since the last line)" if count else ""


class RateLimitedLog:
    """Writes one line per reason, origin and interval, and at most `most` lines per reason and interval. Any thread.
    Not for changes of a state, whose last line it may leave out: see `LimitedChanges`."""

    def __init__(
        self,
        log: logging.Logger,
        seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        most: int = _MOST_ORIGINS,
    ) -> None:
        self._log, self._seconds, self._clock, self._most = log, seconds, clock, most
        self._lock = threading.Lock()
        self._written: dict[
            str, OrderedDict[str, float]
        ] = {}  # by reason: time of each origin's last line, oldest first
        self._left_out: Counter[str] = Counter()  # by reason: lines that were left out

    def write(
        self, level: int, reason: str, text: str, origin: str = "", *, error: BaseException | None = None
    ) -> None:
        """Logs the text and the number of lines with this reason left out since the last, or leaves the text out.
        `reason`: from a small fixed set, because each reason stays in memory. `origin`: the source of the text, such
        as a peer's address."""
        now = self._clock()
        with self._lock:
            written = self._written.setdefault(reason, OrderedDict())
            while written and now - next(iter(written.values())) >= self._seconds:
                written.popitem(last=False)
            if origin in written or len(written) >= self._most:
                self._left_out[reason] += 1
                return
            written[origin] = now
            left_out = self._left_out.pop(reason, 0)
        more = f" ({left_out} more of {reason} since the last one)" if left_out else ""
        self._log.log(level, "%s%s", text, more, exc_info=error)
