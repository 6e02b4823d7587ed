"""A daemon with two ranks, one of which dies or is stopped: what `python -m tests.ranks faults` does at
random and often."""

from __future__ import annotations

import random

import pytest

from tests.ranks.faults import KILL, STOP, Faulted, run
from tests.wait_until import until

_BOUND, _SLACK = 8.0, 120.0  # seconds


@pytest.mark.slow
def test_killed_and_stopped_ranks_end_their_requests_and_rank_group_serves_again(tmp_path):
    daemon = Faulted(tmp_path, 2, _BOUND)
    faults = [(KILL, 1), (STOP, 0)]
    try:
        found = [now for _, now in run(daemon, faults, random.Random(1), _BOUND + _SLACK, twice=0)]
        assert sum(found[-1].losses.values()) >= len(faults)
        left = daemon.everything()
        daemon.process.kill()
        until(lambda: not any(one.is_running() for one in left), 30, "the end of all its processes")
    finally:
        daemon.close()
