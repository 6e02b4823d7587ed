"""The catalog's metrics of the machine: memory, paging, heat, power. OpenTelemetry's names where it has them."""

from __future__ import annotations

from draftd.telemetry import attributes as a
from draftd.telemetry.kinds import Kind, Metric

SYSTEM_MEMORY_USAGE = Metric(
    "system.memory.usage", Kind.UP_DOWN_COUNTER, "By", "The machine's memory by what it is used for", (a.MEMORY_STATE,)
)
SYSTEM_MEMORY_LIMIT = Metric("system.memory.limit", Kind.UP_DOWN_COUNTER, "By", "All memory of the machine")
SYSTEM_MEMORY_UTILIZATION = Metric(
    "system.memory.utilization", Kind.GAUGE, "1", "`system.memory.usage` over `system.memory.limit`", (a.MEMORY_STATE,)
)
SYSTEM_PAGING_USAGE = Metric(
    "system.paging.usage", Kind.UP_DOWN_COUNTER, "By", "Swap; macOS makes more when it needs more", (a.PAGING_STATE,)
)
SYSTEM_PAGING_OPERATIONS = Metric(
    "system.paging.operations",
    Kind.OBSERVABLE_COUNTER,
    "{operation}",
    "Pages read back from swap since the machine started",
    (a.PAGING_DIRECTION,),
)
PROCESS_MEMORY = Metric("process.memory.usage", Kind.UP_DOWN_COUNTER, "By", "The daemon's resident memory")
HW_TEMPERATURE = Metric(
    "hw.temperature",
    Kind.GAUGE,
    "Cel",
    "macOS: averages of processor and GPU, with macmon installed. Linux: thermal zones",
    (a.HW_ID,),
)
GPU_UTILIZATION = Metric(
    "hw.gpu.utilization",
    Kind.GAUGE,
    "1",
    "Share of time that the GPU is busy, for all processes; macOS only",
    (a.HW_ID,),
)
HW_FAN_SPEED = Metric("hw.fan.speed", Kind.GAUGE, "rpm", "Fans; on macOS with macmon installed", (a.HW_ID,))
HW_POWER = Metric(
    "hw.power",
    Kind.GAUGE,
    "W",
    "Power drawn, on macOS with macmon installed; that of the `enclosure` contains the others",
    (a.HW_ID, a.HW_TYPE),
)
MEMORY_HEADROOM = Metric(
    "draftd.memory.headroom",
    Kind.GAUGE,
    "By",
    "Memory available beyond `draftd.memory.floor`, negative below it; a control group's limit counts as well",
)
MEMORY_FLOOR = Metric(
    "draftd.memory.floor", Kind.GAUGE, "By", "Memory that should stay available: `hardware.memory_floor_bytes`"
)
MEMORY_PRESSURE = Metric(
    "draftd.memory.pressure",
    Kind.GAUGE,
    "{level}",
    "0 normal, 1 warn, 2 critical. macOS: the kernel's level. Linux: warn from 10 % of ten seconds with some task "
    "stalled for memory, critical from 10 % with all of them",
)
MEMORY_CRITICAL = Metric(
    "draftd.memory.critical.duration",
    Kind.OBSERVABLE_COUNTER,
    "s",
    "Time in critical memory pressure since the daemon started",
)
MEMORY_SWAP_INS = Metric(
    "draftd.memory.swap_ins",
    Kind.OBSERVABLE_COUNTER,
    "By",
    "Memory of the whole machine read back from swap since the daemon started",
)
MEMORY_MLX = Metric("draftd.memory.mlx", Kind.GAUGE, "By", "MLX's own count of its memory", (a.MLX_STATE,))
MEMORY_WORKING_SET = Metric(
    "draftd.memory.working_set", Kind.GAUGE, "By", "Most memory that Metal recommends to hold; macOS only"
)
MEMORY_GPU = Metric(
    "draftd.memory.gpu", Kind.GAUGE, "By", "System memory that the GPU uses for all processes; macOS only"
)
MEMORY_FREE = Metric(
    "draftd.memory.free", Kind.GAUGE, "1", "Share of memory that macOS counts as free by its own rule; macOS only"
)
POWER_LOW_MODE = Metric(
    "draftd.power.low_mode", Kind.GAUGE, "{mode}", "1 in low-power mode, which slows decoding, else 0; macOS only"
)
POWER_PLUGGED_IN = Metric(
    "draftd.power.plugged_in", Kind.GAUGE, "{source}", "1 on mains, 0 on battery; absent on a machine without one"
)
THERMAL_LEVEL = Metric(
    "draftd.thermal.level",
    Kind.GAUGE,
    "{level}",
    "0 nominal, 1 moderate, 2 heavy, 3 trapping, 4 sleeping; macOS only. From 2 on the system is throttled",
)
THERMAL_THROTTLES = Metric(
    "draftd.thermal.throttles",
    Kind.OBSERVABLE_COUNTER,
    "{event}",
    "Changes of `draftd.thermal.level` from below 2 to 2 or more since the daemon started",
)
HARDWARE_ERRORS = Metric(
    "draftd.hardware.errors",
    Kind.OBSERVABLE_COUNTER,
    "{error}",
    "Readings that failed or took too long; their values are absent then",
    (a.READING,),
)

METRICS: tuple[Metric, ...] = (
    MEMORY_HEADROOM,
    MEMORY_FLOOR,
    MEMORY_PRESSURE,
    MEMORY_CRITICAL,
    MEMORY_SWAP_INS,
    MEMORY_MLX,
    MEMORY_WORKING_SET,
    MEMORY_GPU,
    MEMORY_FREE,
    THERMAL_LEVEL,
    THERMAL_THROTTLES,
    POWER_LOW_MODE,
    POWER_PLUGGED_IN,
    SYSTEM_MEMORY_USAGE,
    SYSTEM_MEMORY_LIMIT,
    SYSTEM_MEMORY_UTILIZATION,
    SYSTEM_PAGING_USAGE,
    SYSTEM_PAGING_OPERATIONS,
    PROCESS_MEMORY,
    GPU_UTILIZATION,
    HW_TEMPERATURE,
    HW_FAN_SPEED,
    HW_POWER,
    HARDWARE_ERRORS,
)
