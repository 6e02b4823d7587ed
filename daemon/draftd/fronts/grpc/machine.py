"""The machine's state to protobuf. What is not known is left unset."""

from __future__ import annotations

from draftd.hardware.sample import MemoryPressure, ThermalLevel
from draftd.hardware.state import HardwareView
from draftd.protocol import duration
from draftd.v1 import control_pb2 as pb

_PRESSURES = {
    None: None,
    MemoryPressure.NORMAL: pb.MEMORY_PRESSURE_NORMAL,
    MemoryPressure.WARN: pb.MEMORY_PRESSURE_WARN,
    MemoryPressure.CRITICAL: pb.MEMORY_PRESSURE_CRITICAL,
}
_LEVELS = {
    None: None,
    ThermalLevel.NOMINAL: pb.THERMAL_LEVEL_NOMINAL,
    ThermalLevel.MODERATE: pb.THERMAL_LEVEL_MODERATE,
    ThermalLevel.HEAVY: pb.THERMAL_LEVEL_HEAVY,
    ThermalLevel.TRAPPING: pb.THERMAL_LEVEL_TRAPPING,
    ThermalLevel.SLEEPING: pb.THERMAL_LEVEL_SLEEPING,
}


def hardware(view: HardwareView, now: float) -> pb.Hardware | None:
    """`now` is on the monotonic clock. None until the machine was first read."""
    state = view.state
    if state is None:
        return None
    sample = state.sample
    return pb.Hardware(
        age=duration(now - state.at),
        memory_pressure=_PRESSURES[sample.memory_pressure],
        memory_headroom_bytes=state.headroom,
        memory_floor_bytes=state.floor,
        memory_available_bytes=state.available,
        memory_limit_bytes=state.limit,
        critical_pressure=duration(state.critical_seconds),
        swap_used_bytes=sample.swap_used,
        swap_in_bytes=state.swap_ins,
        process_resident_bytes=sample.process_resident,
        mlx_active_bytes=sample.mlx_active,
        mlx_cache_bytes=sample.mlx_cache,
        mlx_peak_bytes=sample.mlx_peak,
        mlx_working_set_bytes=sample.mlx_working_set,
        gpu_memory_bytes=sample.gpu_memory,
        gpu_utilization=sample.gpu_utilization,
        thermal_level=_LEVELS[state.thermal_level],
        throttles=state.throttles,
        low_power=sample.low_power,
        on_mains=sample.plugged_in,
        temperatures=sample.temperatures,
        fans=sample.fans,
        power=sample.power,
        errors=view.errors,
    )
