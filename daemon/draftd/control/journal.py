"""What changed of what the daemon allows, when, and why: the flag's default variant, the fallback level."""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

log = logging.getLogger(__name__)


class Subject(enum.StrEnum):
    FLAG = "flag"
    LEVEL = "level"


@dataclass(frozen=True, slots=True)
class Transition:
    """One change. `at` is the wall clock, in UTC; `number` counts all there ever were, from 1. `evidence` are the
    figures behind it and their window, for people."""

    at: datetime
    subject: Subject
    previous: str
    current: str
    cause: str
    evidence: str = ""
    number: int = 0


Listener = Callable[[Transition], None]


class Recorder(Protocol):
    """What those who change something need of the journal. Any thread; never raises."""

    def record(self, subject: Subject, previous: str, current: str, cause: str, evidence: str = "") -> None: ...


class Journal:
    """The latest transitions. Any thread. `restored` are those of earlier runs, oldest first: numbers go on."""

    def __init__(
        self,
        capacity: int = 1024,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        restored: Sequence[Transition] = (),
    ) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # a listener may look into the journal
        self._kept: deque[Transition] = deque(restored, maxlen=capacity)
        self._listeners: list[Listener] = []
        self._number = max((transition.number for transition in restored), default=0)

    def record(self, subject: Subject, previous: str, current: str, cause: str, evidence: str = "") -> None:
        with self._lock:
            self._number += 1
            made = Transition(self._clock(), subject, previous, current, cause, evidence, self._number)
            self._kept.append(made)
            for listener in tuple(self._listeners):
                try:
                    listener(made)
                except Exception:
                    log.warning("a listener to the journal failed", exc_info=True)

    def latest(self, count: int) -> tuple[Transition, ...]:
        """The last `count` that are still kept, oldest first."""
        with self._lock:
            return tuple(self._kept)[-count:] if count > 0 else ()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tells `listener` of each transition from now on, in order, on the thread that made it: it must not block.

        What it raises is logged. Returns what ends it.
        """
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end
