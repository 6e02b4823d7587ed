"""What telemetry says of the machine: on the hardware metrics, and on a request's span when it ends. What is not known
stays absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import Observation

from draftd.hardware.state import HardwareState, HardwareView
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.attributes import Attribute, Metric
from draftd.telemetry.metrics import Observe

Value = Callable[[HardwareState], float | None]
Series = Callable[[HardwareState], Mapping[str, float | None] | None]

_VALUES: tuple[tuple[Metric, Value], ...] = (
    (catalog.MEMORY_HEADROOM, lambda s: s.headroom),
    (catalog.MEMORY_FLOOR, lambda s: s.floor),
    (catalog.MEMORY_PRESSURE, lambda s: s.sample.memory_pressure),
    (catalog.MEMORY_CRITICAL, lambda s: s.critical_seconds),
    (catalog.MEMORY_SWAP_INS, lambda s: s.swap_ins),
    (catalog.MEMORY_WORKING_SET, lambda s: s.sample.mlx_working_set),
    (catalog.MEMORY_GPU, lambda s: s.sample.gpu_memory),
    (catalog.MEMORY_FREE, lambda s: s.sample.memory_free_share),
    (catalog.POWER_LOW_MODE, lambda s: s.sample.low_power),
    (catalog.POWER_PLUGGED_IN, lambda s: s.sample.plugged_in),
    (catalog.THERMAL_LEVEL, lambda s: s.thermal_level),
    (catalog.THERMAL_THROTTLES, lambda s: s.throttles),
    (catalog.SYSTEM_MEMORY_LIMIT, lambda s: s.sample.memory_total),
    (catalog.PROCESS_MEMORY, lambda s: s.sample.process_resident),
)
# The attribute tells the values of one metric apart.
_SERIES: tuple[tuple[Metric, Attribute, Series], ...] = (
    (catalog.SYSTEM_MEMORY_USAGE, a.MEMORY_STATE, lambda s: s.sample.memory_states),
    (catalog.SYSTEM_MEMORY_UTILIZATION, a.MEMORY_STATE, lambda s: _shares(s)),
    (catalog.SYSTEM_PAGING_USAGE, a.PAGING_STATE, lambda s: {"used": s.sample.swap_used, "free": s.sample.swap_free}),
    (catalog.SYSTEM_PAGING_OPERATIONS, a.PAGING_DIRECTION, lambda s: {"in": s.sample.swap_in_pages}),
    (
        catalog.MEMORY_MLX,
        a.MLX_STATE,
        lambda s: {"active": s.sample.mlx_active, "cache": s.sample.mlx_cache, "peak": s.sample.mlx_peak},
    ),
    (catalog.GPU_UTILIZATION, a.HW_ID, lambda s: {"gpu": s.sample.gpu_utilization}),
    (catalog.HW_TEMPERATURE, a.HW_ID, lambda s: s.sample.temperatures),
    (catalog.HW_FAN_SPEED, a.HW_ID, lambda s: s.sample.fans),
    (catalog.HW_POWER, a.HW_ID, lambda s: s.sample.power),
)
# The conventions' names for what draws power, where they have one.
_TYPES = {"ram": "memory", "system": "enclosure"}


def observed_hardware(hardware: HardwareView) -> dict[str, Observe]:
    """What each hardware metric of the catalog shows when metrics are collected, by the metric's name."""

    def values(series: Series, attribute: Attribute | None = None, *, typed: bool = False) -> Observe:
        def observe() -> Iterable[Observation]:
            state = hardware.state
            for key, value in ((series(state) if state is not None else None) or {}).items():
                if value is None:
                    continue
                labels = {} if attribute is None else {attribute.name: key}
                if typed:
                    labels[a.HW_TYPE.name] = _TYPES.get(key, key)
                yield Observation(int(value) if isinstance(value, bool) else value, labels)

        return observe

    def one(value: Value) -> Observe:
        return values(lambda state: {"": value(state)})

    def errors() -> Iterable[Observation]:
        return [Observation(count, {a.READING.name: reading}) for reading, count in hardware.errors.items()]

    return {
        **{metric.name: one(value) for metric, value in _VALUES},
        **{
            metric.name: values(series, attribute, typed=metric is catalog.HW_POWER)
            for metric, attribute, series in _SERIES
        },
        catalog.HARDWARE_ERRORS.name: errors,
    }


def hardware_attributes(state: HardwareState | None) -> dict[str, int]:
    """What a request's span says of the machine; only what is known."""
    if state is None:
        return {}
    found = (
        (a.MEMORY_PRESSURE, state.sample.memory_pressure),
        (a.MEMORY_HEADROOM, state.headroom),
        (a.THERMAL_LEVEL, state.thermal_level),
    )
    return {attribute.name: int(value) for attribute, value in found if value is not None}


def _shares(state: HardwareState) -> Mapping[str, float] | None:
    states, total = state.sample.memory_states, state.sample.memory_total
    if states is None or not total:
        return None
    return {name: size / total for name, size in states.items()}
