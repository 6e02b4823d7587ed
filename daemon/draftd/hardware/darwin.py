"""Readings of macOS on Apple silicon, without root. `SystemApple` supplies raw answers, which are decoded here.

None of this has run on a Mac yet: encodings follow Apple's headers (`notify.h`, `sys/sysctl.h`, `mach/vm_statistics.h`,
`NSProcessInfo.h`), `ioreg`'s text and macmon's documented JSON.
"""

from __future__ import annotations

import re
import struct

from pydantic import BaseModel

from draftd.hardware.apple import SystemApple
from draftd.hardware.monitor import Readings
from draftd.hardware.state import HardwareSample, MemoryPressure, ThermalLevel

_PRESSURES = {1: MemoryPressure.NORMAL, 2: MemoryPressure.WARN, 4: MemoryPressure.CRITICAL}

# struct xsw_usage: total, available, used; page size and encryption follow.
_SWAP = struct.Struct("<QQQ")
# struct vm_statistics64: free, active, inactive, wired; nine counters; purgeable, speculative; decompressions,
# compressions, swap-ins, swap-outs; the compressor's pages, throttled, external, internal. Counts of pages.
_PAGES = struct.Struct("<4I9Q2I4Q4I")
_PLACES = {"free": 0, "active": 1, "inactive": 2, "wired": 3, "compressed": 19}
_SWAP_INS = 17

_IOREG = ("/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
_MACMON_MILLISECONDS = "200"  # the time over which it measures power; its default is a second


def darwin_readings(apple: SystemApple, macmon: str | None) -> Readings:
    """Returns the readings that only macOS has. `macmon`: that program's path; None if it is not installed."""
    readings: Readings = {
        # Coarser than the next reading, which replaces it: its four values are the first four levels.
        "thermal_state": lambda: HardwareSample(thermal_level=ThermalLevel(apple.thermal_state())),
        "thermal_pressure": lambda: HardwareSample(thermal_level=ThermalLevel(apple.thermal_pressure())),
        "low_power": lambda: HardwareSample(low_power=apple.low_power()),
        "pressure": lambda: pressure_sample(apple.sysctl("kern.memorystatus_vm_pressure_level")),
        "free_share": lambda: free_share_sample(apple.sysctl("kern.memorystatus_level")),
        "swap": lambda: swap_sample(apple.sysctl("vm.swapusage")),
        "memory_states": lambda: pages_sample(apple.vm_statistics(), apple.page_size),
        "gpu": lambda: gpu_sample(apple.run(_IOREG)),
    }
    if macmon is not None:
        command = (macmon, "pipe", "-s", "1", "-i", _MACMON_MILLISECONDS)
        readings["macmon"] = lambda: macmon_sample(apple.run(command))
    return readings


def pressure_sample(raw: bytes) -> HardwareSample:
    """Decodes an int32: 1 normal, 2 warn, 4 critical. Raises ValueError on anything else."""
    level = _int32(raw)
    if level not in _PRESSURES:
        raise ValueError(f"memory pressure {level}, expected one of {sorted(_PRESSURES)}")
    return HardwareSample(memory_pressure=_PRESSURES[level])


def free_share_sample(raw: bytes) -> HardwareSample:
    """Decodes an int32 in percent. Raises ValueError outside 0 to 100."""
    percent = _int32(raw)
    if not 0 <= percent <= 100:
        raise ValueError(f"free memory {percent} %, expected 0 to 100")
    return HardwareSample(memory_free_share=percent / 100)


def swap_sample(raw: bytes) -> HardwareSample:
    """Decodes struct xsw_usage, in bytes."""
    _, available, used = _unpack(_SWAP, raw)
    return HardwareSample(swap_used=used, swap_free=available)


def pages_sample(raw: bytes, page_size: int) -> HardwareSample:
    """Decodes struct vm_statistics64. psutil's swap-ins are all page-ins on macOS, files included, so they are read
    here."""
    values = _unpack(_PAGES, raw)
    return HardwareSample(
        memory_states={state: values[place] * page_size for state, place in _PLACES.items()},
        swap_in_pages=values[_SWAP_INS],
        swap_in_bytes=values[_SWAP_INS] * page_size,
    )


def gpu_sample(text: str) -> HardwareSample:
    """Decodes `ioreg`'s IOAccelerator: the GPU memory of all processes, without the driver's own, and the utilization.
    Of several accelerators the busiest counts. Raises ValueError outside 0 to 100 percent."""
    memory = [int(size) for size in re.findall(r'"In use system memory"\s*=\s*(\d+)', text)]
    percents = [int(percent) for percent in re.findall(r'"Device Utilization %"\s*=\s*(\d+)', text)]
    if any(percent > 100 for percent in percents):
        raise ValueError(f"GPU utilization {max(percents)} %, expected at most 100")
    return HardwareSample(
        gpu_memory=sum(memory) if memory else None, gpu_utilization=max(percents) / 100 if percents else None
    )


class _Fan(BaseModel):
    name: str
    rpm: float


class _Macmon(BaseModel):
    """The fields used of a line of `macmon pipe`: degrees Celsius and watts."""

    temp: dict[str, float] = {}
    fans: list[_Fan] | None = None
    cpu_power: float | None = None
    gpu_power: float | None = None
    ane_power: float | None = None
    ram_power: float | None = None
    sys_power: float | None = None


def macmon_sample(text: str) -> HardwareSample:
    """Decodes the first line of `macmon pipe`, which has 0 for temperatures or totals that this Mac lacks. Raises
    ValueError if it is not such a line."""
    report = _Macmon.model_validate_json(text.partition("\n")[0])
    temperatures = {name: heat for name in ("cpu", "gpu") if (heat := report.temp.get(f"{name}_temp_avg", 0)) > 0}
    power = {"cpu": report.cpu_power, "gpu": report.gpu_power, "ane": report.ane_power, "ram": report.ram_power}
    watts_by_part = {name: watts for name, watts in power.items() if watts is not None}
    if report.sys_power:
        watts_by_part["system"] = report.sys_power
    fans = {fan.name: fan.rpm for fan in report.fans or ()}
    return HardwareSample(temperatures=temperatures or None, fans=fans or None, power=watts_by_part or None)


def _int32(raw: bytes) -> int:
    if len(raw) != 4:
        raise ValueError(f"{len(raw)} bytes, expected 4")
    return int.from_bytes(raw, "little", signed=True)


def _unpack(layout: struct.Struct, raw: bytes) -> tuple[int, ...]:
    """Unpacks the start of a structure: later systems may add fields at its end."""
    if len(raw) < layout.size:
        raise ValueError(f"{len(raw)} bytes, expected {layout.size} or more")
    return layout.unpack_from(raw)
