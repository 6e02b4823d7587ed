"""The link to the collector: one warning when exports stop arriving, and one message when they arrive again.

The SDK logs every attempt of every signal. Those lines go to the debug level; the last of them explains the warning.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

_log = logging.getLogger("draftd.telemetry")
_sdk_log = logging.getLogger("draftd.telemetry.sdk")

_NOISY = (
    "opentelemetry.exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk._logs._internal.export",
    "opentelemetry.sdk.metrics._internal.export",
    "opentelemetry.sdk.trace.export",
)


class Link(logging.Handler):
    """Counts failed exports, and keeps the exporters' log records out of the daemon's log."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = 0
        self._counting = threading.Lock()
        self._down: set[str] = set()
        self._warning = ""  # the exporters' latest log line

    def install(self) -> None:
        """Installs the filter for good: threads that outlive the shutdown still log failures."""
        for name in _NOISY:
            logger = logging.getLogger(name)
            logger.handlers = [self]
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:
            return
        if record.levelno >= logging.WARNING and "hutdown" not in message:
            self._warning = message
        _sdk_log.debug("%s: %s", record.name, message)

    def report(self, signal: str, endpoint: str, arrived: bool) -> None:
        with self._counting:
            was_down = bool(self._down)
            if not arrived:
                self.failed += 1
                self._down.add(signal)
            elif signal in self._down:
                # One recovered signal counts for all: another may have nothing to send for hours.
                self._down.clear()
            down = bool(self._down)
        if down and not was_down:
            _log.warning(
                "telemetry does not reach its collector at %s (%s). Requests are not affected; spans that cannot be "
                "sent are lost, counters are complete once the collector is back",
                endpoint,
                self._warning or signal,
            )
        elif was_down and not down:
            _log.warning("telemetry reaches its collector again")


class WatchedExporter:
    """An exporter of any signal that reports its exports to the link."""

    def __init__(self, exporter: Any, signal: str, link: Link) -> None:
        self._exporter, self._signal, self._link = exporter, signal, link
        self._endpoint = str(getattr(exporter, "_endpoint", type(exporter).__name__))

    def export(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        arrived = False
        try:
            result = self._exporter.export(batch, *args, **kwargs)
            arrived = result.name == "SUCCESS"
            return result
        finally:
            self._link.report(self._signal, self._endpoint, arrived)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)
