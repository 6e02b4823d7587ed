"""Transitions kept across restarts: JSON lines in a file that is rotated once it is full."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draftd.control.journal import Subject, Transition

log = logging.getLogger(__name__)


class History:
    """`append` is called under the journal's lock; the rest before it. Two files of at most `capacity` lines each: the
    present one, and the one before it, as `NAME.1`. A line that cannot be read is left out."""

    def __init__(self, path: Path, capacity: int = 4096) -> None:
        self._path, self._before = path, path.with_name(f"{path.name}.1")
        self._capacity = capacity
        self._lines = 0
        self._failing = False

    def restore(self) -> tuple[Transition, ...]:
        """All that is kept, oldest first."""
        found = [*_read(self._before), *_read(self._path)]
        self._lines = self._mend()
        return tuple(sorted(found, key=lambda transition: transition.number))

    def append(self, transition: Transition) -> None:
        """Adds one. What cannot be written is logged once, until it can be again; a listener must not raise."""
        try:
            if self._lines >= self._capacity:
                os.replace(self._path, self._before)
                self._lines = 0
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
                file.write(json.dumps(_document(transition)).encode() + b"\n")
            self._lines += 1
        except OSError as error:
            if not self._failing:
                log.warning("%s cannot be written: %s; events are lost in a restart", self._path, error.strerror)
            self._failing = True
        else:
            self._failing = False

    def _mend(self) -> int:
        """Cuts off a torn last line, so that the next one is whole. How many lines there are."""
        try:
            with self._path.open("r+b") as file:
                raw = file.read()
                whole = raw.rfind(b"\n") + 1
                if whole != len(raw):
                    file.truncate(whole)
        except FileNotFoundError:
            return 0
        except OSError as error:
            log.warning("%s cannot be mended: %s", self._path, error.strerror)
            return 0
        return raw.count(b"\n")


def _read(path: Path) -> Iterator[Transition]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s cannot be read (%s): earlier events are not known", path, error.strerror)
        return
    lines = raw.split(b"\n")
    lost = 0
    for line in lines[:-1]:  # what follows the last end of a line is torn, or nothing
        try:
            yield _transition(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            lost += 1
    if lost:
        log.warning("%s: %d lines cannot be read and are left out", path, lost)


def _document(transition: Transition) -> dict[str, Any]:
    return {
        "number": transition.number,
        "at": transition.at.astimezone(UTC).isoformat(),
        "subject": transition.subject.value,
        "previous": transition.previous,
        "current": transition.current,
        "cause": transition.cause,
        "evidence": transition.evidence,
    }


def _transition(document: dict[str, Any]) -> Transition:
    at = datetime.fromisoformat(document["at"])
    if at.tzinfo is None:
        raise ValueError("at: no time zone")
    previous, current, cause, evidence = (document[name] for name in ("previous", "current", "cause", "evidence"))
    number = document["number"]
    if type(number) is not int or not all(isinstance(text, str) for text in (previous, current, cause, evidence)):
        raise ValueError("not a transition")
    return Transition(at.astimezone(UTC), Subject(document["subject"]), previous, current, cause, evidence, number)
