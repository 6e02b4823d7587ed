"""What the fallback needs of telemetry, which imports it."""

from __future__ import annotations

from typing import Protocol

from draftd.core import FallbackLevel
from draftd.fallback.probes import CanaryReport, ProbeReport


class FallbackTelemetry(Protocol):
    """Where the fallback reports what it does: draftd.telemetry.fallback. Any thread; never raises, never blocks."""

    def notification(self, result: str) -> None: ...

    def poll(self, result: str) -> None: ...

    def annotation(self, result: str) -> None: ...

    def probe(self, report: ProbeReport) -> None: ...

    def canaries(self, level: FallbackLevel, report: CanaryReport) -> None: ...
