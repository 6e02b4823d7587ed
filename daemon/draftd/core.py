"""The vocabulary: what is asked, how it will be decoded, what a step did, what came of it.

Values only, standard library only: every room may import this one, and it imports none of them but `strategies`. Times
are seconds of `time.monotonic()`; counts are of tokens unless the name says otherwise.
"""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, TypedDict, Unpack

from draftd.counts import DraftCounts
from draftd.strategies import RemoteCounts, Strategy, Verifier


class DecodeMode(enum.StrEnum):
    """How a request is decoded."""

    SPECULATIVE = "speculative"
    AUTOREGRESSIVE = "autoregressive"


class ModePreference(enum.StrEnum):
    """What the caller asked for. SPECULATIVE is a demand: refused, never silently lowered."""

    AUTO = "auto"
    SPECULATIVE = "speculative"
    AUTOREGRESSIVE = "autoregressive"


class DepthMode(enum.StrEnum):
    """How many tokens each step drafts: as many as pay, none included, or always as many as the plan allows."""

    AUTOMATIC = "automatic"
    FIXED = "fixed"


DrafterName: TypeAlias = str
"""What a drafter, a source of drafted tokens, is registered by (draftd.engine.drafters.registry)."""

DRAFT_MODEL: DrafterName = "draft_model"
LIGHT_DRAFT_MODEL: DrafterName = "light_draft_model"  # the draft with coarser weights
PROMPT_LOOKUP: DrafterName = "prompt_lookup"
GRAMMAR: DrafterName = "grammar"  # what the request's grammar leaves no choice about
TARGET: DrafterName = "target"  # this daemon's own target, for another daemon's: where there is no draft model
PEER: DrafterName = "peer"  # what another daemon proposes for a sequence that this one verifies: no client asks for it

BUILT_IN_DRAFTERS = (DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, GRAMMAR)
"""Those that every daemon has registered, the most expensive first."""


def drafter_cost_rank(drafter: DrafterName) -> int:
    """Orders drafters by what they cost, the most expensive first. One that is not built in may cost anything: it comes
    before all others."""
    return BUILT_IN_DRAFTERS.index(drafter) if drafter in BUILT_IN_DRAFTERS else -1


class Origin(enum.StrEnum):
    """Who asked. Probes and canaries are the daemon's own: no counter, metric or dashboard of requests has them."""

    CLIENT = "client"
    PROBE = "probe"
    CANARY = "canary"


class DaemonState(enum.StrEnum):
    """Only a SERVING daemon takes requests. NOT_SERVING: it has served, and its engine begins anew. DRAINING: it was
    told to stop. FAILED: it ends by itself."""

    LOADING = "loading"
    SERVING = "serving"
    NOT_SERVING = "not_serving"
    DRAINING = "draining"
    FAILED = "failed"


class FinishReason(enum.StrEnum):
    """Why a request ended. STOP and LENGTH are successes."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


class WorkloadClass(enum.StrEnum):
    """Kind of text, as the caller labels it: acceptance differs by it."""

    UNSPECIFIED = "unspecified"
    CODE = "code"
    TOOL_CALL = "tool_call"
    CHAT = "chat"
    PROSE = "prose"
    EDIT = "edit"  # the answer repeats most of the prompt


CLASSES = tuple(kind for kind in WorkloadClass if kind is not WorkloadClass.UNSPECIFIED)
"""The workload classes that can be named."""


class ContextTier(enum.StrEnum):
    """Prompt length, coarsely: acceptance moves with context length."""

    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"

    @classmethod
    def of(cls, prompt_tokens: int) -> ContextTier:
        """SHORT below 512 prompt tokens, MEDIUM below 4,096, LONG from there."""
        if prompt_tokens < 512:
            return cls.SHORT
        return cls.MEDIUM if prompt_tokens < 4096 else cls.LONG


class FallbackLevel(enum.IntEnum):
    """The ladder: a higher level allows more speculation."""

    AUTOREGRESSIVE = 0
    LIGHT_DRAFT = 1
    SHORT_BLOCK = 2
    FULL = 3

    @property
    def label(self) -> str:
        """As the protocol, spans, metrics, logs and alerts spell it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class LadderLevel:
    """One level of the ladder: what may be drafted there. AUTOREGRESSIVE has neither tokens nor a drafter."""

    kind: FallbackLevel
    max_draft_tokens: int
    drafter: DrafterName | None

    @property
    def label(self) -> str:
        """Returns its kind and what tells it from others of that kind: `short_block 3`, `light_draft prompt_lookup`."""
        if self.kind is FallbackLevel.SHORT_BLOCK:
            return f"{self.kind.label} {self.max_draft_tokens}"
        if self.kind is FallbackLevel.LIGHT_DRAFT:
            return f"{self.kind.label} {self.drafter}"
        return self.kind.label


LEAST_TEMPERATURE = 1e-9
"""A lower temperature is greedy: two float32 logits that differ, divided by it, are further apart than noise can be.
Divided by much less, they would not be finite."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. Transforms apply in mlx-lm's order: top_p, min_p, top_k, temperature.

    temperature 0, or below LEAST_TEMPERATURE, is greedy. top_p 1, top_k 0 and min_p 0 are off. A `seed` gives the same
    text however it is decoded, at some cost of acceptance; None draws from the system.

    Before these, the logits: `logit_bias` is added, by token id; the logit of a token that prompt or answer have is
    divided by `repetition_penalty` where it is positive, else multiplied by it (Keskar et al. 2019, arXiv 1909.05858,
    section 4.1); of one that the answer has c times, `presence_penalty` + c × `frequency_penalty` is subtracted.
    1, 0 and 0 are off.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def greedy(self) -> bool:
        return 0 <= self.temperature < LEAST_TEMPERATURE

    @property
    def deterministic(self) -> bool:
        return self.greedy or self.seed is not None

    @property
    def filtered(self) -> bool:
        """Whether the likelihoods of all tokens decide which of them may be drawn."""
        return not self.greedy and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How one request will be decoded, and why. `max_draft_tokens` is 0 if and only if the mode is AUTOREGRESSIVE.

    It is the most that a step may draft; where `depth_mode` is FIXED, each does. `alternatives` may draft in
    `drafter`'s place in the steps where they pay more: not where the caller named one, nor where depth is fixed.
    `strategy`: whose target decodes it; the rest is how it is drafted, and how it goes on where it must go on locally.
    `generic_tools`: the model is told of its tools in text, since its chat template takes none.
    """

    mode: DecodeMode
    max_draft_tokens: int
    drafter: DrafterName | None
    level: FallbackLevel
    variant: str
    reason: str
    depth_mode: DepthMode = DepthMode.FIXED
    alternatives: frozenset[DrafterName] = frozenset()
    strategy: Strategy = Strategy.LOCAL
    generic_tools: bool = False

    def __post_init__(self) -> None:
        speculative = self.mode is DecodeMode.SPECULATIVE
        assert speculative == (self.max_draft_tokens > 0) == (self.drafter is not None), self
        assert not self.alternatives or self.depth_mode is DepthMode.AUTOMATIC, self


class StopMatcher(Protocol):
    """Decides on the engine thread whether new tokens end the text, so that counts are of what was really emitted.

    One instance serves one request, is fed each emitted token once and in order, and may raise nothing.
    """

    def feed(self, tokens: Sequence[int]) -> int | None:
        """How many of `tokens`, at least one, belong to the text when a stop string is complete within them; None while
        it is not."""


class StepFigures(TypedDict, total=False):
    """Figures of a step of the target that a peer is told besides its tokens. `finished`: the text ends within them.
    `verify_seconds` of the step, `share_seconds` what the sequence is charged for since it was last told; `load`:
    sequences in hand over those that decode together. `own_drafted`: tokens that this daemon's own drafter drafted,
    where nothing of the guess was in the step: all tokens but the last are of these."""

    finished: FinishReason | None
    verify_seconds: float
    share_seconds: float
    load: float
    logprobs: tuple[TokenLogprobs, ...]
    own_drafted: int


class Proposals(Protocol):
    """What another daemon proposed for a sequence that this one verifies, and what it is told. Any thread adds to it;
    called on the engine thread."""

    def report_opened(self, cached: int) -> None:
        """Its prefill begins; the prefix store had its first `cached` tokens."""

    def due(self, tokens: Sequence[int]) -> bool:
        """Whether the sequence, whose text is `tokens`, has a step in hand: something to verify, or a grant to go on
        without."""

    @property
    def streams(self) -> bool:
        """Whether there is nothing to verify, and a grant for two tokens and more."""

    @property
    def granted(self) -> int:
        """Tokens that may be decoded without a proposal."""

    @property
    def expected(self) -> float:
        """When the next step is likely to come, by how long it took before; monotonic seconds."""

    def guess(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """Up to `most` tokens that are to be verified after these, by the forward that begins now."""

    def report_step(self, tokens: Sequence[int], accepted: int, drafted: int, **figures: Unpack[StepFigures]) -> None:
        """A step of the target went on with `tokens`: of the `drafted` ones the first `accepted`, and the one after
        them, whatever ends the text."""


class ClientProposals:
    """The `Proposals` of a sequence that no peer drafts for: always due, without a guess, granted for good."""

    streams, granted, expected = True, sys.maxsize, math.inf

    def report_opened(self, cached: int) -> None:
        return

    def due(self, tokens: Sequence[int]) -> bool:
        return True

    def guess(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        return ()

    def report_step(self, tokens: Sequence[int], accepted: int, drafted: int, **figures: Unpack[StepFigures]) -> None:
        return


#: A client's own clock begins to run before the daemon's: who leaves so soon before a deadline leaves because of it.
DEADLINE_SLACK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One request as the engine sees it. `deadline` is on the monotonic clock; None waits for ever. `client`: whose
    share of the queue it takes. A lower `priority` is scheduled first among those that wait.

    `grammar`: what the answer must be, as llguidance reads it; empty where it may be anything. Its text ends with a
    token of the model's own end tokens (unless `ignore_eos`) or of `stop_ids`, of which none is chosen before
    `min_tokens`. `logprobs`: how many of the likeliest tokens are told in each place, None for no log-probabilities;
    `prompt_logprobs`: the same for the prompt, all of which is then computed. `max_tokens` may be 0: nothing is chosen.
    `local_allowed`: where its plan is another daemon's target, it may go on with this one's when that cannot be had.
    `trace`: this daemon's span of it (W3C `traceparent`), for another one's to be a child of; empty without one.
    `peer`: what another daemon proposes for it, where this one verifies; its plan's drafter is PEER, or this daemon's
    own, which drafts where the peer proposes nothing, with PEER among the alternatives. `answered`: tokens
    at the end of the prompt that are of the answer, as it was chosen before: its grammar, penalties and seed go on from
    there, and `max_tokens` are those that may follow. `skip_prefix_cache`: nothing that is kept of other texts is used,
    and nothing of its own is kept."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    plan: DecodePlan
    arrival: float
    sampling: SamplingParams = SamplingParams()
    stop: StopMatcher | None = None
    deadline: float | None = None
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    origin: Origin = Origin.CLIENT
    client: str = ""
    priority: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""
    local_allowed: bool = True
    trace: str = ""
    peer: Proposals | None = None
    answered: int = 0
    skip_prefix_cache: bool = False

    @property
    def tier(self) -> ContextTier:
        return ContextTier.of(len(self.prompt))


@dataclass(slots=True)
class RequestStats:
    """All that was counted and timed of one request. Times are monotonic seconds, None until reached."""

    prompt_tokens: int
    arrival: float
    cached_tokens: int = 0  # of the prompt, those whose keys and values the target had kept from another request
    scheduled: float | None = None
    prefilled: float | None = None
    first_token: float | None = None
    first_chunk_tokens: int = 0
    last_token: float | None = None
    finished: float | None = None
    counts: DraftCounts = field(default_factory=DraftCounts)
    gaps: list[float] = field(default_factory=list)  # seconds between successive chunks
    looked_up: bool = False  # whether kept keys and values were looked for
    unfit_tokens: int = 0  # of its text, where the prefix cache has no room for so many; else 0
    remote: RemoteCounts | None = None  # where another daemon's target took part
    engine_seconds: float = 0.0  # of this engine's steps, shared with the sequences that were in them

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


class TokenLogprobs(NamedTuple):
    """The target's own log-probability of a token, before any transform, and the likeliest tokens in its place with
    theirs, in descending order. Natural logarithms. `rank` among all tokens, 1 for the likeliest; 0 where it is not
    told."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


class Emission(NamedTuple):
    """Tokens that one step added to one request; `from_draft` runs parallel to `tokens`, and so does `logprobs` where
    they were asked for. `verifier`: whose target chose them. `prompt`: of each token of the prompt but the first, where
    they were asked for; they come first, and without tokens."""

    tokens: tuple[int, ...]
    from_draft: tuple[bool, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    verifier: Verifier = Verifier.LOCAL
    prompt: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one request. `error` is set when the reason is ERROR; `degraded` says why a speculative request went
    on autoregressively, `lowered` why it drafted less than its plan or with another drafter from some step on; each is
    empty when it did not. `failed_over`: why a request of another daemon's target went on with this one's.
    `unavailable`: it ended in ERROR since its target cannot be had; retry after so many seconds. `refused`: it ended in
    ERROR before it began, for what would have been raised, had it been known when it was submitted."""

    reason: FinishReason
    stats: RequestStats
    degraded: str = ""
    error: str = ""
    lowered: str = ""
    failed_over: str = ""
    unavailable: float | None = None
    refused: Exception | None = None


class TokenSink(Protocol):
    """Where one request's tokens go. Called on the engine thread: must neither block nor raise."""

    def on_tokens(self, emission: Emission) -> None: ...

    def on_finish(self, outcome: Outcome) -> None:
        """Called exactly once for each accepted request, last."""
