"""One sample of the machine, and the state that follows from all samples so far: a pure function of the previous state,
the new sample and the time. Unknown values are None, never zero."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace


class MemoryPressure(enum.IntEnum):
    """The system's memory pressure: the kernel's own level on macOS, derived from stalls on Linux."""

    NORMAL = 0
    WARN = 1
    CRITICAL = 2


class ThermalLevel(enum.IntEnum):
    """macOS's thermal pressure (`OSThermalPressureLevel`). From HEAVY on the system is noticeably throttled."""

    NOMINAL = 0
    MODERATE = 1
    HEAVY = 2
    TRAPPING = 3
    SLEEPING = 4


@dataclass(frozen=True, slots=True)
class HardwareSample:
    """One sample. Memory in bytes, shares from 0 to 1; the mappings have a sensor's short id as key, such as `cpu`."""

    memory_total: int | None = None
    memory_available: int | None = None  # available without swapping
    memory_free_share: float | None = None  # macOS's kern.memorystatus_level
    memory_states: Mapping[str, int] | None = None  # parts that add up to about the total, such as `free` and `wired`
    memory_pressure: MemoryPressure | None = None
    cgroup_limit: int | None = None
    cgroup_used: int | None = None  # without page cache that can be dropped
    swap_used: int | None = None
    swap_free: int | None = None
    swap_in_pages: int | None = None  # since the machine started
    swap_in_bytes: int | None = None
    process_resident: int | None = None
    mlx_active: int | None = None
    mlx_cache: int | None = None
    mlx_peak: int | None = None
    mlx_working_set: int | None = None  # the most that Metal recommends
    gpu_memory: int | None = None  # in use by all processes
    gpu_utilization: float | None = None  # share of time that it was busy, with all processes
    thermal_level: ThermalLevel | None = None
    low_power: bool | None = None
    plugged_in: bool | None = None
    temperatures: Mapping[str, float] | None = None  # degrees Celsius
    fans: Mapping[str, float] | None = None  # revolutions per minute
    power: Mapping[str, float] | None = None  # watts

    def merge(self, other: HardwareSample) -> HardwareSample:
        """Returns this sample, updated with the other's values."""
        values = {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(self, **{name: value for name, value in values.items() if value is not None})


# Left to the rest of the system unless the settings say otherwise: 10 GB of 24.
_FLOOR_SHARE = 10 / 24

_SHARES = {MemoryPressure.NORMAL: 1.0, MemoryPressure.WARN: 0.5, MemoryPressure.CRITICAL: 0.0}
_BELOW_FLOOR_SHARE = 1 / 8  # of the available memory


@dataclass(frozen=True, slots=True)
class HardwareState:
    """The latest sample and what follows from it. `at` is monotonic, in seconds."""

    sample: HardwareSample
    at: float
    limit: int | None = None  # bytes: the machine's memory, or a control group's if that allows less
    available: int | None = None  # bytes of it available without swapping
    floor: int | None = None  # bytes to leave available
    headroom: int | None = None  # bytes available beyond the floor; negative below it
    critical_seconds: float | None = None  # in critical memory pressure since the daemon started
    last_thermal_level: ThermalLevel | None = None  # the latest known one
    throttles: int | None = None  # changes into HEAVY or worse since the daemon started
    swap_in_start: int | None = None  # bytes swapped in at the first reading
    swap_ins: int | None = None  # bytes swapped in since


@dataclass(eq=False)
class HardwareView:
    """The present state of the hardware, readable from any thread. This base class shows what it is given, by default
    nothing."""

    state: HardwareState | None = None  # None until the first sample
    errors: Mapping[str, int] = field(default_factory=dict)  # failed readings so far, by name


def memory_share(state: HardwareState | None) -> float:
    """Returns which share of their memory limit caches may use, from 0 to 1: half under pressure, none under critical
    pressure."""
    pressure = None if state is None else state.sample.memory_pressure
    return 1.0 if pressure is None else _SHARES[pressure]


def advance(before: HardwareState | None, sample: HardwareSample, now: float, floor: int | None) -> HardwareState:
    """Returns the state after `sample`, taken at `now`. `floor` None is 10/24 of the usable memory."""
    before = before or HardwareState(HardwareSample(), now)
    limit = min((size for size in (sample.memory_total, sample.cgroup_limit) if size is not None), default=None)
    available = _available(sample)
    if floor is None and limit is not None:
        floor = int(limit * _FLOOR_SHARE)
    level, last = sample.thermal_level, before.last_thermal_level
    # A first sample that is already hot is no change: the daemon may not have caused it.
    throttled = last is not None and level is not None and last < ThermalLevel.HEAVY <= level
    start, swap_ins = before.swap_in_start, before.swap_ins
    if sample.swap_in_bytes is not None:
        start = sample.swap_in_bytes if start is None else start
        swap_ins = max(sample.swap_in_bytes - start, swap_ins or 0)
    return HardwareState(
        sample=sample,
        at=now,
        limit=limit,
        available=available,
        floor=floor,
        headroom=available - floor if available is not None and floor is not None else None,
        critical_seconds=_critical_seconds(before, sample, now),
        last_thermal_level=last if level is None else level,
        throttles=before.throttles if level is None else (before.throttles or 0) + throttled,
        swap_in_start=start,
        swap_ins=swap_ins,
    )


def takeable(state: HardwareState | None) -> int | None:
    """Returns the bytes that one more request may take: the headroom, but at least an eighth of the available memory,
    because other programs may keep the machine below the floor for good. 0 in critical memory pressure. None if
    unknown."""
    if state is None:
        return None
    if state.sample.memory_pressure is MemoryPressure.CRITICAL:
        return 0
    if state.headroom is None or state.available is None:
        return None
    return max(state.headroom, int(state.available * _BELOW_FLOOR_SHARE), 0)


def measured_watts(state: HardwareState | None) -> float | None:
    """Returns the sum of all measured power."""
    return None if state is None or not state.sample.power else sum(state.sample.power.values())


def _available(sample: HardwareSample) -> int | None:
    amounts = [] if sample.memory_available is None else [sample.memory_available]
    if sample.cgroup_limit is not None and sample.cgroup_used is not None:
        amounts.append(max(0, sample.cgroup_limit - sample.cgroup_used))
    return min(amounts, default=None)


def _critical_seconds(before: HardwareState, sample: HardwareSample, now: float) -> float | None:
    """Returns the time in critical pressure; a sample's value counts until the next sample."""
    if before.sample.memory_pressure is MemoryPressure.CRITICAL:
        return (before.critical_seconds or 0.0) + max(0.0, now - before.at)
    return 0.0 if before.critical_seconds is None and sample.memory_pressure is not None else before.critical_seconds
