"""Queries of the daemon's machine: unified memory, pressure, swap, heat, power."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.queries.query import (
    EXPORTING,
    MACHINE,
    RANGE,
    RATE,
    Query,
    counted,
    gauge,
    grouped,
    none_yet,
    series,
    shown,
)
from dashboards.ratios import INSTANCE, label, matching, summed
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.catalog import Metric

STATE, PAGING, MLX = label(a.MEMORY_STATE), label(a.PAGING_STATE), label(a.MLX_STATE)
SENSOR, PART, READING = label(a.HW_ID), label(a.HW_TYPE), label(a.READING)
_USED = f'{PAGING}="used"'

HEADROOM_NOW = Query(grouped(gauge(catalog.MEMORY_HEADROOM, MACHINE), function="min"), "least", instant=True)
PRESSURE_NOW = Query(grouped(gauge(catalog.MEMORY_PRESSURE, MACHINE), function="max"), "highest", instant=True)
THERMAL_NOW = Query(grouped(gauge(catalog.THERMAL_LEVEL, MACHINE), function="max"), "highest", instant=True)


def each(metric: Metric, what: str) -> Query:
    """Returns a line for each machine. `what` begins its legend and may be empty."""
    return Query(gauge(metric, MACHINE), f"{what} · {shown(INSTANCE)}" if what else shown(INSTANCE))


def parts(metric: Metric, by: Sequence[str]) -> Query:
    """Returns a line for each part of each machine, for a metric that other programs export too."""
    legend = " · ".join(shown(one) for one in (*by, INSTANCE))
    return Query(grouped(gauge(metric, MACHINE), (*by, INSTANCE)), legend)


HEADROOM = (each(catalog.MEMORY_HEADROOM, "headroom"), each(catalog.MEMORY_FLOOR, "floor"))
PRESSURE = each(catalog.MEMORY_PRESSURE, "pressure")
THERMAL = each(catalog.THERMAL_LEVEL, "thermal")

MEMORY_BY_KIND = parts(catalog.SYSTEM_MEMORY_USAGE, (STATE,))
MEMORY_LIMIT = Query(gauge(catalog.SYSTEM_MEMORY_LIMIT, MACHINE), f"all · {shown(INSTANCE)}")
UTILIZATION = parts(catalog.SYSTEM_MEMORY_UTILIZATION, (STATE,))
FREE = each(catalog.MEMORY_FREE, "free by macOS's rule")
MLX_MEMORY = Query(gauge(catalog.MEMORY_MLX, MACHINE), f"{shown(MLX)} · {shown(INSTANCE)}")
WORKING_SET = each(catalog.MEMORY_WORKING_SET, "recommended at most")
GPU_MEMORY = each(catalog.MEMORY_GPU, "GPU, all processes")
PROCESS = Query(gauge(catalog.PROCESS_MEMORY, MACHINE), f"the daemon · {shown(INSTANCE)}")

CRITICAL = Query(
    summed(catalog.MEMORY_CRITICAL, MACHINE, RATE, (INSTANCE,)), f"critical · {shown(INSTANCE)}"
)  # seconds per second: a share of the time
SWAP = parts(catalog.SYSTEM_PAGING_USAGE, (PAGING,))
SWAP_INS = Query(summed(catalog.MEMORY_SWAP_INS, MACHINE, RATE, (INSTANCE,)), f"read back · {shown(INSTANCE)}")
PAGE_INS = Query(
    grouped(
        f"rate({series(catalog.SYSTEM_PAGING_OPERATIONS, MACHINE)}[{RATE}]) and on ({INSTANCE}) {EXPORTING}",
        (INSTANCE,),
    ),
    shown(INSTANCE),
)
THROTTLES = Query(
    counted(catalog.THERMAL_THROTTLES, MACHINE, RATE, (INSTANCE,)), shown(INSTANCE)
)  # a count in a sliding window: one throttling shows as one hump
THROTTLES_NOW = Query(counted(catalog.THERMAL_THROTTLES, MACHINE, RANGE), "throttles", instant=True)
TEMPERATURE = parts(catalog.HW_TEMPERATURE, (SENSOR,))
FANS = parts(catalog.HW_FAN_SPEED, (SENSOR,))
POWER = parts(catalog.HW_POWER, (SENSOR, PART))
GPU_BUSY = parts(catalog.GPU_UTILIZATION, (SENSOR,))
LOW_POWER = each(catalog.POWER_LOW_MODE, "low-power mode")
PLUGGED_IN = each(catalog.POWER_PLUGGED_IN, "on mains")
READING_ERRORS = Query(
    none_yet(counted(catalog.HARDWARE_ERRORS, MACHINE, RANGE), RANGE), "readings failed", instant=True
)
READING_ERRORS_BY = Query(
    counted(catalog.HARDWARE_ERRORS, MACHINE, RATE, (READING, INSTANCE)), f"{shown(READING)} · {shown(INSTANCE)}"
)
SWAP_NOW = Query(grouped(gauge(catalog.SYSTEM_PAGING_USAGE, matching(MACHINE, _USED))), "used", instant=True)
