"""The results of a request: counts and times, tokens as they come, and its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from draftd.core import FinishReason, TokenLogprobs
from draftd.counts import DraftCounts
from draftd.strategies import RemoteCounts, Verifier


@dataclass(slots=True)
class RequestStats:
    """Counts and times of one request. Times are monotonic seconds, None until reached."""

    prompt_tokens: int
    arrival: float
    cached_tokens: int = 0  # prompt tokens that the target had in its prefix cache
    scheduled: float | None = None
    prefilled: float | None = None
    first_token: float | None = None
    first_chunk_tokens: int = 0
    last_token: float | None = None
    finished: float | None = None
    counts: DraftCounts = field(default_factory=DraftCounts)
    gaps: list[float] = field(default_factory=list)  # seconds between successive chunks
    looked_up: bool = False  # whether the prefix cache was searched
    unfit_tokens: int = 0  # tokens of its text if these exceed the prefix cache; else 0
    remote: RemoteCounts | None = None  # if another daemon's target took part
    engine_seconds: float = 0.0  # its share of this engine's steps

    @property
    def time_to_first_token(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def queue_seconds(self) -> float | None:
        return None if self.scheduled is None else self.scheduled - self.arrival

    @property
    def prefill_seconds(self) -> float | None:
        if self.scheduled is None or self.prefilled is None:
            return None
        return self.prefilled - self.scheduled

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first chunk, over the time since it; None with a single chunk."""
        if self.first_token is None or self.last_token is None or self.last_token <= self.first_token:
            return None
        return (self.counts.emitted - self.first_chunk_tokens) / (self.last_token - self.first_token)

    @property
    def time_per_output_token(self) -> float | None:
        """(duration - TTFT) / (output tokens - 1), as the GenAI conventions define it; None below two tokens."""
        if self.first_token is None or self.finished is None or self.counts.emitted < 2:
            return None
        return (self.finished - self.first_token) / (self.counts.emitted - 1)


class Emission(NamedTuple):
    """Tokens that one step added to one request; `from_draft` and, if requested, `logprobs` run parallel to `tokens`.
    `verifier`: whose target chose them. `prompt`: log-probabilities of the prompt's tokens except the first, if
    requested; they come first and without tokens."""

    tokens: tuple[int, ...]
    from_draft: tuple[bool, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    verifier: Verifier = Verifier.LOCAL
    prompt: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one request. `error` is set if the reason is ERROR; `degraded`: why a speculative request went on
    autoregressively; `lowered`: why it drafted less than planned or with another drafter; both empty if it did not.
    `failed_over`: why it moved from another daemon's target to this one's. `unavailable`: seconds until a retry, if its
    target became unavailable. `refused`: the error that would have been raised on submission, had the cause been known
    then."""

    reason: FinishReason
    stats: RequestStats
    degraded: str = ""
    error: str = ""
    lowered: str = ""
    failed_over: str = ""
    unavailable: float | None = None
    refused: Exception | None = None


class TokenSink(Protocol):
    """The receiver of one request's tokens. Called on the engine thread: must neither block nor raise."""

    def on_tokens(self, emission: Emission) -> None: ...

    def on_finish(self, outcome: Outcome) -> None:
        """Called exactly once, and last, for each accepted request."""
