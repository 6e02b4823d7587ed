"""The time that the ladder goes by."""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Seconds since 1970 as they were at the start, and monotonic since: a clock that is set meanwhile changes nothing.

    Any thread.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def __call__(self) -> float:
        return self._offset + self._monotonic()

    def of(self, monotonic: float) -> float:
        """What this clock showed at a time of `time.monotonic()`."""
        return self._offset + monotonic
