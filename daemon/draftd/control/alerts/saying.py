"""A log that a flood cannot fill: one line a reason and a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable


class Saying:
    """Any thread. `reason` is one of a few: each is remembered for good."""

    def __init__(self, log: logging.Logger, seconds: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def say(self, level: int, reason: str, text: str, *, error: BaseException | None = None) -> None:
        """Says it, and how much like it was left unsaid before; or leaves it unsaid itself."""
        now = self._clock()
        with self._lock:
            if reason in self._said and now - self._said[reason] < self._seconds:
                self._unsaid[reason] = self._unsaid.get(reason, 0) + 1
                return
            self._said[reason] = now
            unsaid = self._unsaid.pop(reason, 0)
        more = f" ({unsaid} more of {reason} since this was last said)" if unsaid else ""
        self._log.log(level, "%s%s", text, more, exc_info=error)
