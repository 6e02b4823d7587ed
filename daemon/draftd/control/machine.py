"""The hardware's readings as the guard takes them: each once, and a word when they stop coming."""

from __future__ import annotations

import time
from collections.abc import Callable

from draftd.hardware.sample import MemoryPressure, ThermalLevel
from draftd.hardware.state import HardwareView
from draftd.policy.machine import Machine

_LEAST_STALE_SECONDS, _STALE_READINGS = 60.0, 3  # without a reading for so long, and for as many periods


class MachineFeed:
    """One thread's. `clock` is monotonic, as the readings' times are."""

    def __init__(self, view: HardwareView, clock: Callable[[], float] = time.monotonic) -> None:
        self._view, self._clock = view, clock
        self._at: float | None = None
        self._period = 0.0
        self._stale = False

    def reading(self) -> Machine | None:
        """The latest, where it is new. A machine that cannot be read any more is not critical for ever: it is told to
        be well, once."""
        state = self._view.state
        if state is None:
            return None
        if state.at == self._at:
            limit = max(_LEAST_STALE_SECONDS, _STALE_READINGS * self._period)
            if self._stale or self._clock() - state.at < limit:
                return None
            self._stale = True
            return Machine(False, False, None)
        self._period = state.at - self._at if self._at is not None else 0.0
        self._at, self._stale = state.at, False
        pressure, thermal = state.sample.memory_pressure, state.thermal_level
        return Machine(
            None if pressure is None else pressure is MemoryPressure.CRITICAL,
            None if thermal is None else thermal >= ThermalLevel.HEAVY,
            state.swap_ins,
        )
