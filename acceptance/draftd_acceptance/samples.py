"""The machine beside a run: memory, pressure, swap, heat, power as the daemon reads them, with the time and the arm."""

from __future__ import annotations

import time
from dataclasses import dataclass

from draftd.client.client import StatusReply
from draftd.protocol import plain
from draftd_acceptance.ticks import Stage


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


def sample(status: StatusReply, stage: Stage, session: int, arm: str, elapsed: float) -> Sample:
    """What one status says of the machine."""
    hardware = plain(status.hardware)
    temperatures, power = hardware["temperatures"], hardware["power"]
    return Sample(
        stage=stage,
        session=session,
        arm=arm,
        elapsed=elapsed,
        at=time.time(),
        resident=hardware["process_resident_bytes"],
        available=hardware["memory_available_bytes"],
        headroom=hardware["memory_headroom_bytes"],
        floor=hardware["memory_floor_bytes"],
        pressure=_known(hardware["memory_pressure"]),
        critical_seconds=hardware["critical_pressure"] or 0.0,
        swap_in=hardware["swap_in_bytes"],
        mlx_active=hardware["mlx_active_bytes"],
        mlx_cache=hardware["mlx_cache_bytes"],
        thermal=_known(hardware["thermal_level"]),
        throttles=hardware["throttles"],
        temperature=max(temperatures.values(), default=None),
        watts=sum(power.values()) if power else None,
    )


def _known(state: str | None) -> str | None:
    return None if state == "unspecified" else state
