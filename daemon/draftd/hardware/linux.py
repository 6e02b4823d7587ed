"""Readings of Linux: pressure stalls, control groups (version 2), swap, thermal zones and fans, from files that anybody
may read.

Formats: Documentation/accounting/psi.rst, admin-guide/cgroup-v2.rst and driver-api/thermal/sysfs-api.rst of the
kernel.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from draftd.hardware.monitor import Readings
from draftd.hardware.state import HardwareSample, MemoryPressure

# Shares of the last ten seconds, in percent, in which some or all tasks were stalled for memory. The kernel names no
# levels; these are draftd's own: a tenth is felt, and a tenth in which all tasks were stalled is thrashing.
_WARN_SOME, _CRITICAL_FULL = 10.0, 10.0

_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")  # version 2 alone, or beside version 1


def linux_readings(root: Path = Path("/")) -> Readings:
    """Returns the readings that only Linux has; `root`: the folder of /proc and /sys."""
    return {
        "memory_states": _memory_states,
        "pressure": lambda: _pressure(root),
        "cgroup": lambda: _cgroup(root),
        "swap": lambda: _swap(root),
        "thermal_zones": lambda: _thermal_zones(root),
        "fans": _fans,
    }


def pressure_level(stalls: str) -> MemoryPressure:
    """Returns the level of `some avg10=… full avg10=…`. Raises ValueError if either is missing."""
    shares = {kind: float(share) for kind, share in re.findall(r"^(some|full) avg10=([\d.]+)", stalls, re.MULTILINE)}
    if shares.keys() != {"some", "full"}:
        raise ValueError(f"expected a line `some` and a line `full` with avg10, got {stalls!r}")
    if shares["full"] >= _CRITICAL_FULL:
        return MemoryPressure.CRITICAL
    return MemoryPressure.WARN if shares["some"] >= _WARN_SOME else MemoryPressure.NORMAL


def fields_of(text: str) -> dict[str, int]:
    """Returns the numbers of `name 12` lines."""
    return {name: int(number) for name, number in re.findall(r"^(\w+) (\d+)", text, re.MULTILINE)}


def _memory_states() -> HardwareSample:
    memory: Any = psutil.virtual_memory()  # it has more fields on Linux
    states = {"free": memory.free, "buffers": memory.buffers, "cached": memory.cached}
    return HardwareSample(memory_states={"used": max(0, memory.total - sum(states.values())), **states})


def _pressure(root: Path) -> HardwareSample:
    """Returns the stalls of the daemon's own control group if that has a limit, else of the whole system."""
    limited = _limited_group(root)
    text = _text(limited / "memory.pressure") if limited is not None else None
    if text is None:
        text = _text(root / "proc/pressure/memory")
    return HardwareSample(memory_pressure=pressure_level(text) if text is not None else None)


def _cgroup(root: Path) -> HardwareSample:
    group = _limited_group(root)
    if group is None:
        return HardwareSample()
    used = int((group / "memory.current").read_text())
    # The kernel drops this before it stalls a task, so it counts as free.
    cache = fields_of(_text(group / "memory.stat") or "").get("inactive_file", 0)
    return HardwareSample(cgroup_limit=int((group / "memory.max").read_text()), cgroup_used=max(0, used - cache))


def memory_limit(root: Path) -> int | None:
    """Returns the bytes that the daemon's control groups allow it; None without a limit."""
    limits = [limit for folder in _groups(root) if (limit := _text(folder / "memory.max")) and limit.strip() != "max"]
    return min(map(int, limits), default=None)


def processor_limit(root: Path) -> float | None:
    """Returns the number of processors that the daemon's control groups allow it; None without a limit."""
    quotas = [text.split() for folder in _groups(root) if (text := _text(folder / "cpu.max"))]
    return min((int(quota) / int(period) for quota, period in quotas if quota != "max"), default=None)


def _limited_group(root: Path) -> Path | None:
    """Returns the control group, from the daemon's own upwards, that leaves it the least memory; None without a
    limit."""
    rooms: list[tuple[int, Path]] = []
    for folder in _groups(root):
        limit, used = _text(folder / "memory.max"), _text(folder / "memory.current")
        if limit is not None and used is not None and limit.strip() != "max":
            rooms.append((int(limit) - int(used), folder))
    return min(rooms)[1] if rooms else None


def _groups(root: Path) -> Iterator[Path]:
    """Yields the daemon's own control group, and its ancestors."""
    own = re.search(r"^0::(/.*)$", _text(root / "proc/self/cgroup") or "", re.MULTILINE)
    if own is None:
        return
    for mount in (root / name for name in _MOUNTS):
        group = mount / own[1].lstrip("/")
        for folder in (group, *group.parents):
            yield folder
            if folder == mount:
                break


def _swap(root: Path) -> HardwareSample:
    """Returns swap use. Swap-ins come from the kernel's count of pages: psutil assumes pages of 4 KiB."""
    swap = psutil.swap_memory()
    pages = fields_of(_text(root / "proc/vmstat") or "").get("pswpin")
    return HardwareSample(
        swap_used=swap.used,
        swap_free=swap.free,
        swap_in_pages=pages,
        swap_in_bytes=pages * os.sysconf("SC_PAGE_SIZE") if pages is not None else None,
    )


def _thermal_zones(root: Path) -> HardwareSample:
    temperatures: dict[str, float] = {}
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        text = _text(zone / "temp")
        if text is not None:
            name = (_text(zone / "type") or "").strip()
            temperatures[f"{name}.{zone.name.removeprefix('thermal_zone')}" if name else zone.name] = int(text) / 1000
    return HardwareSample(temperatures=temperatures or None)


def _fans() -> HardwareSample:
    fans = psutil.sensors_fans() if hasattr(psutil, "sensors_fans") else {}
    speeds = {f"{chip}.{n}": float(fan.current) for chip, some in fans.items() for n, fan in enumerate(some)}
    return HardwareSample(fans=speeds or None)


def _text(path: Path) -> str | None:
    """Returns a file's text; None if this kernel or machine does not have it."""
    try:
        return path.read_text()
    except OSError as error:
        # A kernel without pressure stalls answers EOPNOTSUPP; a disabled zone answers EAGAIN, ENODATA or EINVAL.
        if error.errno in _ABSENT:
            return None
        raise


_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.ENODATA, errno.EAGAIN, errno.EINVAL, errno.ENODEV)
