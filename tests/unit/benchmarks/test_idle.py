"""A benchmark waits until other processes rest."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks.idle import process_at, wait_until_idle

_LISTENS = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def test_benchmark_finds_process_by_listening_address() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _LISTENS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        address = f"127.0.0.1:{int(child.stdout.readline())}"
        assert process_at(address).pid == child.pid
        assert wait_until_idle([process_at(address)])
        child.stdin.close()
    with pytest.raises(LookupError, match=address):
        process_at(address)


class Busy:
    """A process whose CPU time grows by an hour each time it is read."""

    hours = 0

    def cpu_times(self) -> SimpleNamespace:
        self.hours += 1
        return SimpleNamespace(user=3600.0 * self.hours, system=0.0)


def test_benchmark_stops_waiting_for_busy_process_after_time_limit() -> None:
    assert not wait_until_idle([Busy()], seconds=0.3)  # type: ignore[list-item]
