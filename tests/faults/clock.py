"""The clocks of one daemon, in Python and in C. A test steps them as a person, NTP or a machine's sleep does.

They are a file that clock.c reads, which is loaded into the daemon: a daemon that is stopped or restarted keeps them.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

from tests.forked_daemon import CLOCK
from tests.preload import library

_TWO = struct.Struct("2d")


class Clock:
    """Seconds by which the wall clock, and the clock that counts sleep, are ahead. `steps` says whether they can be
    stepped here. Only one thread may write."""

    def __init__(self, file: Path) -> None:
        self.file, self.steps = file, library(CLOCK) is not None
        self.wall = self.slept = 0.0
        self._write()

    def set_wall(self, ahead: float) -> None:
        """Steps the wall clock to so many seconds ahead of its value before any step; sleep is added to that."""
        self.wall = ahead if self.steps else 0.0
        self._write()

    def sleep(self, seconds: float) -> None:
        """Simulates a sleep of the machine: no process ran, and CLOCK_MONOTONIC did not count it."""
        self.slept += seconds if self.steps else 0.0
        self._write()

    @property
    def ahead(self) -> float:
        """Returns the seconds by which the daemon's wall clock is ahead of this process's."""
        return self.wall + self.slept

    def _write(self) -> None:
        with self.file.open("r+b" if self.file.exists() else "w+b") as file:  # in place: it is mapped
            file.write(_TWO.pack(self.ahead, self.slept))


def attach(file: str) -> None:
    """Attaches the daemon's process to the clocks, before it reads one. Raises OSError."""
    if (made := library(CLOCK)) is not None and ctypes.CDLL(str(made)).clock_attach(file.encode()):
        raise OSError(f"{file}: no clocks")
