"""Logs that cannot be flooded: a line when an outage begins and when it ends, or one a reason and interval."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable


class OutageLog:
    """Logs what does not work once, until it works again. One caller at a time."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lasts = False

    def began(self, text: str, *, level: int = logging.WARNING, error: BaseException | None = None) -> None:
        """It does not work: logged, unless it was already."""
        if not self._lasts:
            self._log.log(level, "%s", text, exc_info=error)
        self._lasts = True

    def ended(self, text: str = "") -> None:
        """It works: `text` is logged where it did not before."""
        if self._lasts and text:
            self._log.info("%s", text)
        self._lasts = False


class RateLimitedLog:
    """Writes one line per reason and interval. Any thread. `reason` is one of a few: each is remembered for good."""

    def __init__(self, log: logging.Logger, seconds: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._seconds, self._clock = log, seconds, clock
        self._lock = threading.Lock()
        self._written: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def write(self, level: int, reason: str, text: str, *, error: BaseException | None = None) -> None:
        """Logs it, with how many of its kind were left out before; or leaves it out itself."""
        now = self._clock()
        with self._lock:
            if now - self._written.get(reason, float("-inf")) < self._seconds:
                self._left_out[reason] += 1
                return
            self._written[reason] = now
            left_out = self._left_out.pop(reason, 0)
        more = f" ({left_out} more of {reason} since the last one)" if left_out else ""
        self._log.log(level, "%s%s", text, more, exc_info=error)
