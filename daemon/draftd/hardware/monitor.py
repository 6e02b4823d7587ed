"""Samples the machine on its own thread. A reading that fails or hangs is counted, and blocks nothing else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait

from draftd.hardware.state import HardwareSample, HardwareView, advance

_log = logging.getLogger("draftd.hardware")


Readings = dict[str, Callable[[], HardwareSample]]
"""Sources by name. Each returns a sample with only what it found; nothing there is an empty one, not an error."""


class HardwareProbe:
    """Takes samples. Used from one thread; `errors` from any. Each reading may take `reading_seconds`, on its own
    thread. One that hangs is not repeated until it has returned, so at most one thread per reading is left behind."""

    def __init__(self, readings: Readings, reading_seconds: float = 3.0) -> None:
        self._readings, self._seconds = readings, reading_seconds
        self._pending: dict[str, Future[HardwareSample]] = {}
        self.errors: Mapping[str, int] = {}  # by reading: failures so far

    def add(self, readings: Readings) -> None:
        """Adds readings, from the next sample on."""
        self._readings = {**self._readings, **readings}

    def sample(self) -> HardwareSample:
        """Returns the values of all readings, without those of a reading that raised or did not answer in time."""
        merged = HardwareSample()
        for name, read in self._readings.items():
            try:
                merged = merged.merge(self._read(name, read))
            except Exception as error:
                self.count_failure(name, error)
        return merged

    def count_failure(self, name: str, error: Exception) -> None:
        """Counts one failure of that reading, and logs the first."""
        before = self.errors.get(name, 0)
        # A new mapping each time: other threads that read the old one never see it change.
        self.errors = {**self.errors, name: before + 1}
        if not before:
            _log.warning("cannot read %s: %r; its values are absent, further failures are only counted", name, error)

    def _read(self, name: str, read: Callable[[], HardwareSample]) -> HardwareSample:
        earlier = self._pending.get(name)
        if earlier is not None and not earlier.done():
            raise TimeoutError("an earlier attempt to read it has not returned yet")
        answer = self._pending[name] = Future()
        # Daemonic: a reading that never returns must not keep the process from ending.
        threading.Thread(target=_answer, args=(answer, read), name="draftd-reading", daemon=True).start()
        wait([answer], self._seconds)
        if not answer.done():
            raise TimeoutError(f"no answer within {self._seconds:g} s")
        return answer.result()


def _answer(answer: Future[HardwareSample], read: Callable[[], HardwareSample]) -> None:
    try:
        answer.set_result(read())
    except Exception as error:
        answer.set_exception(error)


class HardwareMonitor(HardwareView):
    """A HardwareView that is updated every `period_seconds`. `memory_floor`: bytes of memory to leave to other
    programs; None for 10/24 of the usable memory. `clock` is monotonic."""

    def __init__(
        self,
        probe: HardwareProbe,
        *,
        period_seconds: float,
        memory_floor: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._probe, self._period, self._floor, self._clock = probe, period_seconds, memory_floor, clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="draftd-hardware", daemon=True)

    def start(self, readings: Readings | None = None) -> None:
        """Starts to sample the probe's sensors, and those of `readings` too; the first sample is taken at once."""
        self._probe.add(readings or {})
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Stops sampling. Returns False if a reading did not return within `seconds`: its thread is left behind."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.state = advance(self.state, self._probe.sample(), self._clock(), self._floor)
            except Exception as error:
                self._probe.count_failure("probe", error)
            self.errors = self._probe.errors
            self._stopped.wait(self._period)
