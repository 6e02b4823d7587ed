"""The seam to the machine: a probe takes samples. Each reading in it fails or hangs alone, and is counted then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftd.hardware.bounded import BoundedCalls
from draftd.hardware.sample import HardwareSample

_log = logging.getLogger("draftd.hardware")


class HardwareProbe(Protocol):
    """Takes samples, on one thread."""

    def sample(self) -> HardwareSample: ...

    def close(self, seconds: float) -> None:
        """Ends what it started, within `seconds`; nothing is sampled any more."""
        ...

    @property
    def errors(self) -> Mapping[str, int]:
        """Failures so far by reading. May be asked from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """One source. `read` returns a sample with only what it found; nothing there is an empty one, not an error."""

    name: str
    read: Callable[[], HardwareSample]


class ReadingsProbe:
    """Puts readings together. What one of them raises costs its own values and is counted, and so does its silence
    for `reading_seconds`."""

    def __init__(self, readings: Sequence[Reading], reading_seconds: float = 3.0) -> None:
        self._readings = tuple(readings)
        self._calls: BoundedCalls[HardwareSample] = BoundedCalls(reading_seconds)
        self._errors: Mapping[str, int] = {}

    @property
    def errors(self) -> Mapping[str, int]:
        return self._errors

    def sample(self) -> HardwareSample:
        found = HardwareSample()
        for reading in self._readings:
            try:
                found = found.merged(self._calls.call(reading.name, reading.read))
            except Exception as error:
                self._failed(reading.name, error)
        return found

    def close(self, seconds: float) -> None:
        self._calls.close(seconds)

    def _failed(self, name: str, error: Exception) -> None:
        before = self._errors.get(name, 0)
        # A new mapping each time: whoever reads the old one on another thread never sees it change.
        self._errors = {**self._errors, name: before + 1}
        if not before:
            _log.warning("cannot read %s: %r; its values are absent, further failures are only counted", name, error)


class ScriptedProbe:
    """The fake: gives the samples in turn, then the last one for ever. An exception in their place is raised."""

    def __init__(self, samples: Sequence[HardwareSample | Exception], errors: Mapping[str, int] | None = None) -> None:
        if not samples:
            raise ValueError("samples: at least one")
        self._samples = tuple(samples)
        self._errors = dict(errors or {})
        self.taken = 0
        self.closed = False

    @property
    def errors(self) -> Mapping[str, int]:
        return self._errors

    def close(self, seconds: float) -> None:
        self.closed = True

    def sample(self) -> HardwareSample:
        found = self._samples[min(self.taken, len(self._samples) - 1)]
        self.taken += 1
        if isinstance(found, Exception):
            raise found
        return found
