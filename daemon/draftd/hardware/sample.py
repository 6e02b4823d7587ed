"""What was read from the machine at one moment. A value that could not be read is None, never zero."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace


class MemoryPressure(enum.IntEnum):
    """How hard the system is pressed for memory: on macOS the kernel's own verdict, on Linux by stalls."""

    NORMAL = 0
    WARN = 1
    CRITICAL = 2


class ThermalLevel(enum.IntEnum):
    """macOS's thermal pressure (`OSThermalPressureLevel`). From HEAVY on the system is throttled noticeably."""

    NOMINAL = 0
    MODERATE = 1
    HEAVY = 2
    TRAPPING = 3
    SLEEPING = 4


@dataclass(frozen=True, slots=True)
class HardwareSample:
    """One sample. Memory in bytes, shares from 0 to 1; the mappings go by a sensor's short id, as `cpu`."""

    memory_total: int | None = None
    memory_available: int | None = None  # what could be had without swapping
    memory_free_share: float | None = None  # macOS's kern.memorystatus_level
    memory_states: Mapping[str, int] | None = None  # parts that add up to about the total, as `free` and `wired`
    memory_pressure: MemoryPressure | None = None
    cgroup_limit: int | None = None
    cgroup_used: int | None = None  # page cache that can be dropped left out
    swap_used: int | None = None
    swap_free: int | None = None
    swap_in_pages: int | None = None  # since the machine started
    swap_in_bytes: int | None = None
    process_resident: int | None = None
    mlx_active: int | None = None
    mlx_cache: int | None = None
    mlx_peak: int | None = None
    mlx_working_set: int | None = None  # most that Metal recommends to hold
    gpu_memory: int | None = None  # in use by all processes
    gpu_utilization: float | None = None  # share of time that it was busy, for all processes
    thermal_level: ThermalLevel | None = None
    low_power: bool | None = None
    plugged_in: bool | None = None
    temperatures: Mapping[str, float] | None = None  # degrees Celsius
    fans: Mapping[str, float] | None = None  # revolutions per minute
    power: Mapping[str, float] | None = None  # watts

    def merged(self, other: HardwareSample) -> HardwareSample:
        """This sample, with all that the other one has."""
        found = {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(self, **{name: value for name, value in found.items() if value is not None})
