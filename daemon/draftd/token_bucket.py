"""A token bucket: what may be spent in the long run, and at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class TokenBucket:
    """So much in a second, in the long run, and more at once. One thread."""

    def __init__(
        self,
        rate: float,
        most: float,
        first: float | None = None,
        *,
        longest: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most`: at once. `first`: likewise, to begin with; None: no less. `longest`: seconds that are waited for what
        was spent beyond it."""
        self._rate, self._most, self._least, self._clock = rate, most, -rate * longest, clock
        self._balance, self._since = most if first is None else first, clock()

    def earn(self, more: float) -> None:
        self._balance = min(self._most, self._balance + more)

    def spend(self, some: float = 1.0) -> float:
        """Seconds to wait before the next."""
        now = self._clock()
        balance = min(self._most, self._balance + self._rate * max(0.0, now - self._since)) - some
        self._balance, self._since = max(balance, self._least), now
        return max(0.0, -self._balance / self._rate)

    def wait(self) -> float:
        """Seconds until one is there: 0 now."""
        seconds = self.spend()
        self.earn(1.0)
        return seconds

    def take(self) -> float:
        """Spends one, where it is there; what `wait` says otherwise."""
        if seconds := self.spend():
            self.earn(1.0)
        return seconds
