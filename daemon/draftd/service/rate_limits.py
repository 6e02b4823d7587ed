"""How fast a peer may send messages: a token bucket."""

from __future__ import annotations

import time


class Pace:
    """So many in a second, in the long run."""

    def __init__(self, rate: float, most: float, first: float | None = None) -> None:
        """`most`: at once. `first`: likewise, to begin with; None: no less."""
        self._rate, self._most = rate, most
        self._left, self._since = most if first is None else first, time.monotonic()

    def earned(self, more: float) -> None:
        self._left = min(self._most, self._left + more)

    def spent(self, some: float = 1.0) -> float:
        """Seconds to wait before the next."""
        now = time.monotonic()
        self._left = min(self._most, self._left + self._rate * (now - self._since)) - some
        self._since = now
        return max(0.0, -self._left / self._rate)
