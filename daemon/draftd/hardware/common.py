"""Readings that psutil gives on every platform, and MLX's count of its own memory, which is injected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import psutil

from draftd.hardware.probe import Reading
from draftd.hardware.sample import HardwareSample


class MlxBytes(Protocol):
    """MLX's memory, in bytes."""

    @property
    def active(self) -> int: ...

    @property
    def cache(self) -> int: ...

    @property
    def peak(self) -> int: ...

    @property
    def working_set(self) -> int | None: ...


MlxReader = Callable[[], MlxBytes | None]


def common_readings(mlx: MlxReader) -> list[Reading]:
    """What is read alike on macOS and Linux. `mlx` answers None while no model is loaded."""
    process = psutil.Process()
    return [
        Reading("memory", _memory),
        Reading("process", lambda: HardwareSample(process_resident=process.memory_info().rss)),
        Reading("mlx", lambda: _mlx(mlx())),
        Reading("battery", _battery),
    ]


def _memory() -> HardwareSample:
    memory = psutil.virtual_memory()
    return HardwareSample(memory_total=memory.total, memory_available=memory.available)


def _mlx(found: MlxBytes | None) -> HardwareSample:
    if found is None:
        return HardwareSample()
    return HardwareSample(
        mlx_active=found.active, mlx_cache=found.cache, mlx_peak=found.peak, mlx_working_set=found.working_set
    )


def _battery() -> HardwareSample:
    """A machine without a battery has no power source to tell: absent, not plugged in."""
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return HardwareSample(plugged_in=battery.power_plugged if battery is not None else None)
