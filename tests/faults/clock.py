"""The clocks of one daemon, in Python and in C, which a test steps as a person, NTP or a machine's sleep does.

They are a file that clock.c, loaded into the daemon, reads: a daemon that is stopped, or starts again, has them too.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

from tests.forked_daemon import CLOCK
from tests.preload import library

_TWO = struct.Struct("2d")


class Clock:
    """Seconds by which the wall clock, and the clock that counts sleep, are ahead. `steps`: whether they can be stepped
    here. One thread writes."""

    def __init__(self, file: Path) -> None:
        self.file, self.steps = file, library(CLOCK) is not None
        self.wall = self.slept = 0.0
        self._write()

    def set_wall(self, ahead: float) -> None:
        """Steps the wall clock to so many seconds ahead of what it was before any step, sleep apart."""
        self.wall = ahead if self.steps else 0.0
        self._write()

    def sleep(self, seconds: float) -> None:
        """As if the machine had slept for so long: no process ran, and CLOCK_MONOTONIC did not count it."""
        self.slept += seconds if self.steps else 0.0
        self._write()

    @property
    def ahead(self) -> float:
        """How far the daemon's wall clock is ahead of this process's."""
        return self.wall + self.slept

    def _write(self) -> None:
        with self.file.open("r+b" if self.file.exists() else "w+b") as file:  # in place: it is mapped
            file.write(_TWO.pack(self.ahead, self.slept))


def attach(file: str) -> None:
    """In the daemon's process, before it reads a clock. Raises OSError."""
    if (made := library(CLOCK)) is not None and ctypes.CDLL(str(made)).clock_attach(file.encode()):
        raise OSError(f"{file}: no clocks")
