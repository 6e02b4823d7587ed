"""What `draftd serve` writes to stderr: one line for each event, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from draftd.settings import LogSettings

_ANNOUNCED = "draftd.daemon"


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Sends the log to stderr. draftd's own logger gets the level asked for, others only warnings and worse."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLine() if settings.format == "json" else TextLine())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level = logging.getLevelName(settings.level.upper())
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("draftd").setLevel(level)
    # What the daemon announces is for whoever waits for it, at any level: scripts look for the line with its port.
    logging.getLogger(_ANNOUNCED).setLevel(logging.INFO)


def announce(line: str) -> None:
    """One line for people, such as "serving MODEL on HOST:PORT"."""
    logging.getLogger(_ANNOUNCED).info("%s", line)


class TextLine(logging.Formatter):
    """`draftd: message`, the severity before it from WARNING on."""

    def format(self, record: logging.LogRecord) -> str:
        severity = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"draftd: {severity}{record.getMessage()}{self._trace(record)}"

    def _trace(self, record: logging.LogRecord) -> str:
        return f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""


class JsonLine(logging.Formatter):
    """One object: time, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
