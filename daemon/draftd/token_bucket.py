"""A token bucket: limits a rate, and the size of bursts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class TokenBucket:
    """Allows `rate` units per second in the long run, and bursts of `most`. One thread."""

    def __init__(
        self,
        rate: float,
        most: float,
        first: float | None = None,
        *,
        longest: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most`: largest burst. `first`: units at the start, `most` if None. `longest`: the longest wait after
        overspending, in seconds."""
        self._rate, self._most, self._least, self._clock = rate, most, -rate * longest, clock
        self._balance, self._since = most if first is None else first, clock()

    def earn(self, more: float) -> None:
        self._balance = min(self._most, self._balance + more)

    def spend(self, some: float = 1.0) -> float:
        """Spends units, even if there are too few. Returns the seconds until the missing ones are earned; 0 if there
        were enough."""
        now = self._clock()
        balance = min(self._most, self._balance + self._rate * max(0.0, now - self._since)) - some
        self._balance, self._since = max(balance, self._least), now
        return max(0.0, -self._balance / self._rate)

    def wait(self) -> float:
        """Returns the seconds until a unit is available; 0 if one is available now. Spends nothing."""
        seconds = self.spend()
        self.earn(1.0)
        return seconds

    def take(self) -> float:
        """Spends a unit if one is available, and returns 0. Otherwise returns the seconds until one is available."""
        if seconds := self.spend():
            self.earn(1.0)
        return seconds
