"""What an edge and a verifier say to each other of a sequence, as plain values; the seam to whatever carries it, and
the engine's end of that.

Both keep, of each sequence, its text and a guess of how that goes on (engine/guess.py). A step proposes tokens of the
guess; each of the verifier's steps takes a part of it as its draft, and what that decides is a verdict."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from draftd.core import FinishReason, TokenLogprobs
from draftd.engine.targets.base import SequenceOptions
from draftd.strategies import LinkFailure, QualityClass

_LEAST_PREFILL_SECONDS = 10.0  # of an opened text, until the verifier's first verdict, where its pace is not known
_PREFILL_SLACK = 3  # times what the verifier said of a token of a prompt
_QUEUES = 16  # verdicts whose queue is remembered
_MOST_STRAY = 4096  # messages in a row that nothing awaits: those of sequences that were given up are fewer
_MOST_CLOSES = 1024  # kept until the verifier confirms them


@dataclass(frozen=True, slots=True)
class OpenSequence:
    """Begins a sequence, or goes on with one whose connection was lost. `tokens`: its text as far as it is known, the
    prompt and what was answered; `options.prompt` says where the answer begins. `max_tokens`: of the answer. An open
    sequence of the same edge with this number is closed by it, as by `CloseSequence` with the length of `tokens`.
    `trace`: the edge's span of the request (W3C `traceparent`), which the verifier's is a child of; empty without one.
    `skip_prefix_cache`: as in `DecodeRequest`. `fingerprint`: of the model that the text was chosen by so far."""

    sequence: int
    tokens: tuple[int, ...]
    options: SequenceOptions
    max_tokens: int
    trace: str = ""
    skip_prefix_cache: bool = False
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class SequenceOpened:
    """`cached`: tokens of the text that the prefix store had."""

    sequence: int
    cached: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """After the first `known` tokens of the text, the last of which is `last`, these are proposed. `run`: so many
    tokens may be decoded from there on without a proposal; the grant replaces the one before. A step with neither
    withdraws the grant."""

    sequence: int
    known: int
    last: int
    proposed: tuple[int, ...] = ()
    run: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One step of the target. The text had `known` tokens; it goes on with `tokens`, of which the first `accepted` were
    proposed and the last one follows them, whatever ends the text. `drafted`: how many of the guess the step took. One
    that took none is of a grant: the verifier's own drafter may have drafted `own_drafted` for it, and all tokens but
    the last are of these. `finished`: the text ends within `tokens` by what the verifier knows. `load`: sequences in
    the verifier's hand, over those that it decodes together. Seconds as in `RemoteCounts`: `queue` of the oldest step
    that was in it, 0 for a token of a grant; `verify` of the forward; `share` that this sequence is charged for: of it,
    and of the verifier's own drafts."""

    sequence: int
    known: int
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
    """The edge is done with it, having applied the first `known` tokens of its text: what is beyond was discarded."""

    sequence: int
    known: int


@dataclass(frozen=True, slots=True)
class SequenceClosed:
    """The last that is said of a sequence. `error`: why the verifier refused it or gave it up, empty where the edge
    closed it or its text had ended; `retry_after`: seconds, where a retry may help."""

    sequence: int
    error: str = ""
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class LinkConnected:
    """The link has another connection, with this number. The verifier has in hand nothing that was sent over those
    before: what is to go on is opened anew, from its text."""

    connection: int


@dataclass(frozen=True, slots=True)
class LinkLost:
    """Nothing that is open goes on at the verifier, which cannot be had or serves other weights: `why`, for people."""

    why: str


ToVerifier = OpenSequence | Proposal | CloseSequence
FromVerifier = SequenceOpened | Verdict | SequenceClosed
FromLink = LinkConnected | LinkLost | FromVerifier


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """What the verifier serves and allows, as it said when the link came up. `shared_tokenizer`: its ids are this
    daemon's; where not, `difference` names the first that differs. `step_seconds`: of a plain step of one sequence,
    0 where it was not measured."""

    model: str
    fingerprint: str
    context_length: int
    vocab_size: int
    max_draft_tokens: int
    shared_tokenizer: bool
    difference: str = ""
    quality: QualityClass = QualityClass.PROFESSIONAL
    step_seconds: float = 0.0
    prefill_seconds: float = 0.0  # of a token of a prompt, 0 where it was not measured
    drafts: bool = False  # by itself, for what is granted


@dataclass(frozen=True, slots=True)
class LinkState:
    """How the link is now. `model` None: it never came up. `up`: requests may be opened. `why`: what keeps it down, for
    people. Round trip: measured, smoothed, without what the verifier took; None before that."""

    up: bool = False
    why: str = ""
    retry_after: float | None = None
    model: RemoteModel | None = None
    round_trip: float | None = None
    load: float | None = None  # as the last verdict said
    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0  # that came up, ever
    errors: int = 0  # ever: steps past their deadline, refusals, lost connections; once until a verdict comes again
    failures: Mapping[LinkFailure, int] = field(default_factory=dict)  # ever: the same and each attempt to connect
    failure: LinkFailure | None = None  # `why` in a word


class VerifierLink(Protocol):
    """To one verifier: connects, reconnects and carries messages. Any thread; nothing blocks and nothing raises.

    The engine receives `LinkConnected` before anything of a connection, and of a sequence `SequenceOpened`, verdicts,
    each of which goes on where the one before ended, and last one `SequenceClosed`. Steps need not wait for
    `SequenceOpened`. A connection that is lost is followed by another `LinkConnected` or, where there is none at once,
    by `LinkLost`.

    The engine sends one `CloseSequence` for each `OpenSequence`, over each connection until a `SequenceClosed` confirms
    it: from it the verifier counts what was discarded. Verdicts may still come until then."""

    def listen(self, wake: Callable[[], None]) -> None:
        """`wake` is called, on any thread, when something was received."""

    def send(self, message: ToVerifier, connection: int) -> None:
        """In order. Dropped where that connection is lost."""

    def take_messages(self) -> Sequence[FromLink]:
        """The messages since the last call, in order."""

    def count_late_verdict(self, why: str) -> None:
        """A verdict has not come in time. After several in a row the connection ends, and the link is down."""

    def broken(self, why: str) -> None:
        """The verifier has said what cannot be true: the connection ends, and the link is down."""

    @property
    def state(self) -> LinkState: ...


@dataclass(slots=True)
class UnconfirmedClose:
    """A `CloseSequence` that the verifier may not have. `end`: tokens of the text at most. `finished`: a verdict has
    ended it, and the verifier says so in a `SequenceClosed` besides."""

    message: CloseSequence
    end: int
    finished: bool


class LinkSession:
    """The engine's end of a link: over which connection it speaks, when answers are due, what was not confirmed. Engine
    thread only."""

    def __init__(self, link: VerifierLink, step_seconds: float) -> None:
        """`step_seconds`: in which a verdict comes, besides what steps wait in the verifier's queue."""
        self.link, self._step_seconds = link, step_seconds
        self.closes: dict[int, UnconfirmedClose] = {}
        self.connection: int | None = None  # that is up, as far as was received
        self._queues: deque[float] = deque(maxlen=_QUEUES)
        self._strays = 0

    def use_connection(self, connection: int) -> None:
        """Speaks over this connection from now on, and says again what was not confirmed."""
        self.connection = connection
        for close in self.closes.values():
            self.send(close.message)

    def send(self, message: OpenSequence | Proposal | CloseSequence) -> None:
        if self.connection is not None:
            self.link.send(message, self.connection)

    # when answers are due

    def prefill_deadline(self, tokens: int, now: float) -> float:
        """The time until which the first verdict of an opened text comes, that has so many tokens."""
        model = self.link.state.model
        pace = 0.0 if model is None else model.prefill_seconds
        seconds = self._step_seconds + pace * tokens * _PREFILL_SLACK
        return now + max(seconds, 0.0 if pace else _LEAST_PREFILL_SECONDS)

    def deadline(self, now: float) -> float:
        """The time until which a verdict comes that is due from now on."""
        return now + self._step_seconds + max(self._queues, default=0.0)

    def learn_queue(self, seconds: float) -> None:
        """Learns how long a step waited in the verifier's queue."""
        self._queues.append(seconds)

    # what is over

    def close(self, close: UnconfirmedClose) -> None:
        """Says it now, and over each connection until it is confirmed."""
        self.closes[close.message.sequence] = close
        if len(self.closes) > _MOST_CLOSES:
            del self.closes[next(iter(self.closes))]
        self.send(close.message)

    def confirm(self, sequence: int) -> None:
        """Takes a `SequenceClosed`, of a sequence that was closed."""
        close = self.closes.get(sequence)
        if close is not None and close.finished:
            close.finished = False
        else:
            self.closes.pop(sequence, None)

    def judge(self, message: FromVerifier, *, opened: bool | None) -> None:
        """Ends the connection where too much is said of nothing that is open. `opened`: whether the verifier has opened
        the sequence; None where it is not open here."""
        awaited = (
            message.sequence in self.closes if opened is None else not (opened and isinstance(message, SequenceOpened))
        )
        self._strays = 0 if awaited else self._strays + 1
        if self._strays >= _MOST_STRAY:
            self.link.broken(f"the verifier sent {_MOST_STRAY} messages of nothing that is open")
