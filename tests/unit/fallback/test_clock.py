"""The ladder's clock: wall time at the start, plus elapsed time, sleep included."""

from __future__ import annotations

from draftd.clocks import SteadyClock
from draftd.hardware.state import MemoryPressure
from tests.unit.fallback.controlled import (
    BOTTOM,
    COOLDOWN,
    LIGHT,
    LIGHT_DRAFT,
    PLAIN,
    START,
    TOP,
    Controlled,
    Machine,
    notice,
    tell,
)

HOUR = 3600.0


def test_fallback_clock_ignores_wall_clock_changes_and_counts_sleep() -> None:
    wall, slept, awake = 1_800_000_000.0, 0.0, 50.0
    clock = SteadyClock(lambda: wall, lambda: awake + slept, lambda: awake)
    assert clock() == 1_800_000_000.0
    wall -= 1_000_000
    awake += 10
    assert (clock(), clock.of(55.0), clock.slept()) == (1_800_000_010.0, 1_800_000_005.0, 0.0)
    assert clock.ahead == -1_000_010.0
    slept += HOUR
    assert (clock(), clock.of(58.0), clock.slept()) == (1_800_003_610.0, 1_800_003_608.0, HOUR)
    assert clock.slept() == 0.0


def test_operator_hold_and_alert_lease_expire_while_the_machine_sleeps() -> None:
    controlled = Controlled()
    controlled.controller.hold(LIGHT_DRAFT, 1800.0)
    tell(controlled, notice(PLAIN))  # its lease is 1,000 seconds
    assert controlled.at(1) == LIGHT
    controlled.sleep(HOUR)
    controlled.at(controlled.now + 1)
    state = controlled.controller.state()
    assert (state.hold, state.leases) == (None, ())
    assert controlled.until(controlled.now + 5 * COOLDOWN) == TOP


def test_duration_of_critical_memory_signal_excludes_sleep_time() -> None:
    machine = Machine()
    controlled = Controlled(hardware=machine, critical_seconds=10)
    machine.reads(0, memory_pressure=MemoryPressure.CRITICAL)
    controlled.at(1)
    controlled.sleep(8 * HOUR)
    for awake in (2, 8, 11):
        machine.reads(awake, memory_pressure=MemoryPressure.CRITICAL)
        assert controlled.at(8 * HOUR + awake) == TOP
    machine.reads(13, memory_pressure=MemoryPressure.CRITICAL)
    assert controlled.at(8 * HOUR + 13) == BOTTOM


def test_fallback_state_times_follow_a_changed_wall_clock() -> None:
    controlled = Controlled()
    controlled.controller.hold(LIGHT_DRAFT, 600.0)
    tell(controlled, notice(PLAIN))
    controlled.at(10)
    controlled.ahead = -2 * HOUR
    controlled.at(20)
    state = controlled.controller.state()
    assert state.since == START - 2 * HOUR
    assert state.hold is not None
    assert state.hold.until == START + 600 - 2 * HOUR
    assert [lease.until for lease in state.leases] == [START + 1000 - 2 * HOUR]
