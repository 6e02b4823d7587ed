"""Samples the machine on a thread of its own, so that a slow reading blocks nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from draftd.hardware.probe import HardwareProbe
from draftd.hardware.state import HardwareState, advance


class HardwareMonitor:
    """A HardwareView that is renewed every `period_seconds`.

    `memory_floor` is in bytes; None is a share of the memory there is. `clock` is monotonic.
    """

    def __init__(
        self,
        probe: HardwareProbe,
        *,
        period_seconds: float,
        memory_floor: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe, self._period, self._floor, self._clock = probe, period_seconds, memory_floor, clock
        self._state: HardwareState | None = None
        self._stopped = threading.Event()
        # Daemonic: a reading that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="draftd-hardware", daemon=True)

    @property
    def state(self) -> HardwareState | None:
        return self._state

    @property
    def errors(self) -> Mapping[str, int]:
        return self._probe.errors

    def start(self) -> None:
        """Begins to sample; the first sample follows at once."""
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Samples no more. False where a reading did not return within `seconds`: its thread is left behind."""
        self._stopped.set()
        began = time.monotonic()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        self._probe.close(max(0.0, seconds - (time.monotonic() - began)))
        return True

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._state = advance(self._state, self._probe.sample(), self._clock(), self._floor)
            except Exception as error:
                self._probe.failed("probe", error)
            self._stopped.wait(self._period)
