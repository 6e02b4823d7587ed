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
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
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
from draftd.threads import lasting
from draftd.v1 import verification_pb2 as pb
from draftd.verifier_client.codec import from_verifier, to_verifier
from draftd.verifier_client.connection import Traffic, VerifierConnection
from draftd.verifier_client.failures import LinkError

log = logging.getLogger(__name__)

_TRIP = 3  # errors in a row, without a verdict between them, that take the link down
_JITTER = 0.25  # of the probe period, either way
_PING_SECONDS, _FIRST_PINGS = 1.0, 4  # the first pings come faster, so that the round trip is soon known
_FIRST_PING_SECONDS = 0.1
_LEAST_OF = 4  # round trips, the least of which is smoothed: it waited in no queue
_SMOOTHING = 0.25
_MOST_IN = 8192  # messages that the engine has not taken
_TICK_SECONDS = 0.5  # longest time between checks of pings
_LOADING_SECONDS = 0.1

_UNTRIED = LinkError(LinkFailure.OTHER, "it has not connected yet")
_STOPPING = LinkError(LinkFailure.OTHER, "this daemon is stopping")


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the link. `state`: up or down. A change with the same state and `kind` as before is none."""

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
        """Announces a change that had to wait, if it may be announced now. Returns the seconds until it may; None if
        none waits."""
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
        self._settings, self._jitter = settings, jitter
        self._tick = min(_TICK_SECONDS, settings.step_seconds / 5)
        self.edge = uuid4().hex
        self._traffic = Traffic()
        self._differences: dict[str, str] = {}  # by the fingerprint of the other tokenizer
        self._wake: Callable[[], None] = lambda: None
        self._announcements = LinkAnnouncements(settings.target or "", journal)
        self._closing = threading.Event()
        self._tokenizer: Callable[[], Tokenizer | None] = lambda: None
        self._thread = lasting("draftd-link", self._run, self._closing)
        # All that follows, and who waits for a change of it.
        self._changed = threading.Condition(threading.RLock())
        self._trying: VerifierConnection | None = None
        self._connection: VerifierConnection | None = None  # that is up
        self._up, self._why = False, _UNTRIED
        self._probe_at: float | None = None
        self._tried_at = 0.0
        self._model: RemoteModel | None = None
        self._incoming: deque[FromLink] = deque()
        self._pings: dict[int, float] = {}
        self._ping_at, self._nonce = 0.0, 0
        self._latest: deque[float] = deque(maxlen=_LEAST_OF)
        self._round_trip: float | None = None
        self._load: float | None = None
        self._connections = self._errors = self._streak = 0
        self._failures: Counter[LinkFailure] = Counter(dict.fromkeys(LinkFailure, 0))  # no key is added later
        self._failing = False  # no verdict has come since an error

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
            if self._probe_at is not None:
                self._probe_at = time.monotonic()
                self._changed.notify_all()

    # the engine's side

    def listen(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def send(self, message: ToVerifier, connection: int) -> None:
        with self._changed:
            if self._connection is not None and connection == self._connections:
                self._connection.send(to_verifier(message))

    def take_messages(self) -> Sequence[FromLink]:
        with self._changed:
            messages = list(self._incoming)
            self._incoming.clear()
        return messages

    def count_late_verdict(self, why: str) -> None:
        with self._changed:
            if self._connection is None:  # it is lost, which was counted
                return
            self._count_error()
            self._failures[LinkFailure.LATE] += 1
            if self._streak >= _TRIP:
                self._connection.end(LinkError(LinkFailure.LATE, f"{_TRIP} times in a row {why}"))

    def broken(self, why: str) -> None:
        with self._changed:
            if self._connection is not None:
                self._connection.end(LinkError(LinkFailure.BROKEN_RULE, why))

    @property
    def state(self) -> LinkState:
        with self._changed:
            probe_at = self._probe_at
            return LinkState(
                up=self._up,
                why="" if self._up else self._why.message,
                failure=None if self._up or self._why is _UNTRIED else self._why.kind,
                retry_after=None if self._up or probe_at is None else max(0.0, probe_at - time.monotonic()),
                model=self._model,
                round_trip=self._round_trip,
                load=self._load,
                bytes_sent=self._traffic.sent,
                bytes_received=self._traffic.received,
                connections=self._connections,
                errors=self._errors,
                failures=dict(self._failures),
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
                    self._probe_at = self._tried_at + self._settings.probe_seconds * self._jitter()
                while self._wait_before(self._probe_at):
                    pass
        finally:
            self._down(_STOPPING if self._closing.is_set() else LinkError(LinkFailure.OTHER, "the link failed"))

    def _wait_before(self, at: float) -> bool:
        """Waits a while for the time `at`; returns whether it is yet to come."""
        announcement_in = self._announcements.settle()
        with self._changed:
            remaining = at - time.monotonic()
            if remaining <= 0 or self._closing.is_set():
                return False
            self._changed.wait(remaining if announcement_in is None else min(remaining, announcement_in))
        return True

    def _hold_connection(self, tokenizer: Tokenizer) -> None:
        """Connects, and connects again at once when the connection is lost. Returns when that is not possible, or after
        several errors in a row."""
        reconnected = False
        while not self._closing.is_set():
            self._tried_at = time.monotonic()
            try:
                with closing(VerifierConnection(self._settings, self._traffic, self._take, self._notify)) as connection:
                    self._trying = connection
                    model = connection.greet(self.edge, tokenizer, self._differences)
                    self._handle_open(connection, model, reconnected)
                    self._watch(connection)
            except LinkError as error:
                self._fail(error)
                return
            assert connection.why is not None
            if self._closing.is_set():
                return
            self._count_error()
            if connection.why.kind is LinkFailure.BROKEN_RULE or self._streak >= _TRIP:
                self._tried_at = time.monotonic()
                self._fail(connection.why)
                return
            self._failures[connection.why.kind] += 1
            with self._changed:
                self._connection, self._why, reconnected = None, connection.why, True

    def _handle_open(self, connection: VerifierConnection, model: RemoteModel, reconnected: bool) -> None:
        """Marks the link as up. Open sequences go on if the model is the same; otherwise they are lost."""
        with self._changed:
            before, self._model = self._model, model
            if reconnected and before is not None and before.fingerprint != model.fingerprint:
                self._incoming.append(LinkLost(f"the verifier serves {model.model} with other weights now"))
            self._connections += 1
            self._connection, self._up, self._probe_at = connection, True, None
            self._incoming.append(LinkConnected(self._connections))
            self._pings.clear()
            self._latest.clear()
            self._ping_at = time.monotonic()
        self._announcements.up(model, before)
        self._wake()

    def _watch(self, connection: VerifierConnection) -> None:
        """Sends pings until the connection is over, and ends it if an answer is late."""
        step_seconds = self._settings.step_seconds
        while True:
            with self._changed:
                if connection.why is not None or self._closing.is_set():
                    return
                now = time.monotonic()
                if self._pings and now - min(self._pings.values()) > step_seconds:
                    why = f"no answer to a ping within {step_seconds:g} s"
                    connection.end(LinkError(LinkFailure.NO_ANSWER, why))
                    return
                if now >= self._ping_at:
                    self._nonce += 1
                    self._pings[self._nonce] = now
                    connection.send(pb.VerifyRequest(ping=pb.Ping(nonce=self._nonce)))
                    slow = len(self._latest) >= _FIRST_PINGS
                    self._ping_at = now + (_PING_SECONDS if slow else _FIRST_PING_SECONDS)
            self._announcements.settle()
            with self._changed:
                if connection.why is None and not self._closing.is_set():
                    self._changed.wait(max(0.0, min(self._tick, self._ping_at - time.monotonic())))

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
                self._handle_pong(response.pong.nonce, time.monotonic())
                return
            if isinstance(message, Verdict):
                self._streak, self._failing, self._load = 0, False, message.load
            elif isinstance(message, SequenceClosed):
                self._errors += bool(message.error) and message.retry_after is None
                self._failures[LinkFailure.REFUSED] += bool(message.error)
            if len(self._incoming) >= _MOST_IN:
                why = f"the verifier sent {_MOST_IN} messages that were not taken yet"
                raise LinkError(LinkFailure.BROKEN_RULE, why)
            self._incoming.append(message)
        self._wake()

    def _handle_pong(self, nonce: int, now: float) -> None:
        if (sent_at := self._pings.pop(nonce, None)) is None:
            raise LinkError(LinkFailure.BROKEN_RULE, "the verifier answered a ping that was not sent")
        self._latest.append(now - sent_at)
        least = min(self._latest)
        before = self._round_trip
        self._round_trip = least if before is None else before + _SMOOTHING * (least - before)

    # what ends

    def _fail(self, why: LinkError) -> None:
        """Counts the failure, of a connection or of an attempt, and takes the link down."""
        with self._changed:
            self._failures[why.kind] += 1
        self._down(why)

    def _down(self, why: LinkError) -> None:
        with self._changed:
            self._up, self._why, self._connection = False, why, None
            self._incoming.append(LinkLost(why.message))
            # When the verifier is back, the first error takes the link down, unless a verdict has come.
            self._streak = _TRIP - 1
        self._wake()
        if not self._closing.is_set():
            self._announcements.down(why)

    def _count_error(self) -> None:
        """Counts an error. Errors count as one until a verdict comes again: readers of the count judge the verifier,
        not how often this daemon tried."""
        with self._changed:
            self._errors += not self._failing
            self._failing = True
            self._streak += 1
