"""The clocks of a daemon can be stepped, in Python and in C, and its waits last as long as before."""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import forked_daemon
from tests.faults.clock import Clock, attach


def main(file: str) -> None:
    """Prints its clocks every tenth of a second."""
    attach(file)
    libc = ctypes.CDLL(None)
    libc.time.restype = ctypes.c_long
    while True:
        began = time.monotonic()
        threading.Event().wait(0.1)
        wall, slept = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        others = datetime.datetime.now().timestamp() - wall, libc.time(None) - wall
        found = {"wall": wall, "slept": slept - time.monotonic(), "others": others, "waited": time.monotonic() - began}
        print(json.dumps(found), file=sys.stderr)


def test_stepped_clock_library_shifts_wall_clock_and_suspend_time_but_not_wait_durations(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    if not clock.steps:
        pytest.skip("no C compiler, or not Linux")
    clock.set_wall(-7200.0)
    child = forked_daemon.start(main, str(clock.file), environ=dict(os.environ))
    try:
        before = json.loads(child.stderr.readline())
        clock.set_wall(600.0)
        clock.sleep(3600.0)
        now = time.time()
        for _ in range(2):  # one may have been on its way
            after = json.loads(child.stderr.readline())
    finally:
        child.kill()
        child.wait()
    assert before["wall"] - now == pytest.approx(-7200, abs=60)
    assert after["wall"] - now == pytest.approx(4200, abs=60)
    assert after["slept"] - before["slept"] == pytest.approx(3600, abs=1)
    assert all(abs(other) < 2 for found in (before, after) for other in found["others"])
    assert all(0.09 < found["waited"] < 60 for found in (before, after))
