"""Lines of the log: bounded, and the last one of a state is true."""

from __future__ import annotations

import logging
import random

import pytest

from draftd.rate_limited_log import LimitedChanges, OutageLog, RateLimitedLog
from tests.scripted_link import Clock

LOG = logging.getLogger("test")


@pytest.mark.parametrize("seed", range(20))
def test_rate_limited_state_log_ends_on_the_current_state_and_counts_skipped_changes(seed: int) -> None:
    dice, clock, told = random.Random(seed), Clock(), list[tuple[int, int]]()
    changes = LimitedChanges[int](lambda state, left_out: told.append((state, left_out)), clock)
    count = dice.randrange(1, 500)
    for state in range(count):
        clock.now += dice.choice((0.0, 0.1, 1.0, 5.0, 40.0))
        changes.change(state)
    assert len(told) <= 10 + clock.now / 30 + 1
    clock.now += (changes.settle() or 0.0) + 1e-6
    assert changes.settle() is None
    assert told[-1][0] == count - 1
    assert len(told) + sum(left_out for _, left_out in told) == count, "what was left out is counted"


def test_rate_limited_state_log_reports_the_first_ten_changes_at_once() -> None:
    states = list[tuple[str, int]]()
    changes = LimitedChanges[str](lambda state, left_out: states.append((state, left_out)), Clock())
    for state in ("up", "down") * 5:
        changes.change(state)
    assert states == [("up", 0), ("down", 0)] * 5
    changes.change("up")
    assert len(states) == 10
    assert changes.settle() == pytest.approx(30.0)


def test_outage_log_reports_each_cause_once_and_recovery_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = OutageLog(LOG, Clock())
    outage.clear("it works again")
    for why in ("refused", "refused", "status 401", "status 401"):
        outage.report(f"no alerts: {why}", why)
    outage.clear("it works again")
    outage.clear("it works again")
    assert caplog.messages == ["no alerts: refused", "no alerts: status 401", "it works again"]


def test_flapping_outage_log_ends_on_the_current_state_with_a_count_of_skipped_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    outage = OutageLog(LOG, clock)
    for _ in range(100):
        outage.report("no alerts")
        outage.clear("it works again")
    outage.report("no alerts")
    assert len(caplog.messages) == 10
    clock.now += 30
    outage.report("no alerts")
    assert caplog.messages[-1] == "no alerts (190 more changes since the last line)"


def test_rate_limited_log_bounds_lines_per_reason_over_all_senders_together(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    limited = RateLimitedLog(LOG, seconds=30.0, clock=clock, most=4)
    for number in range(1000):
        limited.write(logging.WARNING, "token", f"wrong token of {number % 500}", str(number % 500))
    limited.write(logging.WARNING, "version", "another version", "7")
    assert caplog.messages == [*(f"wrong token of {number}" for number in range(4)), "another version"]
    clock.now += 30
    limited.write(logging.WARNING, "token", "wrong token of 3", "3")
    assert caplog.messages[-1] == "wrong token of 3 (996 more of token since the last one)"
