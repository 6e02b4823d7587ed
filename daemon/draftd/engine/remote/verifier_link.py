"""The messages between an edge, which drafts, and a verifier, as plain values; the seam to their transport, and the
engine's end of it.

Both sides keep each sequence's text and a guess of how it continues (engine/guess.py). A step proposes tokens of the
guess; each of the verifier's steps takes part of the guess as its draft, and its result is a verdict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from draftd.core import FinishReason, TokenLogprobs
from draftd.engine.targets.base import SequenceOptions
from draftd.strategies import LinkFailure, QualityClass

_LEAST_PREFILL_SECONDS = 10.0  # for an opened text until the first verdict, if the verifier's speed is unknown
_PREFILL_SLACK = 3  # times the verifier's reported seconds per prompt token
_QUEUES = 16  # verdicts whose queue time is remembered
_MOST_STRAY = 4096  # consecutive unexpected messages: given-up sequences cause fewer
_MOST_CLOSES = 1024  # unconfirmed closes that are kept


@dataclass(frozen=True, slots=True)
class OpenSequence:
    """Opens a sequence, or reopens it after a lost connection; an open one of the same edge and number is closed.

    `tokens`: the text so far; `options.prompt` says where the answer begins. `max_tokens`: of the answer. `trace`: the
    edge's span (W3C `traceparent`), parent of the verifier's; empty without one. `skip_prefix_cache`: as in
    `DecodeRequest`. `fingerprint`: of the model that chose the text; a verifier of another model refuses."""

    sequence: int
    tokens: tuple[int, ...]
    options: SequenceOptions
    max_tokens: int
    trace: str = ""
    skip_prefix_cache: bool = False
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class SequenceOpened:
    """The verifier has opened the sequence. `cached`: tokens of the text found in the prefix cache."""

    sequence: int
    cached: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposes tokens after the first `length` tokens of the text, the last of which is `last`. `run`: the grant, how
    many tokens the verifier may decode without a proposal once no proposed ones remain; it replaces the earlier grant.
    Without tokens and with `run` 0 it withdraws the grant."""

    sequence: int
    length: int
    last: int
    proposed: tuple[int, ...] = ()
    run: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one step of the target: extends the text from `length` tokens by `tokens`, `accepted` proposed ones
    and one more unless the text ends. `drafted`: proposed tokens in the step. If 0, the tokens are part of a grant, and
    the verifier's own drafter had drafted `own_drafted`. `finished`: why the text ends within `tokens`. `load`: open
    sequences, divided by the most decoded at once. Seconds: `queue_seconds` that the oldest proposal waited,
    `verify_seconds` of the forward, `share_seconds` charged to this sequence."""

    sequence: int
    length: int
    tokens: tuple[int, ...]
    accepted: int
    drafted: int
    finished: FinishReason | None = None
    queue_seconds: float = 0.0
    verify_seconds: float = 0.0
    share_seconds: float = 0.0
    load: float = 0.0
    logprobs: tuple[TokenLogprobs, ...] = ()
    own_drafted: int = 0


@dataclass(frozen=True, slots=True)
class CloseSequence:
    """The edge ends the sequence. It has used the first `length` tokens of the text and discarded the rest."""

    sequence: int
    length: int


@dataclass(frozen=True, slots=True)
class SequenceClosed:
    """The last message of a sequence. `error`: why the verifier refused or gave it up; empty if the edge closed it or
    the text had ended. `retry_after`: seconds after which a retry may help."""

    sequence: int
    error: str = ""
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class LinkConnected:
    """The link has a new connection with this number. The verifier knows nothing sent over earlier ones: sequences must
    be opened again."""

    connection: int


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The verifier is unreachable or serves other weights, so no open sequence continues there. `why`: the reason, for
    people."""

    why: str


ToVerifier = OpenSequence | Proposal | CloseSequence
FromVerifier = SequenceOpened | Verdict | SequenceClosed
FromLink = LinkConnected | LinkLost | FromVerifier


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """The verifier's model and limits, as it reported when the link came up. `shared_tokenizer`: its token ids are this
    daemon's; if not, `difference` names the first that differs. `step_seconds`: of a plain step of one sequence, 0 if
    unmeasured."""

    model: str
    fingerprint: str
    context_length: int
    vocab_size: int
    max_draft_tokens: int
    shared_tokenizer: bool
    difference: str = ""
    quality: QualityClass = QualityClass.PROFESSIONAL
    step_seconds: float = 0.0
    prefill_seconds: float = 0.0  # per prompt token, 0 if unmeasured
    drafts: bool = False  # whether the verifier drafts by itself within grants


@dataclass(frozen=True, slots=True)
class LinkState:
    """The link's present state. `model` None: never connected. `up`: sequences may be opened. `why`: what keeps it
    down, for people. `round_trip`: smoothed seconds without the verifier's own time; None before it was measured."""

    up: bool = False
    why: str = ""
    retry_after: float | None = None
    model: RemoteModel | None = None
    round_trip: float | None = None
    load: float | None = None  # from the last verdict
    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0  # connections made since the start
    errors: int = 0  # since the start: late steps, refusals, lost connections; counted once until the next verdict
    #: Since the start: the same and failed attempts to connect.
    failures: Mapping[LinkFailure, int] = field(default_factory=dict)
    failure: LinkFailure | None = None  # `why` as a code


class VerifierLink(Protocol):
    """The connection to one verifier: connects, reconnects and carries messages. Any thread; nothing blocks or raises.

    For each connection the engine first receives `LinkConnected`; for each sequence `SequenceOpened`, contiguous
    verdicts, and `SequenceClosed` last. After a lost connection comes another `LinkConnected`, or `LinkLost`. The
    engine sends one `CloseSequence` for each `OpenSequence`, again on each connection until `SequenceClosed` confirms
    it."""

    def listen(self, wake: Callable[[], None]) -> None:
        """Sets the callback for received messages, called on any thread."""

    def send(self, message: ToVerifier, connection: int) -> None:
        """Sends a message, in order. It is dropped if that connection is lost."""

    def take_messages(self) -> Sequence[FromLink]:
        """Returns the messages since the last call, in order."""

    def count_late_verdict(self, why: str) -> None:
        """Counts a verdict that missed its deadline. After several in a row the connection ends and the link is
        down."""

    def broken(self, why: str) -> None:
        """Ends the connection, because the verifier said something impossible; the link is then down."""

    @property
    def state(self) -> LinkState: ...


@dataclass(slots=True)
class UnconfirmedClose:
    """A `CloseSequence` that the verifier may not have received. `end`: the most tokens that the text may have.
    `finished`: a verdict has ended the text, so the verifier sends two `SequenceClosed`: one for that end, one for the
    close."""

    message: CloseSequence
    end: int
    finished: bool


class LinkSession:
    """The engine's end of a link: the connection in use, deadlines, and unconfirmed closes. Engine thread only."""

    def __init__(self, link: VerifierLink, step_seconds: float) -> None:
        """`step_seconds`: the time allowed for a verdict, not counting its wait in the verifier's queue."""
        self.link, self._step_seconds = link, step_seconds
        self.closes: dict[int, UnconfirmedClose] = {}
        self.connection: int | None = None  # the latest connection that was received
        self._queues: deque[float] = deque(maxlen=_QUEUES)
        self._strays = 0

    def use_connection(self, connection: int) -> None:
        """Uses this connection from now on, and repeats unconfirmed closes."""
        self.connection = connection
        for close in self.closes.values():
            self.send(close.message)

    def send(self, message: OpenSequence | Proposal | CloseSequence) -> None:
        if self.connection is not None:
            self.link.send(message, self.connection)

    # deadlines

    def prefill_deadline(self, tokens: int, now: float) -> float:
        """Returns the deadline of the first verdict after opening a text of `tokens` tokens."""
        model = self.link.state.model
        pace = 0.0 if model is None else model.prefill_seconds
        seconds = self._step_seconds + pace * tokens * _PREFILL_SLACK
        return now + max(seconds, 0.0 if pace else _LEAST_PREFILL_SECONDS)

    def deadline(self, now: float) -> float:
        """Returns the deadline of a verdict that is due from now on."""
        return now + self._step_seconds + max(self._queues, default=0.0)

    def learn_queue(self, seconds: float) -> None:
        """Learns how long a step waited in the verifier's queue."""
        self._queues.append(seconds)

    # closed sequences

    def close(self, close: UnconfirmedClose) -> None:
        """Sends the close now, and over each new connection until it is confirmed."""
        self.closes[close.message.sequence] = close
        if len(self.closes) > _MOST_CLOSES:
            del self.closes[next(iter(self.closes))]
        self.send(close.message)

    def confirm(self, sequence: int) -> None:
        """Handles a `SequenceClosed` of a sequence that the engine has closed."""
        close = self.closes.get(sequence)
        if close is not None and close.finished:
            close.finished = False
        else:
            self.closes.pop(sequence, None)

    def judge(self, message: FromVerifier, *, opened: bool | None) -> None:
        """Ends the connection after too many messages about sequences that are not open. `opened`: whether the verifier
        has opened the sequence; None if it is not open here."""
        awaited = (
            message.sequence in self.closes if opened is None else not (opened and isinstance(message, SequenceOpened))
        )
        self._strays = 0 if awaited else self._strays + 1
        if self._strays >= _MOST_STRAY:
            self.link.broken(f"the verifier sent {_MOST_STRAY} messages of nothing that is open")
