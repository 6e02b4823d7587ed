"""The machine beside a run: memory, pressure, swap, heat, power as the daemon reads them, with the time and the arm."""

from __future__ import annotations

import time
from dataclasses import dataclass

from draftd.acceptance.ticks import Stage
from draftd.v1 import control_pb2 as control


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading. Bytes, seconds, watts, degrees Celsius; what could not be read is None, never nought.

    `elapsed` is monotonic seconds since the session began. What counts up (critical seconds, swap-ins, throttles) does
    so since the daemon started.
    """

    stage: Stage
    session: int
    arm: str  # in hand when it was taken; empty between arms
    elapsed: float
    at: float  # Unix time
    resident: int | None = None  # of the daemon's process
    available: int | None = None  # of the machine, without swapping
    headroom: int | None = None  # available beyond the floor
    floor: int | None = None
    pressure: str | None = None  # normal, warn, critical
    critical_seconds: float = 0.0
    swap_in: int | None = None
    mlx_active: int | None = None
    mlx_cache: int | None = None
    thermal: str | None = None  # nominal, moderate, heavy, trapping, sleeping
    throttles: int | None = None
    temperature: float | None = None  # the hottest sensor's
    watts: float | None = None  # all that is measured, together

    @property
    def mlx(self) -> int | None:
        """MLX's active memory and its cache together, bytes."""
        return None if self.mlx_active is None else self.mlx_active + (self.mlx_cache or 0)


def sample(status: control.GetStatusResponse, stage: Stage, session: int, arm: str, elapsed: float) -> Sample:
    """What one status says of the machine."""
    h = status.hardware

    def known(name: str) -> int | None:
        return getattr(h, name) if h.HasField(name) else None

    return Sample(
        stage=stage,
        session=session,
        arm=arm,
        elapsed=elapsed,
        at=time.time(),
        resident=known("process_resident_bytes"),
        available=known("memory_available_bytes"),
        headroom=known("memory_headroom_bytes"),
        floor=known("memory_floor_bytes"),
        pressure=_name(control.MemoryPressure, known("memory_pressure")),
        critical_seconds=h.critical_pressure.ToNanoseconds() / 1e9,
        swap_in=known("swap_in_bytes"),
        mlx_active=known("mlx_active_bytes"),
        mlx_cache=known("mlx_cache_bytes"),
        thermal=_name(control.ThermalLevel, known("thermal_level")),
        throttles=known("throttles"),
        temperature=max(h.temperatures.values(), default=None),
        watts=sum(h.power.values()) if h.power else None,
    )


def _name(kind: type, value: int | None) -> str | None:
    """MEMORY_PRESSURE_WARN is warn."""
    return None if not value else kind.Name(value).rsplit("_", 1)[-1].lower()  # type: ignore[attr-defined]
