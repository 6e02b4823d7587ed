"""Telemetry of the machine: the hardware metrics, and attributes at the end of a request's span. Unknown values are
absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftd.hardware.state import HardwareState, HardwareView
from draftd.telemetry import catalog
from draftd.telemetry.attributes import Metric
from draftd.telemetry.metrics import Observe, Values, observe_each

# The conventions' names for power consumers, if there are any.
_TYPES = {"ram": "memory", "system": "enclosure"}
_TABLE: Mapping[Metric, Callable[[HardwareState], Values]] = {
    catalog.MEMORY_HEADROOM: lambda s: s.headroom,
    catalog.MEMORY_FLOOR: lambda s: s.floor,
    catalog.MEMORY_PRESSURE: lambda s: s.sample.memory_pressure,
    catalog.MEMORY_CRITICAL: lambda s: s.critical_seconds,
    catalog.MEMORY_SWAP_INS: lambda s: s.swap_ins,
    catalog.MEMORY_MLX: lambda s: {
        "active": s.sample.mlx_active, "cache": s.sample.mlx_cache, "peak": s.sample.mlx_peak,
    },
    catalog.MEMORY_WORKING_SET: lambda s: s.sample.mlx_working_set,
    catalog.MEMORY_GPU: lambda s: s.sample.gpu_memory,
    catalog.MEMORY_FREE: lambda s: s.sample.memory_free_share,
    catalog.POWER_LOW_MODE: lambda s: s.sample.low_power,
    catalog.POWER_PLUGGED_IN: lambda s: s.sample.plugged_in,
    catalog.THERMAL_LEVEL: lambda s: s.sample.thermal_level,
    catalog.THERMAL_THROTTLES: lambda s: s.throttles,
    catalog.SYSTEM_MEMORY_USAGE: lambda s: s.sample.memory_states or {},
    catalog.SYSTEM_MEMORY_LIMIT: lambda s: s.sample.memory_total,
    catalog.SYSTEM_MEMORY_UTILIZATION: lambda s: _shares(s.sample.memory_states, s.sample.memory_total),
    catalog.SYSTEM_PAGING_USAGE: lambda s: {"used": s.sample.swap_used, "free": s.sample.swap_free},
    catalog.SYSTEM_PAGING_OPERATIONS: lambda s: {"in": s.sample.swap_in_pages},
    catalog.PROCESS_MEMORY: lambda s: s.sample.process_resident,
    catalog.GPU_UTILIZATION: lambda s: {"gpu": s.sample.gpu_utilization},
    catalog.HW_TEMPERATURE: lambda s: s.sample.temperatures or {},
    catalog.HW_FAN_SPEED: lambda s: s.sample.fans or {},
    catalog.HW_POWER: lambda s: {(part, _TYPES.get(part, part)): w for part, w in (s.sample.power or {}).items()},
}  # fmt: skip
_ON_SPANS = (catalog.MEMORY_PRESSURE, catalog.MEMORY_HEADROOM, catalog.THERMAL_LEVEL)


def observed_hardware(hardware: HardwareView) -> dict[str, Observe]:
    """Returns the hardware metrics' observers by name."""
    return {
        **observe_each(lambda: hardware.state, _TABLE),
        **observe_each(lambda: hardware.errors, {catalog.HARDWARE_ERRORS: lambda errors: errors}),
    }


def hardware_attributes(state: HardwareState | None) -> dict[str, int]:
    """Returns a request span's known attributes of the machine."""
    if state is None:
        return {}
    values = {metric.name: _TABLE[metric](state) for metric in _ON_SPANS}
    return {name: int(value) for name, value in values.items() if isinstance(value, (int, float))}


def _shares(states: Mapping[str, int] | None, total: int | None) -> Mapping[str, float]:
    return {name: size / total for name, size in states.items()} if states and total else {}
