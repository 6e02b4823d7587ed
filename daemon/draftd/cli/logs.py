"""Where log records go: stderr, a line each, as text or JSON, with the time in ISO 8601."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TextIO

from draftd.settings import LogSettings


def configure(settings: LogSettings, stream: TextIO) -> None:
    """draftd's own records from `settings.level` on, other libraries' from WARNING on. Replaces what was set before."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if settings.format == "json" else _Text())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("draftd").setLevel(settings.level.upper())


class _Text(logging.Formatter):
    """2026-11-23T06:15:07.123+01:00 draftd: warning: what happened. The time is local. Information goes without its
    level, as announcements do."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        text = f"{at} draftd: {level}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Json(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False)
