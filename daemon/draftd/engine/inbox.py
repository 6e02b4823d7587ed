"""What other threads hand to the engine thread: requests, their ends, commands. Bounded, and refused where it is full.

Its lock guards nothing that takes time: it is never held while MLX works.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from draftd.core import DecodeRequest, FinishReason, Origin, TokenSink
from draftd.engine.commands import Command, Lower, refuse
from draftd.errors import NotServing, QueueFull

_IDLE_SECONDS = 0.5  # how long an idle engine sleeps when nothing wakes it
_MOST_COMMANDS = 64  # waiting to be taken: they are taken every step
_MOST_OWN = 16  # of the daemon's own requests in hand

_DRAINING = "the daemon is draining and takes no new requests"


@dataclass(frozen=True, slots=True)
class Taken:
    """What had gathered. `closing`: no more requests will come, and those in hand may run until `drain_until`."""

    arrivals: list[tuple[DecodeRequest, TokenSink]]
    endings: dict[str, FinishReason]
    commands: list[Command]
    closing: bool
    drain_until: float


class Inbox:
    """Any thread puts in; the engine thread takes, and reports what it has in hand."""

    def __init__(self, capacity: int, max_batch: int) -> None:
        self._capacity, self._max_batch = capacity, max_batch
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._arrivals: deque[tuple[DecodeRequest, TokenSink]] = deque()
        self._endings: dict[str, FinishReason] = {}
        self._commands: list[Command] = []
        self._ready = self._closing = False
        self._drain_until = 0.0
        self._own_arrivals = 0  # of those that arrived
        self._active = self._waiting = self._own = 0  # in the engine's hand
        self._seconds_per_request = 1.0  # moving average, for the retry delay

    # any thread

    def submit(self, request: DecodeRequest, sink: TokenSink) -> None:
        """Raises NotServing, or QueueFull with a retry delay."""
        own = request.origin is not Origin.CLIENT
        with self._lock:
            self._check_open()
            if own and self._own + self._own_arrivals >= _MOST_OWN:
                raise QueueFull(
                    f"{_MOST_OWN} requests of the daemon's own are in hand; no more may be", retry_after=1.0
                )
            queued = self._queued
            if not own and queued >= self._capacity:
                wait = self._seconds_per_request * (queued + self._active) / self._max_batch
                raise QueueFull(
                    f"{queued} requests are waiting; at most {self._capacity} may",
                    retry_after=min(max(wait, 0.1), 30.0),
                )
            self._arrivals.append((request, sink))
            self._own_arrivals += own
            self._wake.notify()

    def command(self, command: Command) -> None:
        """Raises NotServing, or QueueFull."""
        with self._lock:
            self._put(command)

    def lower(self, **bounds: Any) -> None:
        """A command for those that are here now. Raises NotServing, or QueueFull."""
        with self._lock:
            self._put(Lower(arrivals=len(self._arrivals), **bounds))

    def end(self, request_id: str, reason: FinishReason) -> None:
        with self._lock:
            if self._ready:
                self._endings.setdefault(request_id, reason)
                self._wake.notify()

    def close(self, drain_until: float) -> None:
        """No more requests; those in hand may run until `drain_until`, in monotonic seconds."""
        with self._lock:
            self._closing, self._drain_until = True, drain_until
            self._wake.notify()

    @property
    def counts(self) -> tuple[int, int]:
        """Clients' requests: running, waiting."""
        with self._lock:
            return self._active, self._queued

    # the engine thread

    def open(self) -> None:
        with self._lock:
            self._ready = True

    def take(self, idle: bool) -> Taken | None:
        """What has gathered; None for nothing. Waits for a while where the engine is `idle`."""
        with self._lock:
            if idle and not (self._arrivals or self._endings or self._commands or self._closing):
                self._wake.wait(_IDLE_SECONDS)
            if not (self._arrivals or self._endings or self._commands or self._closing):
                return None
            taken = Taken(list(self._arrivals), self._endings, self._commands, self._closing, self._drain_until)
            self._waiting += len(self._arrivals) - self._own_arrivals
            self._own += self._own_arrivals
            self._own_arrivals = 0
            self._arrivals.clear()
            self._endings, self._commands = {}, []
            return taken

    def endings(self) -> dict[str, FinishReason]:
        """A look, no more: they are taken together with the requests, one of which may be meant."""
        with self._lock:
            return dict(self._endings)

    def report(self, active: int, waiting: int, own: int, seconds_per_request: float) -> None:
        """What is in hand: clients' requests running and waiting, the daemon's own in either state."""
        with self._lock:
            self._active, self._waiting, self._own = active, waiting, own
            self._seconds_per_request = seconds_per_request

    def shut(self, error: Exception) -> list[tuple[DecodeRequest, TokenSink]]:
        """Takes nothing from now on; ends the commands that were not taken, and returns such requests."""
        with self._lock:
            left, commands = list(self._arrivals), self._commands
            self._arrivals.clear()
            self._own_arrivals, self._commands, self._endings = 0, [], {}
            self._closing, self._ready = True, False
        for command in commands:
            refuse(command, error)
        return left

    # under the lock

    @property
    def _queued(self) -> int:
        return self._waiting + len(self._arrivals) - self._own_arrivals

    def _check_open(self) -> None:
        if self._closing or not self._ready:
            raise NotServing(_DRAINING)

    def _put(self, command: Command) -> None:
        self._check_open()
        if len(self._commands) >= _MOST_COMMANDS:
            raise QueueFull(f"{_MOST_COMMANDS} commands wait for the engine; no more may", retry_after=1.0)
        self._commands.append(command)
        self._wake.notify()
