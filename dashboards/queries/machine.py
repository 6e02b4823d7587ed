"""The machine under the daemon: unified memory, pressure, swap, heat, power."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.queries.query import MACHINE, RANGE, RATE, Query, counted, gauge, grouped, of_draftd, or_nought, shown
from dashboards.ratios import INSTANCE, label, matching, summed
from draftd.telemetry import attributes as a
from draftd.telemetry import machine
from draftd.telemetry.catalog import Metric

STATE, PAGING, MLX = label(a.MEMORY_STATE), label(a.PAGING_STATE), label(a.MLX_STATE)
SENSOR, PART, READING = label(a.HW_ID), label(a.HW_TYPE), label(a.READING)
_USED = f'{PAGING}="used"'

HEADROOM_NOW = Query(grouped(gauge(machine.MEMORY_HEADROOM, MACHINE), function="min"), "least", instant=True)
PRESSURE_NOW = Query(grouped(gauge(machine.MEMORY_PRESSURE, MACHINE), function="max"), "highest", instant=True)
THERMAL_NOW = Query(grouped(gauge(machine.THERMAL_LEVEL, MACHINE), function="max"), "highest", instant=True)


def each(metric: Metric, what: str) -> Query:
    """A line for each machine; `what` may be empty."""
    return Query(gauge(metric, MACHINE), f"{what} · {shown(INSTANCE)}" if what else shown(INSTANCE))


def parts(metric: Metric, by: Sequence[str]) -> Query:
    """A line for each part of each machine, of a metric that is not draftd's own."""
    legend = " · ".join(shown(one) for one in (*by, INSTANCE))
    return Query(grouped(of_draftd(metric), (*by, INSTANCE)), legend)


HEADROOM = (each(machine.MEMORY_HEADROOM, "headroom"), each(machine.MEMORY_FLOOR, "floor"))
PRESSURE = each(machine.MEMORY_PRESSURE, "pressure")
THERMAL = each(machine.THERMAL_LEVEL, "thermal")

MEMORY_BY_KIND = parts(machine.SYSTEM_MEMORY_USAGE, (STATE,))
MEMORY_LIMIT = Query(of_draftd(machine.SYSTEM_MEMORY_LIMIT), f"all · {shown(INSTANCE)}")
UTILIZATION = parts(machine.SYSTEM_MEMORY_UTILIZATION, (STATE,))
FREE = each(machine.MEMORY_FREE, "free by macOS's rule")
MLX_MEMORY = Query(gauge(machine.MEMORY_MLX, MACHINE), f"{shown(MLX)} · {shown(INSTANCE)}")
WORKING_SET = each(machine.MEMORY_WORKING_SET, "recommended at most")
GPU_MEMORY = each(machine.MEMORY_GPU, "GPU, all processes")
PROCESS = Query(of_draftd(machine.PROCESS_MEMORY), f"the daemon · {shown(INSTANCE)}")

CRITICAL = Query(
    summed(machine.MEMORY_CRITICAL, MACHINE, RATE, (INSTANCE,)), f"critical · {shown(INSTANCE)}"
)  # seconds a second: a share of the time
SWAP = parts(machine.SYSTEM_PAGING_USAGE, (PAGING,))
SWAP_INS = Query(summed(machine.MEMORY_SWAP_INS, MACHINE, RATE, (INSTANCE,)), f"read back · {shown(INSTANCE)}")
PAGE_INS = Query(
    grouped(
        f"rate({gauge(machine.SYSTEM_PAGING_OPERATIONS, MACHINE)}[{RATE}]) "
        f"and on ({INSTANCE}) {gauge(machine.MEMORY_FLOOR, MACHINE)}",
        (INSTANCE,),
    ),
    shown(INSTANCE),
)
THROTTLES = Query(
    counted(machine.THERMAL_THROTTLES, MACHINE, RATE, (INSTANCE,)), shown(INSTANCE)
)  # a count in a sliding window: one throttling is one hump
THROTTLES_NOW = Query(counted(machine.THERMAL_THROTTLES, MACHINE, RANGE), "throttles", instant=True)
TEMPERATURE = parts(machine.HW_TEMPERATURE, (SENSOR,))
FANS = parts(machine.HW_FAN_SPEED, (SENSOR,))
POWER = parts(machine.HW_POWER, (SENSOR, PART))
GPU_BUSY = parts(machine.GPU_UTILIZATION, (SENSOR,))
LOW_POWER = each(machine.POWER_LOW_MODE, "low-power mode")
PLUGGED_IN = each(machine.POWER_PLUGGED_IN, "on mains")
READING_ERRORS = Query(or_nought(counted(machine.HARDWARE_ERRORS, MACHINE, RANGE)), "readings failed", instant=True)
READING_ERRORS_BY = Query(
    counted(machine.HARDWARE_ERRORS, MACHINE, RATE, (READING, INSTANCE)), f"{shown(READING)} · {shown(INSTANCE)}"
)
SWAP_NOW = Query(
    grouped(f'{gauge(machine.SYSTEM_PAGING_USAGE, matching(MACHINE, _USED))} and on ({INSTANCE}) '
            f"{gauge(machine.MEMORY_FLOOR, MACHINE)}"),
    "used",
    instant=True,
)  # fmt: skip
