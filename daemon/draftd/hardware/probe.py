"""Takes samples of the machine from its readings. Each reading fails or hangs alone, and is counted then."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from draftd.hardware.sample import HardwareSample

_log = logging.getLogger("draftd.hardware")


@dataclass(frozen=True, slots=True)
class Reading:
    """One source. `read` returns a sample with only what it found; nothing there is an empty one, not an error."""

    name: str
    read: Callable[[], HardwareSample]


class HardwareProbe:
    """Used from one thread; `errors` from any.

    All readings are made on one thread, each within `reading_seconds`. One that hangs keeps it; the next gets another,
    and the one that hangs is refused until it has returned, so that no more threads are left behind than there are
    readings.
    """

    def __init__(self, readings: Sequence[Reading], reading_seconds: float = 3.0) -> None:
        self._readings = tuple(readings)
        self._seconds = reading_seconds
        self._worker: _Worker | None = None
        self._hung: dict[str, _Worker] = {}
        self._errors: Mapping[str, int] = {}

    @property
    def errors(self) -> Mapping[str, int]:
        """Failures so far by reading."""
        return self._errors

    def sample(self) -> HardwareSample:
        """What all readings found. What one of them raises costs its own values, and so does its silence."""
        found = HardwareSample()
        for reading in self._readings:
            try:
                found = found.merged(self._read(reading))
            except Exception as error:
                self.failed(reading.name, error)
        return found

    def failed(self, name: str, error: Exception) -> None:
        """Counts one failure of that reading, and logs the first."""
        before = self._errors.get(name, 0)
        # A new mapping each time: whoever reads the old one on another thread never sees it change.
        self._errors = {**self._errors, name: before + 1}
        if not before:
            _log.warning("cannot read %s: %r; its values are absent, further failures are only counted", name, error)

    def close(self, seconds: float) -> None:
        """Ends the thread, within `seconds`; not those that hang, which nothing can end."""
        if self._worker is not None:
            self._worker.leave()
            self._worker.thread.join(seconds)
            self._worker = None

    def _read(self, reading: Reading) -> HardwareSample:
        if reading.name in self._hung:
            if self._hung[reading.name].thread.is_alive():
                raise TimeoutError("an earlier reading has still not returned")
            del self._hung[reading.name]
        worker = self._worker = self._worker or _Worker()
        answer = worker.ask(reading.read)
        wait([answer], self._seconds)
        if not answer.done():
            worker.leave()
            self._worker, self._hung[reading.name] = None, worker
            raise TimeoutError(f"no answer within {self._seconds:g} s")
        return answer.result()


class _Worker:
    """One thread, daemonic: a reading that never returns must not keep the process from ending."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[HardwareSample], Callable[[], HardwareSample]] | None]
        self._asked = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="draftd-reading", daemon=True)
        self.thread.start()

    def ask(self, function: Callable[[], HardwareSample]) -> Future[HardwareSample]:
        answer: Future[HardwareSample] = Future()
        self._asked.put((answer, function))
        return answer

    def leave(self) -> None:
        """Ends it after the call that it is in."""
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            answer, function = asked
            try:
                answer.set_result(function())
            except Exception as error:
                answer.set_exception(error)
