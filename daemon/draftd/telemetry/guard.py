"""Telemetry never raises into a request: what goes wrong is caught here, counted, and told once."""

from __future__ import annotations

import logging
import threading

_log = logging.getLogger("draftd.telemetry")


class Guard:
    """Counts failures of telemetry itself by the part that failed, and logs the first of each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def caught(self, part: str, error: Exception) -> None:
        """Takes note of one failure. Never raises."""
        with self._lock:
            first = part not in self._counts
            self._counts[part] = self._counts.get(part, 0) + 1
        if first:
            _log.warning(
                "telemetry failed in its %s part; requests are not affected, further failures are only counted",
                part,
                exc_info=error,
            )

    def counts(self) -> dict[str, int]:
        """Failures so far by part."""
        with self._lock:
            return dict(self._counts)
