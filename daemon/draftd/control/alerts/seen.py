"""The signatures that have been taken, for as long as their time would let them in again."""

from __future__ import annotations

import time
from collections.abc import Callable


class Seen:
    """Forgets by time, never for lack of room. One thread.

    `seconds` is how long one could be repeated: twice the window of a timestamp, which may lie ahead as well. A restart
    forgets all of them; what is repeated then meets the lease that it once got, or the remembered end of it.
    """

    def __init__(self, seconds: float, capacity: int = 16_384, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._capacity = capacity
        self._clock = clock
        self._until: dict[bytes, float] = {}  # in the order in which they are forgotten

    def __contains__(self, signature: bytes) -> bool:
        self._forget()
        return signature in self._until

    def __len__(self) -> int:
        return len(self._until)

    def wait(self) -> float:
        """Seconds until there is room: 0 now."""
        self._forget()
        if len(self._until) < self._capacity:
            return 0.0
        return next(iter(self._until.values())) - self._clock()

    def add(self, signature: bytes) -> None:
        """Only where there is room."""
        assert len(self._until) < self._capacity
        self._until[signature] = self._clock() + self._seconds

    def discard(self, signature: bytes) -> None:
        """It was not acted on: it may come again."""
        self._until.pop(signature, None)

    def _forget(self) -> None:
        now = self._clock()
        while self._until and (first := next(iter(self._until.items())))[1] <= now:
            del self._until[first[0]]
