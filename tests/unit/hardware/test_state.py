"""The state computed from samples: headroom, time in critical pressure, throttles, swap-ins. No clock is involved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.hardware.state import (
    HardwareSample,
    HardwareState,
    MemoryPressure,
    ThermalLevel,
    advance,
    memory_share,
    takeable,
)

GB = 10**9
CRITICAL, NORMAL = MemoryPressure.CRITICAL, MemoryPressure.NORMAL


def state_after(*samples: HardwareSample, floor: int | None = None, step: float = 5.0) -> HardwareState:
    """The state after the samples, `step` seconds apart."""
    state = None
    for number, sample in enumerate(samples):
        state = advance(state, sample, 100.0 + number * step, floor)
    assert state is not None
    return state


def critical_seconds(*levels: MemoryPressure | None) -> float | None:
    return state_after(*(HardwareSample(memory_pressure=level) for level in levels)).critical_seconds


def state_of_heat(*levels: int | None) -> HardwareState:
    return state_after(*(HardwareSample(thermal_level=None if n is None else ThermalLevel(n)) for n in levels))


def swap_ins(*amounts: int | None) -> int | None:
    return state_after(*(HardwareSample(swap_in_bytes=amount) for amount in amounts)).swap_ins


def test_hardware_state_of_empty_sample_is_empty() -> None:
    assert state_after(HardwareSample()) == HardwareState(HardwareSample(), 100.0)
    assert state_after(HardwareSample(), HardwareSample()) == HardwareState(HardwareSample(), 105.0)


def test_memory_headroom_is_available_memory_minus_floor() -> None:
    sample = HardwareSample(memory_total=24 * GB, memory_available=13 * GB)
    assert state_after(sample, floor=8 * GB).headroom == 5 * GB
    assert state_after(sample, floor=14 * GB).headroom == -1 * GB
    assert state_after(sample, floor=0).headroom == 13 * GB


def test_default_memory_floor_is_ten_twenty_fourths_of_total_memory() -> None:
    sample = HardwareSample(memory_total=24 * GB, memory_available=13 * GB)
    assert (state_after(sample).floor, state_after(sample).headroom) == (10 * GB, 3 * GB)
    assert state_after(HardwareSample(memory_total=48 * GB)).floor == 20 * GB
    assert state_after(HardwareSample(memory_total=48 * GB), floor=1).floor == 1


def test_control_group_memory_limit_below_machine_memory_sets_floor_and_headroom() -> None:
    sample = HardwareSample(memory_total=24 * GB, memory_available=20 * GB, cgroup_limit=12 * GB, cgroup_used=4 * GB)
    assert (state_after(sample).floor, state_after(sample).headroom) == (5 * GB, 3 * GB)


def test_control_group_memory_limit_above_machine_memory_is_ignored() -> None:
    sample = HardwareSample(memory_total=24 * GB, memory_available=13 * GB, cgroup_limit=99 * GB, cgroup_used=0)
    assert (state_after(sample).floor, state_after(sample).headroom) == (10 * GB, 3 * GB)


def test_control_group_over_its_memory_limit_has_zero_headroom() -> None:
    sample = HardwareSample(memory_available=20 * GB, cgroup_limit=1 * GB, cgroup_used=2 * GB)
    assert state_after(sample, floor=0).headroom == 0


@pytest.mark.parametrize(
    ("levels", "seconds"),
    [
        ([None], None),
        ([NORMAL], 0.0),
        ([CRITICAL], 0.0),
        ([CRITICAL, CRITICAL, NORMAL, NORMAL], 10.0),
        ([NORMAL, CRITICAL, NORMAL, CRITICAL, NORMAL], 10.0),
        ([MemoryPressure.WARN, MemoryPressure.WARN], 0.0),
        ([CRITICAL, None, None], 5.0),
        ([None, CRITICAL, CRITICAL], 5.0),
        ([CRITICAL, NORMAL, None], 5.0),
    ],
)
def test_critical_memory_pressure_time_is_summed_between_samples(
    levels: list[MemoryPressure | None], seconds: float | None
) -> None:
    assert critical_seconds(*levels) == seconds


def test_backwards_clock_adds_no_critical_memory_pressure_time() -> None:
    first = advance(None, HardwareSample(memory_pressure=CRITICAL), 100.0, None)
    assert advance(first, HardwareSample(memory_pressure=CRITICAL), 99.0, None).critical_seconds == 0.0


@pytest.mark.parametrize(
    ("levels", "throttles"),
    [
        ([None], None),
        ([0], 0),
        ([0, 1, 2], 1),
        ([0, 4], 1),
        ([0, 2, 3, 4, 2], 1),
        ([0, 2, 1, 2, 0, 3], 3),
        ([3, 3], 0),
        ([3, 1, 2], 1),
        ([0, None, 2], 1),
        ([2, None, 2], 0),
        ([0, 2, None], 1),
    ],
)
def test_rise_to_heavy_thermal_level_counts_as_one_throttle(levels: list[int | None], throttles: int | None) -> None:
    assert state_of_heat(*levels).throttles == throttles


def test_thermal_level_becomes_absent_when_latest_sample_lacks_the_level() -> None:
    assert state_of_heat(0, 2, None).sample.thermal_level is None


@pytest.mark.parametrize(
    ("amounts", "since"),
    [
        ([None], None),
        ([700], 0),
        ([700, 700, 1000], 300),
        ([None, 700, 1000], 300),
        ([700, 1000, None], 300),
        ([700, 1000, 900, 1100], 400),
    ],
)
def test_swap_in_count_starts_at_zero_with_first_known_sample(amounts: list[int | None], since: int | None) -> None:
    assert swap_ins(*amounts) == since


def test_memory_pressure_warning_halves_caches_and_critical_empties_them() -> None:
    assert memory_share(None) == 1.0
    shares = [memory_share(state_after(HardwareSample(memory_pressure=level))) for level in (None, *MemoryPressure)]
    assert shares == [1.0, 1.0, 0.5, 0.0]


def test_requests_may_use_memory_headroom_unless_pressure_is_critical() -> None:
    assert takeable(None) is None
    assert takeable(state_after(HardwareSample())) is None
    roomy = HardwareSample(memory_total=24_000, memory_available=18_000)
    assert takeable(state_after(roomy)) == 8_000
    assert takeable(state_after(replace(roomy, memory_available=8_000))) == 1_000
    assert takeable(state_after(replace(roomy, memory_pressure=MemoryPressure.WARN))) == 8_000
    assert takeable(state_after(replace(roomy, memory_pressure=MemoryPressure.CRITICAL))) == 0
