"""How much is looked at: a rate, as a bucket that fills with time."""

from __future__ import annotations

import time
from collections.abc import Callable


class Rate:
    """Lets `per_second` through, and as much at once as a second brings, one at least. One thread."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second)
        self._clock = clock
        self._left = self._most
        self._at = clock()

    def wait(self) -> float:
        """Seconds until one more may pass: 0 now."""
        now = self._clock()
        self._left = min(self._most, self._left + max(0.0, now - self._at) * self._per_second)
        self._at = now
        return 0.0 if self._left >= 1.0 else (1.0 - self._left) / self._per_second

    def take(self) -> float:
        """Passes one, if one may; what `wait` says otherwise."""
        if not (wait := self.wait()):
            self._left -= 1.0
        return wait
