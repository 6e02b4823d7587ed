"""The strategies, which say where a request is decoded, and the classes, levels and counts that go with them.

The vocabulary of `verify.*` and `remote.*`, shared by engine, planning, service and the protocols.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any


class Strategy(enum.StrEnum):
    """Which daemon decodes. LOCAL: this machine's model answers. REMOTE: another daemon's does, and this one passes it
    on. SPECULATIVE: this machine drafts and the other verifies, so the text is the other's. AUTO: the router decides;
    no plan has it."""

    LOCAL = "local"
    REMOTE = "remote"
    SPECULATIVE = "speculative"
    AUTO = "auto"


class RemoteMode(enum.StrEnum):
    """How the verifier decodes. STREAM: by itself, without proposals. OVERLAPPED: by itself until proposals have
    overtaken it. STEPS: only proposals."""

    STREAM = "stream"
    OVERLAPPED = "overlapped"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class RemoteEstimate:
    """Expected tokens per second of each mode at its best depth, and the chosen mode: `depth` tokens at a time, `ahead`
    proposals on their way. If that is STREAM, no draft pays. `target_seconds` of the verifier's target and
    `draft_seconds` of drafting here are per token."""

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
    """The quality of a model's answers, as declared by its operator (`model.quality`, `remote.quality`). Ordered."""

    DRAFT = 1
    STANDARD = 2
    PROFESSIONAL = 3

    @property
    def label(self) -> str:
        """The spelling in settings, the protocol, spans and metrics."""
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> QualityClass:
        return cls[label.upper()]


class RemoteLevel(enum.IntEnum):
    """The use of the remote that the fallback allows; higher levels allow more. SPECULATIVE: everything. STREAMING: it
    may answer, without drafts for it. LOCAL: nothing is sent to it."""

    LOCAL = 0
    STREAMING = 1
    SPECULATIVE = 2

    @property
    def kind(self) -> RemoteLevel:
        """Returns itself: this ladder has one level of each kind."""
        return self

    @property
    def label(self) -> str:
        """The spelling in the protocol, metrics, logs and alerts."""
        return self.name.lower()

    def restrict(self, strategy: Strategy) -> Strategy:
        """Returns the strategy that this level allows in place of `strategy`. Not for AUTO."""
        if strategy is Strategy.LOCAL or self is RemoteLevel.LOCAL:
            return Strategy.LOCAL
        return Strategy.REMOTE if self is RemoteLevel.STREAMING else strategy


class Verifier(enum.StrEnum):
    """The daemon whose target chose a token."""

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
    TLS_REQUIRED = "tls_required"  # the remote uses TLS, this daemon does not
    TLS_NOT_SPOKEN = "tls_not_spoken"  # this daemon uses TLS, the remote does not
    UNKNOWN_AUTHORITY = "unknown_authority"
    WRONG_NAME = "wrong_name"
    CERTIFICATE_EXPIRED = "certificate_expired"  # expired, or not valid yet
    KEY_TYPE = "key_type"
    CLIENT_CERTIFICATE = "client_certificate"  # this daemon's is missing or not accepted
    TLS_HANDSHAKE = "tls_handshake"
    # its answers
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
    """Counts of one request or of many, between an edge and its verifier, as counted by the edge. `wasted`: proposed
    tokens that no forward used, because the text continued differently. `hidden`: verdicts that came when the next
    proposal was already sent, so that the edge did not wait for a round trip. `late`: verdicts after the request's end.
    `target_seconds`: the verifier's forwards and drafts; `queue_seconds`: proposals waiting there. `round_trip_seconds`
    is the sum over `round_trips`. `reopened`: sequences resumed on a new connection. `failed_over`: went on locally."""

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
        """Combines each count with the other's by `operation`, such as a sum."""
        return RemoteCounts(**{f.name: operation(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})


@dataclass(slots=True)
class PeerCounts:
    """The use of this verifier by one peer, or by all. `tokens`: decided tokens; `discarded`: those that the edge did
    not use. `stale`: steps that contradicted the text; `wasted`: guessed tokens dropped unverified. Seconds as in
    `RemoteCounts`; bytes are of messages."""

    connections: int = 0  # ever
    opened: int = 0  # sequences since the start
    refused: int = 0  # sequences and connections since the start
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
    """This daemon as a verifier: connected `peers` by address, the total of all peers since the start, and the number
    of open sequences. `refusals`: of connections and sequences, by reason."""

    peers: dict[str, PeerCounts]
    total: PeerCounts
    open_sequences: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
