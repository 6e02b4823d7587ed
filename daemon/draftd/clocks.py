"""The clocks, and the purpose of each.

- `time.monotonic()` counts while the machine is awake: deadlines of requests, steps, retries, observed durations.
- `sleepless_seconds()` also counts while it sleeps: durations set by people or alerts (holds, leases, cooldowns, idle
  unload), and the daemon's uptime.
- `time.time()` can be set to any other time: times that others compare with theirs (events, files, signatures), never
  durations.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable


def sleepless_seconds() -> float:
    """Returns seconds of a clock that never goes back and continues while the machine sleeps.

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
    """The wall clock's time at the start plus the time elapsed since, sleep included. Setting the wall clock has no
    effect on it. Any thread, except for `slept`."""

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
        """Converts a time of `time.monotonic()` to this clock; the result is later by any sleep since then."""
        return self() - (self.awake() - awake)

    @property
    def ahead(self) -> float:
        """Returns how far the wall clock, which may have been set, is ahead of this one."""
        return self._wall() - self()

    def slept(self) -> float:
        """Returns the seconds that the machine has slept since the last call. Only one caller may use this method."""
        before, self._asleep = self._asleep, self._elapsed() - self.awake()
        return self._asleep - before
