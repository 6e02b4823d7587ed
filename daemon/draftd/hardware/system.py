"""This machine: the probe for its platform, and its constant properties."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from draftd.hardware.apple import SystemApple
from draftd.hardware.darwin import darwin_readings
from draftd.hardware.linux import linux_readings, memory_limit, processor_limit
from draftd.hardware.monitor import HardwareProbe, Readings
from draftd.hardware.state import HardwareSample


def system_probe() -> HardwareProbe:
    """Returns a probe with all readings of this platform."""
    readings = common_readings()
    if sys.platform == "linux":
        readings |= linux_readings()
    elif sys.platform == "darwin":
        readings |= darwin_readings(SystemApple(), shutil.which("macmon"))
    return HardwareProbe(readings)


def common_readings() -> Readings:
    """Returns the readings that work alike on macOS and Linux."""
    process = psutil.Process()
    return {
        "memory": _memory,
        "process": lambda: HardwareSample(process_resident=process.memory_info().rss),
        "battery": _battery,
    }


def _memory() -> HardwareSample:
    memory = psutil.virtual_memory()
    return HardwareSample(memory_total=memory.total, memory_available=memory.available)


def _battery() -> HardwareSample:
    """Reads the power source. On a machine without a battery it is absent, not "plugged in"."""
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return HardwareSample(plugged_in=battery.power_plugged if battery is not None else None)


@dataclass(frozen=True, slots=True)
class Device:
    """The machine. `cores` and `memory_bytes` are those that this process may use, under control groups' limits."""

    name: str
    cores: int
    memory_bytes: int


def device(root: Path = Path("/")) -> Device:
    """Returns the machine's properties; Python's own answers replace unreadable ones. `root`: the folder of /proc and
    /sys."""
    cores, memory = os.cpu_count() or 1, psutil.virtual_memory().total
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
        try:
            cores = min(cores, math.ceil(processor_limit(root) or cores))
            memory = min(memory, memory_limit(root) or memory)
        except (OSError, ValueError):
            pass
    try:
        name = _chip() if sys.platform == "darwin" else _processor(root)
    except OSError:
        name = ""
    return Device(name or platform.machine(), cores, memory)


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns the versions of those packages that are installed."""
    installed = {}
    for name in packages:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def _chip() -> str:
    return SystemApple().sysctl("machdep.cpu.brand_string").rstrip(b"\0").decode(errors="replace")


def _processor(root: Path) -> str:
    """Returns the processor's name on x86; on Arm, which has none, the board's if known."""
    text = (root / "proc/cpuinfo").read_text(errors="replace")
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return match[1] if match else ""
