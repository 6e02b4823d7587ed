"""The queue from other threads to the engine thread: requests, their ends, commands. It is bounded, and refuses what
does not fit.

Its lock guards nothing that takes time: it is never held while MLX works. Imports no MLX: the composition root
(`cli/serve.py`) imports this before the BLAS is loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from draftd.core import DecodeRequest, DrafterName, FinishReason, Origin
from draftd.errors import InvalidRequest, NotServing, QueueFull
from draftd.outcome import TokenSink

IDLE_SECONDS = 0.5  # how long an idle engine sleeps when nothing wakes it
_MOST_COMMANDS = 64  # waiting; every step takes them all
_MOST_OWN = 16  # of the daemon's own requests, waiting or running
_MOST_GATHERED = 4096  # items between two steps; so many are mostly requests that ended before a step took them
_SHARE = 7  # requests that one client may have waiting for each place that is still free


def _promise() -> Future[Any]:
    """A future that its holder cannot cancel: the engine resolves it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(frozen=True, slots=True)
class KeepDrafts:
    """Keep exactly these drafters' weights in memory; `done` resolves to their bytes."""

    drafters: frozenset[DrafterName]
    done: Future[int] = field(default_factory=_promise)


@dataclass(frozen=True, slots=True)
class ReloadDrafts:
    """Read the drafts' weights again; `done` resolves to their bytes."""

    done: Future[int] = field(default_factory=_promise)


@dataclass(frozen=True, slots=True)
class LogitGap:
    """The target's logit of `chosen` less that of `other`, after `tokens`."""

    tokens: tuple[int, ...]
    chosen: int
    other: int
    done: Future[float] = field(default_factory=_promise)


@dataclass(frozen=True, slots=True)
class PinPrefix:
    """Keep the keys and values of a text's beginning under a name; `done` resolves to the pin."""

    name: str
    tokens: tuple[int, ...]
    done: Future[Any] = field(default_factory=_promise)


@dataclass(frozen=True, slots=True)
class LowerRequests:
    """Bound the drafts of all requests that came before."""

    max_draft_tokens: int
    drafters: frozenset[DrafterName]
    reason: str


Command = KeepDrafts | ReloadDrafts | LogitGap | PinPrefix | LowerRequests


class Arrival(NamedTuple):
    request: DecodeRequest
    sink: TokenSink


@dataclass(frozen=True, slots=True)
class InboxContents:
    """Requests and commands in their order of arrival. `closing`: no more requests will come, and running ones may go
    on until `drain_until`."""

    gathered: list[Arrival | Command]
    endings: dict[str, FinishReason]
    closing: bool
    drain_until: float


class _Load(NamedTuple):
    """The engine's load, as it last reported. `active`: clients' running requests; `own`: the daemon's own requests,
    running or waiting; `seconds_per_request`: a moving average, for the retry delay."""

    active: int = 0
    own: int = 0
    seconds_per_request: float = 1.0


class Inbox:
    """Any thread adds to it; the engine thread takes from it, and reports its counts of requests."""

    def __init__(self, capacity: int, max_batch: int) -> None:
        self._capacity, self._max_batch = capacity, max_batch
        self._wake = threading.Condition()
        self._gathered: list[Arrival | Command] = []
        self._own_arrived = self._commands = 0  # of these: the daemon's own requests, commands
        # The client of each waiting client request, by id: not yet taken, and taken. An ended request frees its place.
        self._arrived: dict[str, str] = {}
        self._waiting: dict[str, str] = {}
        self._endings: dict[str, FinishReason] = {}
        self._ready = self._closing = self._woken = False
        self._close_seen = False  # whether `take` has returned since the closing
        self._drain_until = 0.0
        self._load = _Load()

    # any thread

    def submit(self, *arrivals: Arrival) -> None:
        """Queues one request, or all choices of one: all or none. Raises NotServing; QueueFull with a retry delay if
        the queue has too little room, or if this client would leave too little for others; InvalidRequest if there are
        more choices than places."""
        first = arrivals[0].request
        own = first.origin is not Origin.CLIENT
        with self._wake:
            self._check_open()
            if own and self._load.own + self._own_arrived >= _MOST_OWN:
                raise QueueFull(
                    f"{_MOST_OWN} of the daemon's own requests (probes, canaries) are active, which is the limit",
                    retry_after=1.0,
                )
            if own:
                self._own_arrived += len(arrivals)
            else:
                self._check_room(first.client, len(arrivals))
                self._arrived |= {one.request.id: first.client for one in arrivals}
            self._gathered += arrivals
            self._wake.notify()

    def command(self, command: Command) -> None:
        """Raises NotServing, or QueueFull."""
        with self._wake:
            self._check_open()
            if self._commands >= _MOST_COMMANDS:
                raise QueueFull(f"{_MOST_COMMANDS} commands wait for the engine, which is the limit", retry_after=1.0)
            self._commands += 1
            self._gathered.append(command)
            self._wake.notify()

    def end(self, request_id: str, reason: FinishReason) -> None:
        with self._wake:
            if self._ready:
                self._endings.setdefault(request_id, reason)
                self._arrived.pop(request_id, None)
                self._waiting.pop(request_id, None)
                self._wake.notify()

    def close(self, drain_until: float) -> None:
        """Refuses new requests; earlier ones may run until `drain_until`, in monotonic seconds."""
        with self._wake:
            self._closing, self._drain_until = True, drain_until
            self._wake.notify()

    def wake(self) -> None:
        """Wakes the engine thread for something that is not in the inbox."""
        with self._wake:
            self._woken = True
            self._wake.notify()

    @property
    def waiting(self) -> frozenset[str]:
        """The ids of clients' requests that have not begun, in the inbox or taken by the engine."""
        with self._wake:
            return frozenset((*self._waiting, *self._arrived))

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of clients' running and waiting requests."""
        with self._wake:
            return self._load.active, len(self._waiting) + len(self._arrived)

    def _check_room(self, client: str, places: int) -> None:
        if places > self._capacity:
            raise InvalidRequest("n", places, f"1 to {self._capacity}, the size of the queue")
        queued = len(self._waiting) + len(self._arrived)
        free = self._capacity - queued
        wait = min(max(self._load.seconds_per_request * (queued + self._load.active) / self._max_batch, 0.1), 30.0)
        if free < places or len(self._gathered) >= _MOST_GATHERED:
            more = f", and {places} more came" if places > 1 else ""
            raise QueueFull(f"{queued} requests are waiting{more}; at most {self._capacity} may", retry_after=wait)
        most = (free - places + 1) * _SHARE  # as if all but one of them waited already
        if queued + places - 1 < most:
            return
        theirs = sum(owner == client for waiting in (self._waiting, self._arrived) for owner in waiting.values())
        if theirs + places - 1 >= most:
            raise QueueFull(
                f"{theirs} requests of this connection are waiting; the last {free} places are for other connections",
                retry_after=wait,
            )

    def _check_open(self) -> None:
        if self._closing or not self._ready:
            raise NotServing("the daemon is draining and takes no new requests")

    # the engine thread

    def open(self) -> None:
        with self._wake:
            self._ready = True

    def take(self, wait: float = IDLE_SECONDS) -> InboxContents | None:
        """Takes the contents; None if there are none. Waits up to `wait` seconds while there is nothing new."""
        with self._wake:
            if wait > 0 and not (
                self._gathered or self._endings or self._woken or (self._closing and not self._close_seen)
            ):
                self._wake.wait(wait)
            self._woken, self._close_seen = False, self._closing
            if not (self._gathered or self._endings or self._closing):
                return None
            contents = InboxContents(self._gathered, self._endings, self._closing, self._drain_until)
            self._waiting |= self._arrived
            self._load = self._load._replace(own=self._load.own + self._own_arrived)
            self._empty()
            return contents

    def endings(self) -> dict[str, FinishReason]:
        """Returns the requests to end, by id, and leaves them in the inbox. `take` later returns them together with new
        requests, because a request to end may not have been taken yet."""
        with self._wake:
            return dict(self._endings)

    def report(self, active: int, waiting: Sequence[DecodeRequest], own: int, seconds_per_request: float) -> None:
        """Stores the engine's counts: clients' running and waiting requests, and the daemon's own in either state."""
        with self._wake:
            self._waiting = {request.id: request.client for request in waiting if request.id not in self._endings}
            self._load = _Load(active, own, seconds_per_request)

    def shut(self, error: Exception) -> list[Arrival]:
        """Closes the inbox for good; fails the commands that were not taken, and returns the requests that were not."""
        with self._wake:
            untaken = self._gathered
            self._empty()
            self._closing, self._ready = True, False
        for command in untaken:
            if isinstance(command, KeepDrafts | ReloadDrafts | LogitGap | PinPrefix):
                command.done.set_exception(error)
        return [arrival for arrival in untaken if isinstance(arrival, Arrival)]

    def _empty(self) -> None:
        self._gathered, self._endings, self._arrived = [], {}, {}
        self._own_arrived = self._commands = 0
