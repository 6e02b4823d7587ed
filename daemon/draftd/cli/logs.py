"""Log records go to stderr or a file: one line each, as text or JSON, with the time in ISO 8601."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import time
from datetime import UTC, datetime
from io import FileIO, TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from draftd.cli.figures import in_local_time
from draftd.errors import ConfigError
from draftd.settings import LogSettings

_ANNOUNCED = "draftd.daemon"  # the logger of announcements, and of the error that ends the daemon
_HOW_FAR = re.compile(r"(.*?)\d[\d.,]* ?(?:%|of \d)")
_HOW_FAR_SECONDS = 10.0  # between two lines of progress, without a terminal
_CLEAR_LINE = "\r\x1b[K"


class LogSink:
    """The destination of records. `write` adds a line that another process of the daemon has formatted."""

    def __init__(self, handler: logging.StreamHandler[Any]) -> None:
        self._handler = handler

    def reopen(self) -> None:
        """Closes the log file; the next line opens the file of that name again."""
        if isinstance(self._handler, _File):
            self._handler.reopen()

    def write(self, line: str) -> None:
        self._handler.handle(logging.makeLogRecord({"line": line}))


def configure(settings: LogSettings, stream: TextIO) -> LogSink:
    """Sends draftd's records from `settings.level` on, and other libraries' from WARNING on, replacing earlier
    handlers. With a log file, `stream` gets only announcements and the error that ends the daemon. Raises ConfigError
    if the file cannot be opened."""
    own, daemon = logging.getLogger("draftd"), logging.getLogger(_ANNOUNCED)
    own.setLevel(settings.level.upper())
    terminal = settings.format == "text" and stream.isatty() and os.environ.get("TERM") != "dumb"
    handler = _Terminal(stream) if terminal else logging.StreamHandler(stream)
    handler.setFormatter(formatter(settings))
    if not terminal:
        handler.addFilter(_Paced())
    daemon.handlers.clear()
    if settings.file is None:
        logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
        return LogSink(handler)
    try:
        file = _File(settings.file, settings.file_bytes, settings.file_count, handler)
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror})"
        raise ConfigError("log.file", str(settings.file), allowed) from None
    file.addFilter(_Paced())
    logging.basicConfig(handlers=[file], level=logging.WARNING, force=True)
    daemon.addHandler(handler)
    daemon.info("the log is in %s", settings.file)
    return LogSink(file)


def formatter(settings: LogSettings) -> logging.Formatter:
    """Returns the formatter that the settings name."""
    return _Json() if settings.format == "json" else _LineFormatter()


def _step(record: logging.LogRecord) -> str:
    """Returns the text before the figures of a progress line, such as "downloading X: 1 of 2 GB"; empty for any other
    line, also for an error with figures."""
    if record.name != _ANNOUNCED or record.levelno >= logging.WARNING:
        return ""
    match = _HOW_FAR.match(record.getMessage())
    return match[1] if match else ""


class _Paced(logging.Filter):
    """Lets one progress line of a step pass every ten seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._last, self._at = "", 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if step := _step(record):
            now = time.monotonic()
            if step == self._last and now - self._at < _HOW_FAR_SECONDS:
                return False
            self._last, self._at = step, now
        return True


class _Terminal(logging.StreamHandler[TextIO]):
    """Rewrites a progress line in place. The line has no timestamp, and its text is shortened to leave room for the
    figures."""

    _rewriting = False

    def emit(self, record: logging.LogRecord) -> None:
        rewriting, step = self._rewriting, _step(record)
        self._rewriting = bool(step)
        if step:
            figures = record.getMessage()[len(step) :]
            room = (os.get_terminal_size(self.stream.fileno()).columns or 80) - 1 - len(figures)
            self.stream.write(_CLEAR_LINE + (step if len(step) <= room else f"{step[: max(0, room - 2)]}… ") + figures)
            self.flush()
            return
        if rewriting:
            self.stream.write(_CLEAR_LINE)
        super().emit(record)


class _File(RotatingFileHandler):
    """A log file that only its owner may read. Records that cannot be written to it go to `instead`."""

    def __init__(self, path: Path, most: int, older: int, instead: logging.Handler) -> None:
        """`most`: the file's largest size in bytes, 0 for no limit; `older`: how many full files are kept. Raises
        OSError."""
        self._instead, self._failing, self._failed = instead, False, False
        super().__init__(path, maxBytes=most, backupCount=older, encoding="utf-8", errors="backslashreplace")
        self.setFormatter(instead.formatter)

    def reopen(self) -> None:
        with self.lock or contextlib.nullcontext():
            if self.stream is not None:
                self.stream.close()
                self.stream = None

    def emit(self, record: logging.LogRecord) -> None:
        self._failed = False
        super().emit(record)
        self._failing = self._failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        error, self._failed = sys.exc_info()[1], True
        if not self._failing and isinstance(error, OSError):
            text = f"the log file cannot be written ({error.strerror}): its lines go here until it can"
            self._instead.emit(logging.makeLogRecord({"msg": text, "levelno": logging.WARNING, "levelname": "WARNING"}))
        if not any(self._instead is one for one in logging.getLogger(record.name).handlers):  # else it has it already
            self._instead.emit(record)

    def doRollover(self) -> None:  # noqa: N802  # logging's name
        with contextlib.suppress(OSError):  # if a file cannot be renamed, the log keeps growing
            super().doRollover()

    def _open(self) -> TextIOWrapper:
        # Without a buffer: a record that a full disk refused went to `instead`, and must not be tried again later.
        raw = FileIO(self.baseFilename, "a", opener=lambda path, flags: os.open(path, flags, 0o600))
        return TextIOWrapper(raw, self.encoding, self.errors, write_through=True)


class _LineFormatter(logging.Formatter):
    """Formats a record as "2026-11-23T06:15:07.123+01:00 draftd: warning: text", in local time. INFO has no level in
    its line."""

    def format(self, record: logging.LogRecord) -> str:
        if (line := record.__dict__.get("line")) is not None:
            return str(line)
        at = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        text = f"{at} draftd: {level}{in_local_time(record.getMessage())}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Json(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        if (line := record.__dict__.get("line")) is not None:
            return str(line)
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False)
