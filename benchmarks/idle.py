"""Waits until processes are idle. An idle daemon measures its step costs in the background, which must not slow another
arm's measurement."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

LOOK_SECONDS = 0.1
MOST_SECONDS = 60.0
_SHARE = 0.1  # of a core: exporting telemetry and reading the machine take less
_LOOKS = 5  # in a row: a daemon pauses for a quarter of a second before it measures, and between forwards


def process_at(address: str) -> psutil.Process:
    """Returns the child of this process that listens on `address` (HOST:PORT). Raises LookupError if none does."""
    port = int(address.rpartition(":")[2])
    for child in psutil.Process().children():
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in child.net_connections("tcp")):
            return child
    raise LookupError(f"no child of this process listens on {address}")


def wait_until_idle(processes: Iterable[psutil.Process], seconds: float = MOST_SECONDS) -> bool:
    """Waits until the processes together use at most a tenth of a core for half a second. Returns False if they still
    use more after `seconds`."""
    processes = list(processes)
    deadline = time.monotonic() + seconds
    idle, before, used = 0, time.monotonic(), _used(processes)
    while idle < _LOOKS:
        if before >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
        now, now_used = time.monotonic(), _used(processes)
        idle = idle + 1 if now_used - used <= _SHARE * (now - before) else 0
        before, used = now, now_used
    return True


def _used(processes: Iterable[psutil.Process]) -> float:
    """Returns the processes' CPU time, user and system, in seconds."""
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))
