"""The link to a verifier: it connects, watches the connection, and carries messages.

The link is a circuit breaker. It goes down if a lost connection cannot be replaced at once, and after several errors in
a row. While it is down, it tries to connect once a probe period, with jitter, until a verifier has greeted it. Then it
is up; but until a verdict has come, one error takes it down again.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from uuid import uuid4

from draftd.engine.remote.verifier_link import (
    FromLink,
    LinkConnected,
    LinkLost,
    LinkState,
    RemoteModel,
    SequenceClosed,
    ToVerifier,
    Verdict,
)
from draftd.journal import Journal, Subject
from draftd.models.tokenizer import Tokenizer
from draftd.rate_limited_log import LimitedChanges, changes_left_out
from draftd.settings import RemoteSettings
from draftd.strategies import LinkFailure
from draftd.threads import restarting_thread
from draftd.v1 import verification_pb2 as pb
from draftd.verifier_client.codec import from_verifier, to_verifier
from draftd.verifier_client.connection import VerifierConnection
from draftd.verifier_client.failures import LinkError
from draftd.verifier_client.health import TRIP, LinkCounts, Pings, ReconnectSchedule
from draftd.verifier_client.inbox import EngineInbox

log = logging.getLogger(__name__)

_JITTER = 0.25  # of the probe period, either way
_TICK_SECONDS = 0.5  # longest time between checks of pings
_LOADING_SECONDS = 0.1

_STOPPING = LinkError(LinkFailure.OTHER, "this daemon is stopping")


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the link. `state`: up or down. `kind`: the model or the failure. A change with the `state` and `kind`
    of the previous one is not announced."""

    state: str
    kind: object
    cause: str
    why: str


class LinkAnnouncements:
    """Announces each change of the link, in the log and in the journal. Changes are announced at once unless there are
    very many: see `LimitedChanges`. One caller at a time."""

    def __init__(self, target: str, journal: Journal | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._target, self._journal = target, journal
        self._changes = LimitedChanges(self._tell, clock)
        self._present = _Change("", None, "", "")
        self._state = ""

    def up(self, model: RemoteModel, before: RemoteModel | None) -> None:
        """Announces that the link is up. `before`: the model that it had before, if any."""
        new_weights = before is not None and before.fingerprint != model.fingerprint
        why = f"it serves {model.model} ({model.quality.label})" + (
            ", with other weights than before" if new_weights else ""
        )
        if not model.shared_tokenizer:
            why += f"; its tokenizer is different: {model.difference}"
        kind = (model.fingerprint, model.model, model.difference)
        self._change(_Change("up", kind, "weights_changed" if new_weights else "connected", why))

    def down(self, error: LinkError) -> None:
        """Announces that the link is down."""
        kind = (error.kind, error.what) if error.kind is LinkFailure.OTHER else error.kind
        self._change(_Change("down", kind, error.kind.value, error.message))

    def settle(self) -> float | None:
        """Announces a change that had to wait, if it may be announced now. Returns the seconds until it may; None if no
        change waits."""
        return self._changes.settle()

    def _change(self, change: _Change) -> None:
        if (change.state, change.kind) != (self._present.state, self._present.kind):
            self._present = change
            self._changes.change(change)

    def _tell(self, change: _Change, left_out: int) -> None:
        before, self._state = self._state, change.state
        why = change.why + changes_left_out(left_out)
        level = logging.INFO if change.state == "up" else logging.WARNING
        log.log(level, "verifier %s: %s: %s", self._target, change.state, why)
        if self._journal is not None:
            self._journal.record(Subject.LINK, before, change.state, change.cause, why)


class GrpcLink:
    """A `VerifierLink` to `settings.target`, on a thread of its own from `start` to `close`."""

    def __init__(
        self,
        settings: RemoteSettings,
        *,
        journal: Journal | None = None,
        jitter: Callable[[], float] = lambda: random.uniform(1 - _JITTER, 1 + _JITTER),
    ) -> None:
        """`journal` records when the link goes up or down, or has another model. `jitter`: the factor of a probe
        period."""
        self._settings, self.edge = settings, uuid4().hex
        self._differences: dict[str, str] = {}  # by the fingerprint of the other tokenizer
        self._announcements = LinkAnnouncements(settings.target or "", journal)
        self._closing = threading.Event()
        self._tokenizer: Callable[[], Tokenizer | None] = lambda: None
        self._thread = restarting_thread("draftd-link", self._run, self._closing)
        # Guards all that follows, and tells those who wait for a change of it.
        self._changed = threading.Condition(threading.RLock())
        self._trying: VerifierConnection | None = None
        self._connection: VerifierConnection | None = None  # that is up
        self._status = LinkState(why="it has not connected yet")  # without figures of the objects below
        self._inbox = EngineInbox()
        self._counts = LinkCounts()
        self._probe = ReconnectSchedule(jitter)
        self._pings = Pings(min(_TICK_SECONDS, settings.step_seconds / 5))

    def start(self, tokenizer: Callable[[], Tokenizer | None]) -> None:
        """Starts the link's thread. `tokenizer`: this daemon's; None until it is loaded."""
        self._tokenizer = tokenizer
        self._thread.start()

    def close(self, seconds: float = 5.0) -> bool:
        """Ends the link. Returns False if its thread did not end in time."""
        self._closing.set()
        with self._changed:
            connection = self._trying
            self._changed.notify_all()
        if connection is not None:
            connection.end(_STOPPING)
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def reload(self, settings: RemoteSettings) -> None:
        """Uses these credentials for the next connection; a link that is down tries them at once."""
        with self._changed:
            self._settings = settings
            if self._probe.hasten(time.monotonic()):
                self._changed.notify_all()

    # the engine's side

    def listen(self, wake: Callable[[], None]) -> None:
        self._inbox.wake = wake

    def send(self, message: ToVerifier, connection: int) -> None:
        with self._changed:
            if self._connection is not None and connection == self._status.connections:
                self._connection.send(to_verifier(message))

    def take_messages(self) -> Sequence[FromLink]:
        with self._changed:
            return self._inbox.take()

    def count_late_verdict(self, why: str) -> None:
        with self._changed:
            if self._connection is None:  # it is lost, which was counted
                return
            self._counts.add_error()
            self._counts.failures[LinkFailure.LATE] += 1
            if self._counts.tripped:
                self._connection.end(LinkError(LinkFailure.LATE, f"{TRIP} times in a row {why}"))

    def broken(self, why: str) -> None:
        with self._changed:
            if self._connection is not None:
                self._connection.end(LinkError(LinkFailure.BROKEN_RULE, why))

    @property
    def state(self) -> LinkState:
        with self._changed:
            status, counts = self._status, self._counts
            return replace(
                status,
                retry_after=None if status.up else self._probe.seconds_left(time.monotonic()),
                round_trip=self._pings.round_trip,
                bytes_sent=counts.traffic.sent,
                bytes_received=counts.traffic.received,
                errors=counts.errors,
                failures=dict(counts.failures),
            )

    # the link's thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                if (tokenizer := self._tokenizer()) is None:
                    self._closing.wait(_LOADING_SECONDS)
                    continue
                self._hold_connection(tokenizer)
                with self._changed:
                    self._probe.plan(self._settings.probe_seconds)
                while self._wait_for_probe():
                    pass
        finally:
            self._down(_STOPPING if self._closing.is_set() else LinkError(LinkFailure.OTHER, "the link failed"))

    def _wait_for_probe(self) -> bool:
        """Waits a while for the next attempt to connect; returns whether it is yet to come."""
        announcement_in = self._announcements.settle()
        with self._changed:
            remaining = self._probe.seconds_left(time.monotonic())
            if not remaining or self._closing.is_set():
                return False
            self._changed.wait(remaining if announcement_in is None else min(remaining, announcement_in))
        return True

    def _hold_connection(self, tokenizer: Tokenizer) -> None:
        """Connects, and connects again at once when the connection is lost. Returns when that is not possible, or after
        several errors in a row."""
        reconnected = False
        while not self._closing.is_set():
            self._probe.note_attempt(time.monotonic())
            try:
                with closing(self._new_connection()) as connection:
                    self._trying = connection
                    model = connection.greet(self.edge, tokenizer, self._differences)
                    self._handle_open(connection, model, reconnected)
                    self._watch(connection)
            except LinkError as error:
                self._fail(error)
                return
            if self._closing.is_set():
                return
            with self._changed:
                self._counts.add_error()
            if connection.why.kind is LinkFailure.BROKEN_RULE or self._counts.tripped:
                self._probe.note_attempt(time.monotonic())
                self._fail(connection.why)
                return
            self._counts.failures[connection.why.kind] += 1
            with self._changed:
                self._connection, reconnected = None, True

    def _new_connection(self) -> VerifierConnection:
        return VerifierConnection(self._settings, self._counts.traffic, self._take, self._notify)

    def _handle_open(self, connection: VerifierConnection, model: RemoteModel, reconnected: bool) -> None:
        """Marks the link as up. Open sequences go on if the model is the same; otherwise they are lost."""
        with self._changed:
            before, number = self._status.model, self._status.connections + 1
            if reconnected and before is not None and before.fingerprint != model.fingerprint:
                self._inbox.put(LinkLost(f"the verifier serves {model.model} with other weights now"))
            self._status = replace(self._status, up=True, why="", failure=None, model=model, connections=number)
            self._connection = connection
            self._probe.cancel()
            self._inbox.put(LinkConnected(number))
            self._pings.restart(time.monotonic())
        self._announcements.up(model, before)
        self._inbox.wake()

    def _watch(self, connection: VerifierConnection) -> None:
        """Sends pings until the connection is over, and ends it if an answer is late."""
        step_seconds = self._settings.step_seconds
        while True:
            with self._changed:
                if connection.over or self._closing.is_set():
                    return
                now = time.monotonic()
                if self._pings.late(step_seconds, now):
                    why = f"no answer to a ping within {step_seconds:g} s"
                    connection.end(LinkError(LinkFailure.NO_ANSWER, why))
                    return
                if (nonce := self._pings.take_due(now)) is not None:
                    connection.send(pb.VerifyRequest(ping=pb.Ping(nonce=nonce)))
            self._announcements.settle()
            with self._changed:
                if not connection.over and not self._closing.is_set():
                    self._changed.wait(self._pings.wait_seconds(time.monotonic()))

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # a verifier's message, on the thread that reads it

    def _take(self, connection: VerifierConnection, response: pb.VerifyResponse) -> None:
        """Takes a message of the verifier. Raises LinkError, which ends the connection."""
        message = from_verifier(response)
        with self._changed:
            if connection is not self._connection:
                return
            if message is None:
                self._pings.answer(response.pong.nonce, time.monotonic())
                return
            if isinstance(message, Verdict):
                self._counts.end_streak()
                self._status = replace(self._status, load=message.load)
            elif isinstance(message, SequenceClosed) and message.error:
                self._counts.add_refusal(final=message.retry_after is None)
            self._inbox.check_room()
            self._inbox.put(message)
        self._inbox.wake()

    # failures

    def _fail(self, why: LinkError) -> None:
        """Counts the failure, of a connection or of an attempt, and takes the link down."""
        with self._changed:
            self._counts.failures[why.kind] += 1
        self._down(why)

    def _down(self, why: LinkError) -> None:
        with self._changed:
            self._status = replace(self._status, up=False, why=why.message, failure=why.kind)
            self._connection = None
            self._inbox.put(LinkLost(why.message))
            self._counts.expect_verdict()
        self._inbox.wake()
        if not self._closing.is_set():
            self._announcements.down(why)
