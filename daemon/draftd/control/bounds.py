"""How far one of the daemon's own jobs may go: not beyond its time, and not while callers wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from draftd.engine.observer import EngineStatus

_LOOK_AGAIN_SECONDS = 0.05  # a request that has only just arrived waits for nobody


class Queue(Protocol):
    def status(self) -> EngineStatus: ...


class Bounds:
    """Of one job; asked between two prompts, when the job itself has nothing in the queue."""

    def __init__(
        self,
        engine: Queue,
        stopping: threading.Event,
        *,
        seconds: float,
        patience: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seconds`: all that the job may take. `patience`: of them, how many it may spend on waiting for a queue to
        become empty before it gives way."""
        self._engine, self._stopping, self._clock = engine, stopping, clock
        self._seconds, self._patience, self._until = seconds, patience, clock() + seconds

    def reached(self) -> str:
        """Why the job must end now; empty where it may go on. Waits where there is patience left."""
        while True:
            if self._stopping.is_set():
                return "the daemon is stopping"
            if self._clock() >= self._until:
                return f"it took longer than {self._seconds:g} s"
            if not self._engine.status().queued:
                return ""
            looked = self._clock()
            self._stopping.wait(_LOOK_AGAIN_SECONDS)
            waiting = self._engine.status().queued
            if waiting and self._patience <= 0:
                return f"it gave way to {waiting} waiting request{'s' if waiting > 1 else ''}"
            self._patience -= self._clock() - looked
