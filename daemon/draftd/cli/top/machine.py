"""The rows about the machine and what of it the models take. What it does not tell is a dash."""

from __future__ import annotations

from rich.text import Text

from draftd.cli import figures
from draftd.cli.figures import NOTHING
from draftd.cli.top.rows import BAD, DIM, GOOD, WARN, Row
from draftd.cli.top.view import View
from draftd.v1 import control_pb2 as pb

_PRESSURE_STYLES = {
    pb.MEMORY_PRESSURE_NORMAL: GOOD,
    pb.MEMORY_PRESSURE_WARN: WARN,
    pb.MEMORY_PRESSURE_CRITICAL: BAD,
}


def machine(view: View) -> list[Row]:
    status = view.status
    h = status.hardware
    return [
        Row("headroom", _headroom(h)),
        Row("pressure", _pressure(h)),
        Row("MLX", _mlx(h)),
        Row("model", _model(status)),
        Row("GPU", _gpu(h)),
        Row("thermal", _thermal(h)),
        Row("power", _power(h)),
    ]


def _headroom(h: pb.Hardware) -> Text:
    if not h.HasField("memory_headroom_bytes"):
        return Text(NOTHING)
    room = h.memory_headroom_bytes
    shown = figures.size(room) if room >= 0 else f"−{figures.size(-room)}"
    return Text.assemble(
        (shown, GOOD if room >= 0 else BAD),
        f", floor {_size(h, 'memory_floor_bytes')}",
        (f" of {_size(h, 'memory_limit_bytes')}", DIM),
    )


def _model(status: pb.GetStatusResponse) -> Text:
    if not status.model.model:  # it is still loading
        return Text(NOTHING)
    return Text(f"{figures.size(status.weight_bytes)}, KV cache {figures.size(status.kv_cache_bytes)}")


def _mlx(h: pb.Hardware) -> Text:
    if not h.HasField("mlx_active_bytes"):
        return Text(NOTHING)
    return Text(
        f"{_size(h, 'mlx_active_bytes')}, cache {_size(h, 'mlx_cache_bytes')}, peak {_size(h, 'mlx_peak_bytes')}"
    )


def _pressure(h: pb.Hardware) -> Text:
    name = NOTHING
    if h.HasField("memory_pressure"):
        name = pb.MemoryPressure.Name(h.memory_pressure).removeprefix("MEMORY_PRESSURE_").lower()
    return Text.assemble(
        (name, _PRESSURE_STYLES.get(h.memory_pressure, "")),
        ", swapped in ",
        (_size(h, "swap_in_bytes"), WARN if h.swap_in_bytes else ""),
    )


def _gpu(h: pb.Hardware) -> Text:
    if not h.HasField("gpu_utilization") and not h.HasField("gpu_memory_bytes"):
        return Text(NOTHING)
    busy = figures.percent(h.gpu_utilization if h.HasField("gpu_utilization") else None)
    return Text(f"{busy} busy, {_size(h, 'gpu_memory_bytes')}")


def _thermal(h: pb.Hardware) -> Text:
    name, style = NOTHING, ""
    if h.HasField("thermal_level"):
        name = pb.ThermalLevel.Name(h.thermal_level).removeprefix("THERMAL_LEVEL_").lower()
        style = BAD if h.thermal_level >= pb.THERMAL_LEVEL_HEAVY else WARN
        if h.thermal_level == pb.THERMAL_LEVEL_NOMINAL:
            style = GOOD
    shown = Text.assemble((name, style))
    if h.HasField("throttles"):
        shown.append(f", {h.throttles} throttles", WARN if h.throttles else "")
    if h.temperatures:
        shown.append(f", {max(h.temperatures.values()):.0f} °C")
    return shown


def _power(h: pb.Hardware) -> Text:
    parts: list[tuple[str, str]] = []
    if h.HasField("on_mains"):
        parts.append(("mains" if h.on_mains else "battery", "" if h.on_mains else WARN))
    if h.HasField("low_power"):
        parts.append(("low-power mode" if h.low_power else "normal mode", WARN if h.low_power else ""))
    if "system" in h.power:
        parts.append((f"{h.power['system']:.0f} W", ""))
    return Text(", ").join(Text(*part) for part in parts) if parts else Text(NOTHING)


def _size(h: pb.Hardware, field: str) -> str:
    return figures.size(getattr(h, field)) if h.HasField(field) else NOTHING
