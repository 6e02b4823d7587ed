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
        "The machines that run draftd: memory, pressure, swap, heat, power. Choose one instance above to read it well. "
        "Unknown values are empty, never zero: fans and power need macmon, heat needs macOS.",
        (
            Row("Now", _now(alerting)),
            Row("Unified memory", _memory()),
            Row("Pressure and swap", _pressure(alerting)),
            Row("Heat and power", _heat()),
            Row("Sensors", _sensors()),
        ),
    )


def _now(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        single(
            tile("Headroom", "Available memory minus the floor, on the machine with the least. Red: below the floor.",
                 look.BYTES, decimals=1),
            ask.HEADROOM_NOW,
            steps=((None, BAD), (0, GOOD)),
        ),
        single(tile("Pressure", "The operating system's verdict on memory, where it is worst.", look.LEVEL),
               ask.PRESSURE_NOW, words=look.PRESSURE),
        single(
            tile("Swap in use", "Memory swapped out, on all machines chosen above.", look.BYTES),
            ask.SWAP_NOW,
            steps=((None, GOOD), (alerting.swap_bytes, WARN)),
        ),
        single(tile("Heat", "macOS's thermal level, where it is worst. From heavy on the machine is throttled.",
                    look.LEVEL, no_value="not reported"), ask.THERMAL_NOW, words=look.THERMAL),
        single(tile("Throttle events", "How often over the time shown a machine was throttled for heat.",
                    look.COUNT, no_value="not reported", decimals=0), ask.THROTTLES_NOW, steps=look.NONE_IS_WELL),
        single(tile("Readings that failed", "Sensor readings over the time shown that failed or took too long. Their "
                    "values are missing.",
                    look.COUNT, decimals=0), ask.READING_ERRORS, steps=((None, GOOD), (1, WARN))),
    )  # fmt: skip


def _memory() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Memory by kind", "What the machine's memory is used for, and its total. Wired, active and "
                 "compressed on macOS; used, cached and buffers on Linux.", look.BYTES, 12, low=0),
            ask.MEMORY_BY_KIND,
            stacked=True,
        ),
        lines(
            Text("Headroom and floor", "Available memory minus the floor. Below zero, part of the floor is used.",
                 look.BYTES, 12),
            *ask.HEADROOM,
            steps=((None, BAD), (0, GOOD)),
            dashed=("floor",),
        ),
        lines(
            Text("MLX", "MLX's own count: active (held by arrays), cache (freed and kept for reuse), peak. With Metal "
                 "also the recommended limit, and the GPU memory of all processes.", look.BYTES, low=0),
            ask.MLX_MEMORY,
            ask.WORKING_SET,
            ask.GPU_MEMORY,
            dashed=("recommended",),
        ),
        lines(
            Text("The daemon and the machine", "Resident memory of the daemon, and all memory of the machine.",
                 look.BYTES, low=0),
            ask.PROCESS,
            ask.MEMORY_LIMIT,
            dashed=("^all",),
        ),
        lines(
            Text("Shares of memory", "The kinds as shares of all memory, and the share that macOS counts as free.",
                 look.SHARE, low=0, high=1),
            ask.UTILIZATION,
            ask.FREE,
            dashed=("macOS",),
        ),
    )  # fmt: skip


def _pressure(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        states(
            Text("Memory pressure", "Normal, warn or critical: from the kernel on macOS, from stalls on Linux.",
                 look.LEVEL),
            (ask.PRESSURE, look.PRESSURE),
        ),
        lines(
            Text("Time in critical pressure", "Share of the time. If it stays above the line, "
                 "DraftdMemoryPressureCritical fires.", look.SHARE, low=0, high=1),
            ask.CRITICAL,
            steps=((None, GOOD), (alerting.critical_share, BAD)),
        ),
        lines(
            Text("Swap", "Used and free. macOS adds swap when it needs more.", look.BYTES, low=0),
            ask.SWAP,
            stacked=True,
        ),
        lines(
            Text("Read back from swap", f"Beyond the line {alerting.swap_bytes / 2**20:.0f} MiB come back in "
                 f"{alerting.window}, at which DraftdSwapRising fires.", look.BYTES_PER_SECOND, 12, low=0),
            ask.SWAP_INS,
            steps=((None, GOOD), (alerting.swap_bytes / alerting.window_seconds, BAD)),
        ),
        lines(
            Text("Pages read back", "Pages per second, as the operating system counts them.", look.PER_SECOND, 12,
                 low=0),
            ask.PAGE_INS,
        ),
    )  # fmt: skip


def _heat() -> tuple[Panel, ...]:
    power = {1: Word("yes", PLAIN), 0: Word("no", "text")}
    return (
        states(
            Text("Thermal level", "The level that macOS reports. From heavy on, the machine is throttled and "
                 "DraftdThermalHeavy fires.", look.LEVEL, height=6, no_value="macOS only"),
            (ask.THERMAL, look.THERMAL),
        ),
        lines(
            Text("Throttles", "How often in each interval the machine was throttled for heat.",
                 look.COUNT, height=6, low=0, no_value="macOS only"),
            ask.THROTTLES,
        ),
        lines(
            Text("Temperature", "macOS: averages of processor and GPU, with macmon installed. Linux: thermal zones.",
                 look.CELSIUS, height=6, no_value="no sensor"),
            ask.TEMPERATURE,
        ),
        lines(Text("Fans", "On macOS with macmon installed; on Linux if the kernel reports them.",
                   look.RPM, height=6, low=0, no_value="no sensor"),
              ask.FANS),
        lines(
            Text("Power", "Power drawn, with macmon installed. The enclosure's power includes the others.",
                 look.WATTS, height=6, low=0, no_value="no sensor"),
            ask.POWER,
        ),
        lines(
            Text("GPU busy", "Share of the time in which the GPU worked for any process.",
                 look.SHARE, height=6, low=0, high=1, no_value="macOS only"),
            ask.GPU_BUSY,
        ),
        states(
            Text("Power source", "Low-power mode slows decoding. On battery, macOS may switch it on by itself.",
                 look.LEVEL, 24, 4, no_value="not reported"),
            (ask.LOW_POWER, power),
            (ask.PLUGGED_IN, power),
        ),
    )  # fmt: skip


def _sensors() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Failed readings", "Readings that failed or took too long in each interval, by reading.",
                 look.COUNT, 24, 5, low=0, no_value="none"),
            ask.READING_ERRORS_BY,
        ),
    )  # fmt: skip
