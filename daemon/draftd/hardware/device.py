"""The machine that does not change while it runs: its processor, its cores, its memory."""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from draftd.hardware.linux import memory_limit, processor_limit


@dataclass(frozen=True, slots=True)
class Device:
    """`cores` and `memory_bytes` are what this process may use: a control group that allows less counts."""

    name: str
    cores: int
    memory_bytes: int


def device(root: Path = Path("/")) -> Device:
    """`root` is where /proc and /sys are. What cannot be read is left to what Python knows."""
    cores, memory = os.cpu_count() or 1, psutil.virtual_memory().total
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
        try:
            cores = min(cores, math.ceil(processor_limit(root) or cores))
            memory = min(memory, memory_limit(root) or memory)
        except (OSError, ValueError):
            pass
    return Device(_name(root), cores, memory)


def _name(root: Path) -> str:
    try:
        return (_apple() if sys.platform == "darwin" else _linux(root)) or platform.machine()
    except OSError:
        return platform.machine()


def _apple() -> str:
    from draftd.hardware.apple import SystemApple

    return SystemApple().sysctl("machdep.cpu.brand_string").rstrip(b"\0").decode(errors="replace")


def _linux(root: Path) -> str:
    """On x86 the processor's own name; on Arm, which tells none, the board's where it is known."""
    text = (root / "proc/cpuinfo").read_text(errors="replace")
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return found[1] if found else ""
