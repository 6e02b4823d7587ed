"""The ladder's clock: wall time at the start, monotonic from there."""

from __future__ import annotations

from draftd.fallback.signal_feed import SteadyClock


def test_a_wall_clock_that_is_set_meanwhile_changes_nothing() -> None:
    wall, monotonic = 1_800_000_000.0, 50.0
    clock = SteadyClock(lambda: wall, lambda: monotonic)
    assert clock() == 1_800_000_000.0
    wall -= 1_000_000
    monotonic += 10
    assert clock() == 1_800_000_010.0
    assert clock.of(55.0) == 1_800_000_005.0
