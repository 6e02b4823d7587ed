"""The journal: changes of the flag's default variant, the fallback level and the link to the remote, with time and
cause."""

from __future__ import annotations

import enum
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, TypeAdapter

from draftd.rate_limited_log import OutageLog

log = logging.getLogger(__name__)


class Subject(enum.StrEnum):
    FLAG = "flag"
    LEVEL = "level"
    REMOTE = "remote"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of the flag, the fallback level, the remote's level or the link. `at`: the wall clock in UTC;
    `number`: counts all changes, from 1. `evidence`: the figures behind it and their window, for people."""

    at: AwareDatetime
    subject: Subject
    previous: str
    current: str
    cause: str
    evidence: str = ""
    number: int = 0


_LINE = TypeAdapter(Transition)

Listener = Callable[[Transition], None]


class Journal:
    """The latest changes of flag, fallback level, remote and link. Any thread. `restored`: the changes of earlier
    processes, oldest first; new numbers continue theirs."""

    def __init__(
        self,
        capacity: int = 1024,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        restored: Sequence[Transition] = (),
    ) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # a listener may read the journal
        self._kept: deque[Transition] = deque(restored, maxlen=capacity)
        self._listeners: list[Listener] = []
        self._number = max((transition.number for transition in restored), default=0)

    def record(self, subject: Subject, previous: str, current: str, cause: str, evidence: str = "") -> None:
        with self._lock:
            self._number += 1
            transition = Transition(self._clock(), subject, previous, current, cause, evidence, self._number)
            self._kept.append(transition)
            for listener in tuple(self._listeners):
                try:
                    listener(transition)
                except Exception:
                    log.warning("a listener to the events (`draftd events`) failed", exc_info=True)

    def latest(self, count: int) -> tuple[Transition, ...]:
        """Returns the last `count` kept transitions, oldest first."""
        with self._lock:
            return tuple(self._kept)[-count:] if count > 0 else ()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` for each transition from now on, in order, on the thread that made it, so it must not block.
        Its errors are logged. Returns a function that ends this."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end


class JournalFile:
    """The journal on disk: the present file and the one before it, `NAME.1`, with at most `capacity` lines each. Call
    `restore` before the first `append`; call `append` under the journal's lock. Unreadable lines are skipped."""

    def __init__(self, path: Path, capacity: int = 4096) -> None:
        self._path, self._before = path, path.with_name(f"{path.name}.1")
        self._capacity = capacity
        self._count = 0
        self._torn = False  # whether the last line may be incomplete
        self.errors = 0  # transitions that could not be written
        self._outage = OutageLog(log)

    def restore(self) -> tuple[Transition, ...]:
        """Returns all kept transitions, oldest first."""
        transitions: list[Transition] = []
        for path in (self._before, self._path):
            lines = _lines(path)
            self._count, had = len(lines), len(transitions)
            for line in lines:
                with suppress(ValueError):
                    transitions.append(_LINE.validate_json(line, strict=True))
            if lost := len(lines) - (len(transitions) - had):
                log.warning("%s: %d lines cannot be read and are left out", path, lost)
        return tuple(sorted(transitions, key=lambda transition: transition.number))

    def append(self, transition: Transition) -> None:
        """Appends a transition. A failure is logged once until a write succeeds, because a listener must not raise."""
        try:
            if self._torn:
                self._count, self._torn = len(_lines(self._path)), False
            if self._count >= self._capacity:
                os.replace(self._path, self._before)
                self._count = 0
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
                file.write(_LINE.dump_json(transition) + b"\n")
            self._count += 1
        except OSError as error:
            self._torn = True
            self.errors += 1
            why = f"{self._path} cannot be written: {error.strerror}"
            self._outage.report(f"{why}; events are lost in a restart", why)
        else:
            self._outage.clear(f"{self._path} can be written again")


def _lines(path: Path) -> list[bytes]:
    """Returns a file's lines without an incomplete last one, which is cut off so that the next one starts cleanly."""
    try:
        raw = path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole != len(raw):
            with suppress(OSError):  # then nothing can be appended either
                os.truncate(path, whole)
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("%s cannot be read (%s): earlier events are not known", path, error.strerror)
        return []
    return raw[:whole].split(b"\n")[:-1]
