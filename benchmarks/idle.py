"""Waits until processes rest: an idle daemon measures its prices, which must not slow what another arm does."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

LOOK_SECONDS = 0.1
MOST_SECONDS = 60.0
_SHARE = 0.1  # of a core; what exports telemetry and reads the machine takes less
_LOOKS = 5  # one after the other: a daemon rests for a quarter of a second before it measures, and between forwards


def process_at(address: str) -> psutil.Process:
    """The child of this process that listens there (HOST:PORT). Raises LookupError where none does."""
    port = int(address.rpartition(":")[2])
    for child in psutil.Process().children():
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in child.net_connections("tcp")):
            return child
    raise LookupError(f"no child of this process listens on {address}")


def wait_until_idle(processes: Iterable[psutil.Process], seconds: float = MOST_SECONDS) -> bool:
    """Whether none of them uses a processor, after at most so many seconds. Takes half a second at least."""
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
    """Seconds of processor time."""
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))
