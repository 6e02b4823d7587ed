"""Where a request is decoded: on this machine, on another, or drafted here and verified there; and what that is worth.

The vocabulary of `verify.*` and `remote.*`, which engine, planning, service and the protocols share.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any


class Strategy(enum.StrEnum):
    """LOCAL: this machine's model answers. REMOTE: another daemon's does, and this one passes it on. SPECULATIVE: this
    machine drafts and the other verifies, so that the text is the other's. AUTO: the router decides; no plan has it."""

    LOCAL = "local"
    REMOTE = "remote"
    SPECULATIVE = "speculative"
    AUTO = "auto"


class RemoteMode(enum.StrEnum):
    """STREAM: the verifier decodes by itself, nothing is proposed. OVERLAPPED: it does so until what is proposed has
    overtaken it. STEPS: it decodes only what is proposed."""

    STREAM = "stream"
    OVERLAPPED = "overlapped"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class RemoteEstimate:
    """Tokens a second that each mode is expected to give with its best depth, and which is taken: `depth` tokens at a
    time, `ahead` proposals on their way. Where that is STREAM, no draft pays. `target_seconds` of the verifier's target
    and `draft_seconds` of drafting here are what a token takes."""

    mode: RemoteMode
    depth: int
    ahead: int
    rates: Mapping[RemoteMode, float]
    target_seconds: float = 0.0
    draft_seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.rates[self.mode]


class QualityClass(enum.IntEnum):
    """What a model's answers are good for, as its operator says (`model.quality`, `remote.quality`). Ordered."""

    DRAFT = 1
    STANDARD = 2
    PROFESSIONAL = 3

    @property
    def label(self) -> str:
        """As settings, the protocol, spans and metrics spell it."""
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> QualityClass:
        return cls[label.upper()]


class RemoteLevel(enum.IntEnum):
    """What the fallback allows of the remote: a higher level allows more. SPECULATIVE: all. STREAMING: it may answer,
    but nothing is drafted for it. LOCAL: nothing is sent to it."""

    LOCAL = 0
    STREAMING = 1
    SPECULATIVE = 2

    @property
    def kind(self) -> RemoteLevel:
        """Returns itself: this ladder has one level of each kind."""
        return self

    @property
    def label(self) -> str:
        """As the protocol, metrics, logs and alerts spell it."""
        return self.name.lower()

    def restrict(self, strategy: Strategy) -> Strategy:
        """What becomes of a strategy under it. Not of AUTO, which is none yet."""
        if strategy is Strategy.LOCAL or self is RemoteLevel.LOCAL:
            return Strategy.LOCAL
        return Strategy.REMOTE if self is RemoteLevel.STREAMING else strategy


class Verifier(enum.StrEnum):
    """Whose target chose a token."""

    LOCAL = "local"
    REMOTE = "remote"


class LinkFailure(enum.StrEnum):
    """Why the link to the remote is down, or what failed while it was up: `error.type` of `draftd.remote.errors`, and
    the cause of an event."""

    # the network
    NAME_NOT_FOUND = "name_not_found"
    CONNECTION_REFUSED = "connection_refused"
    UNREACHABLE = "unreachable"
    CONNECT_TIMEOUT = "connect_timeout"
    # TLS
    TLS_REQUIRED = "tls_required"  # it speaks TLS, this daemon does not
    TLS_NOT_SPOKEN = "tls_not_spoken"  # the reverse
    UNKNOWN_AUTHORITY = "unknown_authority"
    WRONG_NAME = "wrong_name"
    CERTIFICATE_EXPIRED = "certificate_expired"  # or not valid yet
    KEY_TYPE = "key_type"
    CLIENT_CERTIFICATE = "client_certificate"  # this daemon's is missing, or not accepted
    TLS_HANDSHAKE = "tls_handshake"
    # what it answers
    NO_VERIFIER = "no_verifier"
    UNAUTHENTICATED = "unauthenticated"
    OTHER_PROTOCOL = "other_protocol"
    NOT_ENABLED = "not_enabled"
    NOT_SERVING = "not_serving"
    TOO_MANY_PEERS = "too_many_peers"
    # while it was up
    CONNECTION_LOST = "connection_lost"
    NO_ANSWER = "no_answer"
    LATE = "late"
    REFUSED = "refused"  # a sequence
    BROKEN_RULE = "broken_rule"
    OTHER = "other"


@dataclass(slots=True)
class RemoteCounts:
    """Of one request, or of many: what passed between an edge and its verifier, as the edge counted it.

    `steps` were sent, with `proposed` tokens; `verdicts` were applied, which gave `tokens` that the remote chose.
    `wasted` tokens were proposed and no forward of the verifier took them, because the text had gone another way.
    `hidden`: verdicts that a proposal already sent went on from, so that no round trip was waited for. `late`: verdicts
    that came after the request had ended. Seconds are the verifier's: of its target's forwards, shared by the
    sequences in them, and of its own drafts (`target_seconds`), and from a step's arrival until the forward it was in
    began (`queue_seconds`). `round_trip_seconds`: the sum over `round_trips`. `reopened`: connections that were lost
    and resumed; `failed_over`: 1 where it went on locally."""

    steps: int = 0
    proposed: int = 0
    verdicts: int = 0
    tokens: int = 0
    wasted: int = 0
    hidden: int = 0
    late: int = 0
    reopened: int = 0
    failed_over: int = 0
    round_trips: int = 0
    round_trip_seconds: float = 0.0
    queue_seconds: float = 0.0
    target_seconds: float = 0.0

    def combine(self, other: RemoteCounts, operation: Callable[[Any, Any], Any]) -> RemoteCounts:
        """Each count by `operation` with the other's of that name, such as their sum."""
        return RemoteCounts(**{f.name: operation(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})


@dataclass(slots=True)
class PeerCounts:
    """What one peer cost this daemon as a verifier, or what all did.

    `tokens` were decided, accepted ones and those that follow; `discarded` of them the edge never applied. `stale`
    steps disagreed with the text and were dropped; `wasted` tokens of a guess were dropped unverified. Seconds as in
    `RemoteCounts`; bytes are of messages."""

    connections: int = 0  # ever
    opened: int = 0  # sequences, ever
    refused: int = 0  # sequences and connections
    steps: int = 0
    stale: int = 0
    verdicts: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    discarded: int = 0
    wasted: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    queue_seconds: float = 0.0
    target_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class VerificationStatus:
    """This daemon as a verifier: `peers` that are connected by address, the total of all there ever were, and how many
    sequences are open. `refusals` of connections and sequences, by reason."""

    peers: dict[str, PeerCounts]
    total: PeerCounts
    open_sequences: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
