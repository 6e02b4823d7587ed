"""Dashboard of the machine: unified memory by kind, pressure, swap, heat, power. Unknown readings are empty, never
zero."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.boards import look
from dashboards.panels import BAD, GOOD, PLAIN, WARN, Panel, Text, Word, lines, single, states, tile
from dashboards.queries import machine as ask
from dashboards.settings import Alerting


def board(alerting: Alerting) -> Board:
    return Board(
        "machine",
        "Machine",
        "The machines that run draftd: memory, pressure, swap, heat, power. Choose one instance above for clear lines. "
        "Unknown values are empty, never zero: the thermal level needs macOS, power needs macmon.",
        (
            Row("Now", _now(alerting)),
            Row("Unified memory", _memory()),
            Row("Pressure and swap", _pressure(alerting)),
            Row("Heat and power", _heat(alerting)),
            Row("Sensors", _sensors()),
        ),
    )


def _now(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        single(
            tile("Headroom",
                 "Available memory minus the configured floor, now, on the machine with the least. Red: less memory "
                 "than the floor is left.",
                 look.BYTES, decimals=1),
            ask.HEADROOM_NOW,
            steps=((None, BAD), (0, GOOD)),
        ),
        single(tile("Pressure",
                    "Memory pressure now, on the machine where it is worst: the kernel's level on macOS, derived "
                    "from stalls on Linux. At critical the system may end processes.", look.LEVEL),
               ask.PRESSURE_NOW, words=look.PRESSURE),
        single(
            tile("Swap in use",
                 "Memory that is swapped out now, on all chosen machines together. It slows draftd only if it is "
                 "read back (see Read back from swap).", look.BYTES),
            ask.SWAP_NOW,
            steps=((None, GOOD), (alerting.swap_bytes, WARN)),
        ),
        single(tile("Heat",
                    "The thermal level that macOS reports now, on the machine where it is worst. From heavy on, the "
                    "machine is slowed down.",
                    look.LEVEL, no_value="not reported"), ask.THERMAL_NOW, words=look.THERMAL),
        single(tile("Throttle events",
                    "How often a machine's thermal level rose to heavy or above, over the time shown.",
                    look.COUNT, no_value="not reported", decimals=0), ask.THROTTLES_NOW, steps=look.NONE_IS_WELL),
        single(tile("Readings that failed",
                    "Sensor readings that failed or took too long, over the time shown. Their values are missing.",
                    look.COUNT, decimals=0), ask.READING_ERRORS, steps=((None, GOOD), (1, WARN))),
    )  # fmt: skip


def _memory() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Memory by kind",
                 "Each machine's memory by use; the stack is about all of its memory. macOS: free, active, inactive, "
                 "wired, compressed. Linux: used, free, cached, buffers.", look.BYTES, 12, low=0),
            ask.MEMORY_BY_KIND,
            stacked=True,
        ),
        lines(
            Text("Headroom and floor",
                 "Available memory minus the configured floor, for each machine, and the floor (dashed). Below zero "
                 "less memory than the floor is left.",
                 look.BYTES, 12),
            *ask.HEADROOM,
            steps=((None, BAD), (0, GOOD)),
            dashed=("floor",),
        ),
        lines(
            Text("MLX",
                 "MLX's own count of each daemon's memory: active (held by arrays), cache (freed and kept for "
                 "reuse), peak (the most that was active). On macOS also the most that Metal recommends (dashed), "
                 "and the GPU memory of all processes.", look.BYTES, low=0),
            ask.MLX_MEMORY,
            ask.WORKING_SET,
            ask.GPU_MEMORY,
            dashed=("recommended",),
        ),
        lines(
            Text("Memory of the daemon",
                 "Resident memory of the daemon's process, and all memory of its machine (dashed).",
                 look.BYTES, low=0),
            ask.PROCESS,
            ask.MEMORY_LIMIT,
            dashed=("^all",),
        ),
        lines(
            Text("Shares of memory",
                 "Each use's share of the machine's memory, and the share that macOS counts as free by its own rule "
                 "(dashed).",
                 look.SHARE, low=0, high=1),
            ask.UTILIZATION,
            ask.FREE,
            dashed=("macOS",),
        ),
    )  # fmt: skip


def _pressure(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        states(
            Text("Memory pressure",
                 "For each machine: normal, warn or critical, from the kernel on macOS, from stalls on Linux. At "
                 "critical the system may end processes.",
                 look.LEVEL),
            (ask.PRESSURE, look.PRESSURE),
        ),
        lines(
            Text("Time in critical pressure",
                 "Share of the time that each machine is in critical memory pressure. DraftdMemoryPressureCritical "
                 f"fires if it is above {alerting.critical_share:.0%} of {alerting.window} for "
                 f"{alerting.machine_hold}.", look.SHARE, low=0, high=1),
            ask.CRITICAL,
            steps=((None, GOOD), (alerting.critical_share, BAD)),
        ),
        lines(
            Text("Swap",
                 "Swap space of each machine, used and free. macOS adds swap space when it needs more.",
                 look.BYTES, low=0),
            ask.SWAP,
            stacked=True,
        ),
        lines(
            Text("Read back from swap",
                 "Bytes per second that each machine reads back from swap. At the dashed line, "
                 f"{alerting.swap_bytes / 2**20:.0f} MiB are read in {alerting.window}; above it for two windows "
                 "DraftdSwapRising fires.", look.BYTES_PER_SECOND, 12, low=0),
            ask.SWAP_INS,
            steps=((None, GOOD), (alerting.swap_bytes / alerting.window_seconds, BAD)),
        ),
        lines(
            Text("Pages read back from swap",
                 "Pages per second that each machine reads back from swap, as the operating system counts them.",
                 look.PER_SECOND, 12,
                 low=0),
            ask.PAGE_INS,
        ),
    )  # fmt: skip


def _heat(alerting: Alerting) -> tuple[Panel, ...]:
    power = {1: Word("yes", PLAIN), 0: Word("no", "text")}
    return (
        states(
            Text("Thermal level",
                 "The level that macOS reports for each machine. From heavy on, the machine is slowed down; after "
                 f"{alerting.machine_hold} DraftdThermalHeavy fires.", look.LEVEL, height=6, no_value="macOS only"),
            (ask.THERMAL, look.THERMAL),
        ),
        lines(
            Text("Throttles",
                 "How often per rate interval each machine's thermal level rose to heavy or above.",
                 look.COUNT, height=6, low=0, no_value="macOS only"),
            ask.THROTTLES,
        ),
        lines(
            Text("Temperature",
                 "Temperature by sensor. macOS: averages of processor and GPU, if macmon is installed. Linux: "
                 "thermal zones.",
                 look.CELSIUS, height=6, no_value="no sensor"),
            ask.TEMPERATURE,
        ),
        lines(Text("Fans",
                   "Fan speeds. macOS: if macmon is installed. Linux: if the kernel reports them.",
                   look.RPM, height=6, low=0, no_value="no sensor"),
              ask.FANS),
        lines(
            Text("Power",
                 "Power drawn, by part of the machine, if macmon is installed (macOS). The enclosure is the whole "
                 "machine and includes the other parts.",
                 look.WATTS, height=6, low=0, no_value="no sensor"),
            ask.POWER,
        ),
        lines(
            Text("GPU busy",
                 "Share of the time in which the GPU works, for any process. If it is high while draftd is idle, "
                 "another program uses the GPU.",
                 look.SHARE, height=6, low=0, high=1, no_value="macOS only"),
            ask.GPU_BUSY,
        ),
        states(
            Text("Power source",
                 "For each machine: whether low-power mode is on, which slows decoding, and whether it is on mains. "
                 "On battery, macOS may switch low-power mode on.",
                 look.LEVEL, 24, 4, no_value="not reported"),
            (ask.LOW_POWER, power),
            (ask.PLUGGED_IN, power),
        ),
    )  # fmt: skip


def _sensors() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Failed readings",
                 "Sensor readings that failed or took too long, per rate interval, by reading. Their values are "
                 "missing above.",
                 look.COUNT, 24, 5, low=0, no_value="none"),
            ask.READING_ERRORS_BY,
        ),
    )  # fmt: skip
