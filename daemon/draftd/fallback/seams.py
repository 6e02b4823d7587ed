"""The interface that the fallback needs from telemetry, which imports the fallback."""

from __future__ import annotations

from typing import Protocol

from draftd.core import FallbackLevel
from draftd.fallback.probes import CanaryReport, ProbeReport


class FallbackTelemetry(Protocol):
    """Records what the fallback does; implemented in draftd.telemetry.fallback. Any thread; never raises or blocks."""

    def notification(self, result: str) -> None: ...

    def poll(self, result: str) -> None: ...

    def annotation(self, result: str) -> None: ...

    def probe(self, report: ProbeReport) -> None: ...

    def canaries(self, level: FallbackLevel, report: CanaryReport) -> None: ...
