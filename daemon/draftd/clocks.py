"""Which clock measures what.

- `time.monotonic()` counts while the machine is awake: deadlines of requests, steps, retries, what must be watched to
  be known.
- `sleepless_seconds()` counts while it sleeps as well: what a person or an alert set for a time (holds, leases,
cooldowns, idle
  unload), and how long the daemon has run.
- `time.time()` can be set to any other time: moments that others compare with theirs (events, files, signatures), never
  a duration.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable


def sleepless_seconds() -> float:
    """Seconds of a clock that never goes back, and that goes on while the machine sleeps.

    Linux: CLOCK_BOOTTIME (clock_gettime(2)). macOS: CLOCK_MONOTONIC_RAW, which is `mach_continuous_time`;
    `time.monotonic()` is `mach_absolute_time` there, which stops during sleep, and CLOCK_MONOTONIC is the wall clock
    less the boot time (Libc, gen/clock_gettime.c). Elsewhere `time.monotonic()`."""
    clock = _SLEEPLESS.get(sys.platform)
    if clock is not None:
        with contextlib.suppress(AttributeError, OSError):
            return time.clock_gettime(getattr(time, clock))
    return time.monotonic()


_SLEEPLESS = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC_RAW"}


class SteadyClock:
    """Seconds since 1970 as they were at the start, and what has elapsed since, sleep included. A wall clock that is
    set meanwhile changes nothing. Any thread, but for `slept`."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = sleepless_seconds,
        awake: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._elapsed, self.awake = wall, elapsed, awake
        self._offset = wall() - elapsed()
        self._asleep = elapsed() - awake()

    def __call__(self) -> float:
        return self._offset + self._elapsed()

    def of(self, awake: float) -> float:
        """What this clock showed at a time of `time.monotonic()`; later, by as much as the machine has slept since."""
        return self() - (self.awake() - awake)

    @property
    def ahead(self) -> float:
        """How far the wall clock, which may have been set, is ahead of this one."""
        return self._wall() - self()

    def slept(self) -> float:
        """Seconds that the machine has slept since the last call. One caller."""
        before, self._asleep = self._asleep, self._elapsed() - self.awake()
        return self._asleep - before
