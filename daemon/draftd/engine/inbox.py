"""What other threads hand to the engine thread: requests, their ends, commands. Bounded, and refused where it is full.

Its lock guards nothing that takes time: it is never held while MLX works. Imports no MLX: the composition root
(`cli/serve.py`) imports this before the BLAS is loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from draftd.core import DecodeRequest, DrafterName, FinishReason, Origin, TokenSink
from draftd.errors import InvalidRequest, NotServing, QueueFull

IDLE_SECONDS = 0.5  # how long an idle engine sleeps when nothing wakes it
_MOST_COMMANDS = 64  # waiting to be taken: they are taken every step
_MOST_OWN = 16  # of the daemon's own requests in hand
_MOST_GATHERED = 4096  # taken every step: requests that were ended before a step took them, for the most part
_SHARE = 7  # a client may have so many waiting for each one that may wait besides


def _promise() -> Future[Any]:
    """One that its holder cannot cancel: the engine ends it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(frozen=True, slots=True)
class KeepDrafts:
    """Hold exactly these drafters' weights; ends with their bytes."""

    drafters: frozenset[DrafterName]
    done: Future[int] = field(default_factory=_promise)


@dataclass(frozen=True, slots=True)
class ReloadDrafts:
    """Read the drafts' weights anew; ends with their bytes."""

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
    """Keep the keys and values of a text's beginning under a name; ends with the pin."""

    name: str
    tokens: tuple[int, ...]
    done: Future[Any] = field(default_factory=_promise)


@dataclass(frozen=True, slots=True)
class LowerRequests:
    """Bind the sequences of all requests that came before."""

    max_draft_tokens: int
    drafters: frozenset[DrafterName]
    reason: str


Command = KeepDrafts | ReloadDrafts | LogitGap | PinPrefix | LowerRequests


class Arrival(NamedTuple):
    request: DecodeRequest
    sink: TokenSink


@dataclass(frozen=True, slots=True)
class InboxContents:
    """What had gathered: requests and commands in the order in which they came. `closing`: no more requests will come,
    and those in hand may run until `drain_until`."""

    gathered: list[Arrival | Command]
    endings: dict[str, FinishReason]
    closing: bool
    drain_until: float


class Inbox:
    """Any thread puts in; the engine thread takes, and reports what it has in hand."""

    def __init__(self, capacity: int, max_batch: int) -> None:
        self._capacity, self._max_batch = capacity, max_batch
        self._wake = threading.Condition()
        self._gathered: list[Arrival | Command] = []
        self._own_arrived = self._commands = 0  # of these: the daemon's own requests, commands
        # Clients' requests that wait, and whose each is: not yet taken, and in the engine's hand. One that is ended
        # gives its place up at once.
        self._arrived: dict[str, str] = {}
        self._waiting: dict[str, str] = {}
        self._endings: dict[str, FinishReason] = {}
        self._ready = self._closing = self._woken = False
        self._close_seen = False  # of the closing
        self._drain_until = 0.0
        self._active = self._own = 0  # in the engine's hand
        self._seconds_per_request = 1.0  # moving average, for the retry delay

    # any thread

    def submit(self, *arrivals: Arrival) -> None:
        """One request, or all choices of one: all are taken, or none. Raises NotServing, or QueueFull with a retry
        delay: where the queue has too little room, or so much of it is this client's that others would soon find no
        place; InvalidRequest where there are more choices than places."""
        first = arrivals[0].request
        own = first.origin is not Origin.CLIENT
        with self._wake:
            self._check_open()
            if own and self._own + self._own_arrived >= _MOST_OWN:
                raise QueueFull(
                    f"{_MOST_OWN} of the daemon's own requests are active, which is the limit", retry_after=1.0
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
        """No more requests; those in hand may run until `drain_until`, in monotonic seconds."""
        with self._wake:
            self._closing, self._drain_until = True, drain_until
            self._wake.notify()

    def wake(self) -> None:
        """Something else than the inbox has news: the engine thread sleeps no longer."""
        with self._wake:
            self._woken = True
            self._wake.notify()

    @property
    def waiting(self) -> frozenset[str]:
        """Of clients' requests, the ids of those that wait."""
        with self._wake:
            return frozenset((*self._waiting, *self._arrived))

    @property
    def counts(self) -> tuple[int, int]:
        """Clients' requests: running, waiting."""
        with self._wake:
            return self._active, len(self._waiting) + len(self._arrived)

    def _check_room(self, client: str, places: int) -> None:
        if places > self._capacity:
            raise InvalidRequest("n", places, f"1 to {self._capacity}, as many requests as may wait")
        queued = len(self._waiting) + len(self._arrived)
        free = self._capacity - queued
        wait = min(max(self._seconds_per_request * (queued + self._active) / self._max_batch, 0.1), 30.0)
        if free < places or len(self._gathered) >= _MOST_GATHERED:
            more = f", and {places} more came" if places > 1 else ""
            raise QueueFull(f"{queued} requests are waiting{more}; at most {self._capacity} may", retry_after=wait)
        most = (free - places + 1) * _SHARE  # as if all but one were there already
        if queued + places - 1 < most:
            return
        theirs = sum(one == client for waiting in (self._waiting, self._arrived) for one in waiting.values())
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
        """What has gathered; None for nothing. Waits for up to so many seconds where there is nothing to say that was
        not said before."""
        with self._wake:
            if wait > 0 and not (
                self._gathered or self._endings or self._woken or (self._closing and not self._close_seen)
            ):
                self._wake.wait(wait)
            self._woken, self._close_seen = False, self._closing
            if not (self._gathered or self._endings or self._closing):
                return None
            taken = InboxContents(self._gathered, self._endings, self._closing, self._drain_until)
            self._waiting |= self._arrived
            self._own += self._own_arrived
            self._empty()
            return taken

    def endings(self) -> dict[str, FinishReason]:
        """A look, no more: they are taken together with the requests, one of which may be meant."""
        with self._wake:
            return dict(self._endings)

    def report(self, active: int, waiting: Sequence[DecodeRequest], own: int, seconds_per_request: float) -> None:
        """What is in hand: clients' requests running and waiting, the daemon's own in either state."""
        with self._wake:
            self._waiting = {one.id: one.client for one in waiting if one.id not in self._endings}
            self._active, self._own = active, own
            self._seconds_per_request = seconds_per_request

    def shut(self, error: Exception) -> list[Arrival]:
        """Takes nothing from now on; ends the commands that were not taken, and returns such requests."""
        with self._wake:
            left = self._gathered
            self._empty()
            self._closing, self._ready = True, False
        for command in left:
            if isinstance(command, KeepDrafts | ReloadDrafts | LogitGap | PinPrefix):
                command.done.set_exception(error)
        return [arrival for arrival in left if isinstance(arrival, Arrival)]

    def _empty(self) -> None:
        self._gathered, self._endings, self._arrived = [], {}, {}
        self._own_arrived = self._commands = 0
