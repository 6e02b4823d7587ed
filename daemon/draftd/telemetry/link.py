"""The link to the collector: whether what is exported arrives, told once when it stops and once when it resumes.

The SDK logs every attempt of every signal. That noise is kept here, at debug level, and its last line explains the one
warning that a person reads.
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


class Quiet(logging.Handler):
    """Takes the exporters' log records away from the daemon's log while it is installed."""

    _changing = threading.Lock()  # loggers are the process's: one may be leaving while the next one comes

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        self._propagated: dict[str, bool] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:
            return
        if record.levelno >= logging.WARNING and "hutdown" not in message:
            self.last = message
        _sdk_log.debug("%s: %s", record.name, message)

    def install(self) -> None:
        with self._changing:
            for name in _NOISY:
                logger = logging.getLogger(name)
                before = [handler._propagated[name] for handler in logger.handlers if isinstance(handler, Quiet)]
                self._propagated[name] = before[0] if before else logger.propagate
                logger.addHandler(self)
                logger.propagate = False

    def remove(self) -> None:
        with self._changing:
            for name, propagated in self._propagated.items():
                logger = logging.getLogger(name)
                logger.removeHandler(self)
                if not any(isinstance(handler, Quiet) for handler in logger.handlers):
                    logger.propagate = propagated


class Link:
    """Counts exports that arrived and that did not."""

    def __init__(self, quiet: Quiet) -> None:
        self._quiet = quiet
        self._lock = threading.Lock()
        self._down: set[str] = set()
        self.arrived = 0
        self.failed = 0

    def report(self, signal: str, endpoint: str, arrived: bool) -> None:
        """The outcome of one export of one signal."""
        lost = back = False
        with self._lock:
            if not arrived:
                self.failed += 1
                lost = not self._down
                self._down.add(signal)
            else:
                self.arrived += 1
                # The first of the lost signals to return speaks for all: another may have nothing to send for hours.
                back = signal in self._down
                if back:
                    self._down.clear()
        if lost:
            _log.warning(
                "telemetry does not reach its collector at %s (%s). Requests are not affected; spans beyond the "
                "queue's bound are dropped, counters catch up when it returns",
                endpoint,
                self._quiet.last or signal,
            )
        elif back:
            _log.warning("telemetry reaches its collector again")


class Watched:
    """An exporter of any signal that reports to the link. All else is the exporter's own."""

    def __init__(self, exporter: Any, signal: str, link: Link) -> None:
        self._exporter = exporter
        self._signal = signal
        self._link = link
        self._endpoint = str(getattr(exporter, "_endpoint", type(exporter).__name__))

    def export(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        arrived = False
        try:
            result = self._exporter.export(batch, *args, **kwargs)
            arrived = result.name == "SUCCESS"
            return result
        finally:
            self._link.report(self._signal, self._endpoint, arrived)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        self._exporter.shutdown(*args, **kwargs)

    def force_flush(self, *args: Any, **kwargs: Any) -> Any:
        return self._exporter.force_flush(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)
