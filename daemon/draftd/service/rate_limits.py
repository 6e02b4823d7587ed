"""How fast a peer may use up the target's time and send messages: two token buckets."""

from __future__ import annotations

import time

_BURST_SECONDS = 1.0  # of the target


class Share:
    """Of the target's time, in the long run and with a second besides. What one takes beyond that it waits for, as soon
    as others want the target."""

    def __init__(self, share: float, owed: float | None = None) -> None:
        """`owed`: seconds of the target that are waited for at most; None: what a second gives. It may all have been
        taken while nothing else wanted it."""
        self._share, self._owed = share, share if owed is None else owed
        self._left, self._since = _BURST_SECONDS, time.monotonic()

    def took(self, seconds: float, now: float) -> None:
        if self._share < 1:
            self._refill(now)
            self._left = max(self._left - seconds, -self._owed)

    def exceeded(self, now: float) -> bool:
        if self._share >= 1:
            return False
        self._refill(now)
        return self._left < 0

    def _refill(self, now: float) -> None:
        self._left = min(_BURST_SECONDS, self._left + self._share * max(0.0, now - self._since))
        self._since = now


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
