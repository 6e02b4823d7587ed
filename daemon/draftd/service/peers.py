"""The peers of a verifier, which are other daemons: their connections, sequences and counts."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from draftd.core import FinishReason
from draftd.engine.remote.peer import PeerSequence
from draftd.engine.remote.verifier_link import FromVerifier, OpenSequence, SequenceClosed, Verdict
from draftd.errors import (
    ClientStalled,
    DeadlineExceeded,
    DraftdError,
    InvalidRequest,
    NoMemory,
    NotEnabled,
    NotServing,
    OtherProtocol,
    OtherWeights,
    QueueFull,
    Superseded,
    TooManyPeers,
    TooManySequences,
    TooManyTokens,
    Unauthenticated,
    reason_of,
)
from draftd.models.grammar import CompiledGrammar
from draftd.outcome import Emission, Outcome
from draftd.rate_limited_log import RateLimitedLog
from draftd.service.stream import Mailbox
from draftd.strategies import PeerCounts
from draftd.telemetry.remote import VerificationSpan
from draftd.token_bucket import TokenBucket

MOST_UNREAD = 4096
"""Unread messages at which a connection ends."""
PAUSE_UNREAD = 256
"""Unread messages at which the engine stops deciding for the peer."""
_MOST_ENDED = 256  # ended sequences remembered for a peer
_KNOWN_VERDICTS = 32  # verdicts after which an edge is no longer new
_MESSAGES_PER_SECOND = 200.0  # read from a peer in the long run, besides those earned by verdicts
_MESSAGES_PER_VERDICT = 4.0  # earned: of several steps on their way one is used, the others are stale
_MOST_CREDIT, _FIRST_CREDIT = 512.0, 128.0  # messages at once, at most and for a new edge
NEW_EDGES = "new edges"
"""The share key of all new edges."""
_REFUSALS = (
    Unauthenticated,
    NotEnabled,
    OtherProtocol,
    NotServing,
    TooManyPeers,
    TooManySequences,
    TooManyTokens,
    QueueFull,
    NoMemory,
    InvalidRequest,
    OtherWeights,
    DeadlineExceeded,
    ClientStalled,
)
_OTHER = "other"


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VerifierIdentity:
    """The verifier's greeting to a peer: its model, limits and measured speed."""

    model: str
    model_fingerprint: str
    tokenizer: str
    context_length: int
    vocab_size: int
    max_draft_tokens: int
    quality: str
    step_seconds: float
    prefill_seconds: float
    max_sequences: int
    drafts: bool


class Refusals:
    """Counts the refused connections and sequences of edges by reason. Logs at most one line per reason and host
    every 30 seconds."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys((*map(reason_of, _REFUSALS), _OTHER), 0)  # no key is added later
        self._log = RateLimitedLog(log)

    @property
    def counts(self) -> dict[str, int]:
        """Refusals by reason, including the reasons that never occurred. Any thread."""
        return dict(self._counts)

    def add(self, error: DraftdError, what: str, address: str) -> None:
        """Counts and logs that `what` of the edge at `address` was refused. Does not count a connection that another
        one of the same edge replaced."""
        if isinstance(error, Superseded):
            return
        reason = reason_of(type(error))
        self._counts[reason if reason in self._counts else _OTHER] += 1
        host = address.rpartition(":")[0]
        self._log.write(logging.WARNING, reason, f"{what} of the edge at {address} was refused: {error.message}", host)

    def add_sequence(self, error: DraftdError, sequence: int, connection: PeerConnection) -> None:
        connection.peer.counts.refused += 1
        self.add(error, f"sequence {sequence}", connection.address)


@dataclass(slots=True, eq=False)
class Peer:
    """One other daemon, over all of its connections. `open`: its sequences by number. `leaving`: replaced sequences
    that the engine still has; `one_left` is set when one of them has ended. `ended`: sequences that ended recently, by
    number."""

    edge: str
    pace: TokenBucket = field(default_factory=lambda: TokenBucket(_MESSAGES_PER_SECOND, _MOST_CREDIT, _FIRST_CREDIT))
    counts: PeerCounts = field(default_factory=PeerCounts)
    connection: PeerConnection | None = None
    lost_since: float = 0.0
    open: dict[int, VerifiedSequence] = field(default_factory=dict)
    leaving: set[VerifiedSequence] = field(default_factory=set)
    one_left: asyncio.Event = field(default_factory=asyncio.Event)
    ended: OrderedDict[int, ClosedSequence] = field(default_factory=OrderedDict)
    forgotten: int = -1  # numbers up to this one may not be used again

    @property
    def share_key(self) -> str:
        """The peer's key in the fair share: its own id once it is trusted; until then all new edges share one key.
        Edges name themselves, so an edge with many names gets no larger share."""
        return self.edge if self.counts.verdicts >= _KNOWN_VERDICTS else NEW_EDGES

    @property
    def sequences(self) -> list[VerifiedSequence]:
        """All sequences of the peer that the engine has."""
        return [*self.open.values(), *self.leaving]

    @property
    def reserved(self) -> int:
        """Tokens of context that the open sequences may need."""
        return sum(one.reserved for one in self.open.values())

    @property
    def waiting(self) -> int:
        """Open sequences whose prefill has not begun."""
        return sum(not one.began for one in self.open.values())

    def remember(self, number: int, sequence: ClosedSequence) -> None:
        self.ended[number] = sequence
        self.ended.move_to_end(number)
        while len(self.ended) > _MOST_ENDED:
            oldest, _ = self.ended.popitem(last=False)
            self.forgotten = max(self.forgotten, oldest)

    def total(self) -> PeerCounts:
        live = [PeerCounts(stale=one.proposals.stale, wasted=one.proposals.wasted) for one in self.sequences]
        return sum_counts([self.counts, *live])


@dataclass(slots=True)
class ClosedSequence:
    """A sequence that has ended. Its text had `opened` tokens when it was opened, and `decided` at its end. `closed`:
    the edge has said how many of them it applied."""

    opened: int
    decided: int
    closed: bool = False

    def settle(self, applied: int) -> int:
        """Returns how many tokens were discarded if the edge applied the first `applied` of the text; 0 if that was
        counted before."""
        if self.closed:
            return 0
        self.closed = True
        return max(0, self.decided - max(applied, self.opened))


@dataclass(slots=True)
class TextProgress:
    """How far the text of an open sequence was decided. `opened`: its tokens when it was opened. `decided`: its tokens
    now. `applied`: the tokens that the edge applied, once it is done with the sequence."""

    opened: int
    decided: int
    applied: int | None = None

    @property
    def grown(self) -> bool:
        return self.decided != self.opened

    def apply(self, tokens: int) -> None:
        """Takes what the edge says that it applied, the first time."""
        if self.applied is None:
            self.applied = tokens

    def close(self) -> tuple[ClosedSequence, int]:
        """Returns what is remembered of the sequence, and how many tokens were discarded as far as that is known."""
        closed = ClosedSequence(self.opened, self.decided)
        return closed, 0 if self.applied is None else closed.settle(self.applied)


class VerifiedSequence:
    """One sequence of a peer that the engine has; receives what the engine says of it. `compiled` keeps its grammar
    compiled."""

    def __init__(
        self,
        connection: PeerConnection,
        message: OpenSequence,
        reserved: int,
        compiled: CompiledGrammar | None,
        *,
        mailbox: Mailbox,
        on_message: Callable[[VerifiedSequence, FromVerifier | Outcome], None],
        wake: Callable[[], None],
        span: VerificationSpan,
        deepest: int,
    ) -> None:
        """`on_message` gets what the engine says of the sequence, on the event loop. `wake` wakes the engine for a new
        step. `deepest`: most tokens that a step takes of the edge's guess."""
        self.id = uuid.uuid4().hex
        self.connection, self.number = connection, message.sequence
        self.text = TextProgress(len(message.tokens), len(message.tokens))
        self.reserved, self.compiled = reserved, compiled
        self.began = False  # its prefill has begun
        self.active = time.monotonic()  # time of the last step or verdict
        self.closing: SequenceClosed | None = None  # the message for its end, if the verifier or the edge ends it
        self.span, self.counts = span, PeerCounts()
        self._mailbox, self._on_message = mailbox, on_message
        self.proposals = PeerSequence(
            self.number, message.tokens, self._post, wake, deepest=deepest, readable=connection.readable
        )

    @property
    def peer(self) -> Peer:
        return self.connection.peer

    # engine thread

    def _post(self, message: FromVerifier) -> None:
        self._mailbox.post(self, message)

    def on_tokens(self, emission: Emission) -> None:
        """Does nothing: the verdict has the tokens."""

    def on_finish(self, outcome: Outcome) -> None:
        self._mailbox.post(self, outcome)

    # event loop

    def receive(self, item: FromVerifier | Outcome) -> None:
        self._on_message(self, item)

    def end_span(self, outcome: Outcome, *, replaced: bool) -> None:
        """Ends the span with the sequence's counts and the way it ended. `replaced`: the edge opened its number
        again."""
        self.counts.stale, self.counts.wasted = self.proposals.stale, self.proposals.wasted
        why = "" if self.closing is None else self.closing.error
        how = "closed" if self.closing is not None else "finished"
        if outcome.reason is FinishReason.ERROR:
            how, why = "error", outcome.error
        elif replaced or why:
            how = "replaced" if replaced else "given_up"
        self.span.end(self.counts, how, why)


class PeerConnection:
    """One connection of a peer, and the messages that wait to be sent on it. It ends if the peer does not read."""

    def __init__(self, peer: Peer, address: str, wake: Callable[[], None] = lambda: None) -> None:
        """`wake` wakes the engine when a peer that had stopped reading reads again. The engine then resumes verifying
        this peer's sequences."""
        self.peer, self.address, self._wake = peer, address, wake
        self.alive = True
        self._unread: deque[Any] = deque()
        self._arrived = asyncio.Event()
        self._error: DraftdError | None = None

    def readable(self) -> bool:
        """Whether the connection is up and the peer reads from it. Any thread."""
        return self.alive and len(self._unread) < PAUSE_UNREAD

    def put(self, item: Any) -> None:
        if len(self._unread) >= MOST_UNREAD:
            self.cut(ClientStalled(f"{MOST_UNREAD} messages were not read: the connection was ended"))
        if self._error is None:
            self._unread.append(item)
            self._arrived.set()

    def cut(self, error: DraftdError) -> None:
        """Ends the connection with `error`. Messages that were not taken are dropped."""
        self._error = self._error or error
        self._unread.clear()
        self._arrived.set()

    async def next(self) -> Any:
        """Waits for the next message to the peer. Raises the error that ended the connection."""
        while not self._unread:
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        item = self._unread.popleft()
        if len(self._unread) == PAUSE_UNREAD - 1:
            self._wake()
        return item

    async def throttle(self) -> None:
        """Charges the peer for a message, and waits until its next one may be read. Verdicts and time earn a peer
        credit. A peer that sends useless messages is read slowly, so that no other waits for it."""
        if seconds := self.peer.pace.spend():
            await asyncio.sleep(seconds)

    def count_bytes(self, received: int = 0, sent: int = 0) -> None:
        """Counts bytes of messages."""
        self.peer.counts.bytes_received += received
        self.peer.counts.bytes_sent += sent


def count_verdict(sequence: VerifiedSequence, verdict: Verdict) -> None:
    peer = sequence.peer
    for counts in (peer.counts, sequence.counts):
        counts.verdicts += 1
        counts.drafted += verdict.drafted
        counts.accepted += verdict.accepted
        counts.tokens += len(verdict.tokens)
        counts.queue_seconds += verdict.queue_seconds
        counts.target_seconds += verdict.share_seconds
    peer.pace.earn(_MESSAGES_PER_VERDICT)


def sum_counts(several: Iterable[PeerCounts]) -> PeerCounts:
    counts = list(several)
    return PeerCounts(**{each.name: sum(getattr(one, each.name) for one in counts) for each in fields(PeerCounts)})
