"""The core types: requests, plans for decoding them, results of steps, and outcomes.

Values only, standard library only: every room may import this module, and it imports only `strategies`. Times are
seconds of `time.monotonic()`; counts are of tokens unless the name says otherwise.
"""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypedDict, Unpack

from draftd.strategies import Strategy


class DecodeMode(enum.StrEnum):
    """How a request is decoded."""

    SPECULATIVE = "speculative"
    AUTOREGRESSIVE = "autoregressive"


class ModePreference(enum.StrEnum):
    """The mode that a caller asks for. SPECULATIVE is a demand: refused if unavailable, never silently lowered."""

    AUTO = "auto"
    SPECULATIVE = "speculative"
    AUTOREGRESSIVE = "autoregressive"


class DepthMode(enum.StrEnum):
    """How many tokens each step drafts: as many as pay, possibly none, or always as many as the plan allows."""

    AUTOMATIC = "automatic"
    FIXED = "fixed"


DrafterName: TypeAlias = str
"""What a drafter, a source of drafted tokens, is registered by (draftd.engine.drafters.registry)."""

DRAFT_MODEL: DrafterName = "draft_model"
DRAFT_HEAD: DrafterName = "draft_head"  # the checkpoint's own, which drafts from the target's hidden states
LIGHT_DRAFT_MODEL: DrafterName = "light_draft_model"  # the draft with coarser weights
PROMPT_LOOKUP: DrafterName = "prompt_lookup"
GRAMMAR: DrafterName = "grammar"  # tokens that the request's grammar forces
TARGET: DrafterName = "target"  # this daemon's target, drafting for another daemon's, if there is no draft model
PEER: DrafterName = "peer"  # proposals of another daemon, which this one verifies; no client may ask for it

MODEL_DRAFTERS = (DRAFT_MODEL, DRAFT_HEAD)
"""The drafters with weights that a plan may choose between. Each stands in for the other if that is not there."""

BUILT_IN_DRAFTERS = (DRAFT_MODEL, DRAFT_HEAD, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, GRAMMAR)
"""Those that every daemon has registered, the most expensive first."""


def drafter_cost_rank(drafter: DrafterName) -> int:
    """Returns a rank of drafters by cost, the most expensive first. Drafters that are not built in come first, because
    they may cost anything."""
    return BUILT_IN_DRAFTERS.index(drafter) if drafter in BUILT_IN_DRAFTERS else -1


class Origin(enum.StrEnum):
    """The source of a request. Probes and canaries are the daemon's own: no counter, metric or dashboard of requests
    includes them."""

    CLIENT = "client"
    PROBE = "probe"
    CANARY = "canary"


class DaemonState(enum.StrEnum):
    """The daemon's state. Only SERVING takes requests. NOT_SERVING: it has served, and its engine is restarting.
    DRAINING: it was told to stop. FAILED: it will exit by itself."""

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
    """The kind of text, as labelled by the caller: acceptance differs by it."""

    UNSPECIFIED = "unspecified"
    CODE = "code"
    TOOL_CALL = "tool_call"
    CHAT = "chat"
    PROSE = "prose"
    EDIT = "edit"  # the answer repeats most of the prompt


CLASSES = tuple(kind for kind in WorkloadClass if kind is not WorkloadClass.UNSPECIFIED)
"""The workload classes that can be named."""


class ContextTier(enum.StrEnum):
    """Classes of prompt length: acceptance changes with context length."""

    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"

    @classmethod
    def of(cls, prompt_tokens: int) -> ContextTier:
        """Returns SHORT below 512 prompt tokens, MEDIUM below 4,096, LONG from there."""
        if prompt_tokens < 512:
            return cls.SHORT
        return cls.MEDIUM if prompt_tokens < 4096 else cls.LONG


class FallbackLevel(enum.IntEnum):
    """The kinds of levels of the ladder: a higher one allows more speculation."""

    AUTOREGRESSIVE = 0
    LIGHT_DRAFT = 1
    SHORT_BLOCK = 2
    FULL = 3

    @property
    def label(self) -> str:
        """The spelling in the protocol, spans, metrics, logs and alerts."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class LadderLevel:
    """One level of the ladder: the drafter and the tokens that it allows. AUTOREGRESSIVE has neither."""

    kind: FallbackLevel
    max_draft_tokens: int
    drafter: DrafterName | None

    @property
    def drafts(self) -> bool:
        """Whether anything may be drafted."""
        return self.drafter is not None

    @property
    def label(self) -> str:
        """The kind, and what distinguishes the level from others of its kind: `short_block 3`, `light_draft
        prompt_lookup`."""
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
    """How the next token is drawn; greedily at a temperature below LEAST_TEMPERATURE. First `logit_bias` is added by
    token id. Positive logits of tokens in prompt or answer are divided by `repetition_penalty`, others multiplied
    (Keskar et al. 2019, arXiv 1909.05858, section 4.1). The logit of a token that the answer has c ≥ 1 times loses
    `presence_penalty` + c × `frequency_penalty`. Then top_p, min_p, top_k and temperature apply, in mlx-lm's order. All
    but temperature are off by default. With a `seed` the text is the same however it is decoded, at some cost of
    acceptance."""

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
        """Whether top_p, min_p or top_k restrict the tokens that may be drawn."""
        return not self.greedy and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How one request will be decoded, and why. `max_draft_tokens`, the most that a step may draft, is 0 exactly if the
    mode is AUTOREGRESSIVE; with `depth_mode` FIXED each step drafts that many. `alternatives`: drafters that may
    replace `drafter` in steps where they pay more; none if the caller named one or depth is fixed. `strategy`: whose
    target decodes; the other fields then apply to drafting and to continuing locally. `generic_tools`: tools are
    described in the text, because the chat template takes none."""

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
    """Finds stop strings on the engine thread, so that counts include only emitted tokens.

    One instance serves one request, receives each emitted token once and in order, and must not raise."""

    def feed(self, tokens: Sequence[int]) -> int | None:
        """Returns how many of `tokens`, at least one, belong to the text if a stop string is complete within them; None
        if not."""


class StepFigures(TypedDict, total=False):
    """Figures of a target's step that are sent to a peer with its tokens. `finished`: the text ends within them.
    `verify_seconds`: of the step; `share_seconds`: charged to the sequence since the last message; `load`: all open
    sequences, divided by how many can be decoded together. `own_drafted`: in a step without tokens proposed by the
    peer, the number drafted by this daemon's own drafter; all emitted tokens but the last are then accepted ones of
    these."""

    finished: FinishReason | None
    verify_seconds: float
    share_seconds: float
    load: float
    logprobs: tuple[TokenLogprobs, ...]
    own_drafted: int


class Proposals(Protocol):
    """Another daemon's proposals for a sequence that this daemon verifies, and the reports to that daemon. Proposals
    may be added by any thread; the methods declared here are called on the engine thread."""

    def report_opened(self, cached: int) -> None:
        """Reports that prefill begins, with the first `cached` tokens found in the prefix cache."""

    def due(self, tokens: Sequence[int]) -> bool:
        """Whether the sequence, whose text is `tokens`, has a step to do: proposals to verify, or a grant to go on
        without."""

    @property
    def streams(self) -> bool:
        """Whether there is nothing to verify, and a grant for at least two tokens."""

    @property
    def granted(self) -> int:
        """Tokens that may be decoded without a proposal."""

    @property
    def expected(self) -> float:
        """The likely time of the next step, from earlier delays; monotonic seconds."""

    def guess(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """Returns up to `most` tokens to verify after `tokens`, in the forward that starts now."""

    def report_step(self, tokens: Sequence[int], accepted: int, drafted: int, **figures: Unpack[StepFigures]) -> None:
        """Reports a step of the target that emitted `tokens`: the first `accepted` of the `drafted` ones and the one
        after them, unless the text ends."""


class ClientProposals:
    """The `Proposals` of a sequence without a peer: always due, no guess, unlimited grant."""

    streams, granted, expected = True, sys.maxsize, math.inf

    def report_opened(self, cached: int) -> None:
        return

    def due(self, tokens: Sequence[int]) -> bool:
        return True

    def guess(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        return ()

    def report_step(self, tokens: Sequence[int], accepted: int, drafted: int, **figures: Unpack[StepFigures]) -> None:
        return


#: A client's clock starts before the daemon's: one that leaves this soon before a deadline leaves because of it.
DEADLINE_SLACK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One request as the engine sees it."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int  # 0: no token is chosen
    plan: DecodePlan
    arrival: float
    sampling: SamplingParams = SamplingParams()
    stop: StopMatcher | None = None
    deadline: float | None = None  # on the monotonic clock; None waits forever
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    origin: Origin = Origin.CLIENT
    client: str = ""  # whose share of the queue it uses
    identity: str = (
        ""  # the caller, as the daemon knows them: drafts may come from their earlier answers; empty: unknown
    )
    priority: int = 0  # lower ones are scheduled first
    min_tokens: int = 0  # no end token is chosen before these
    ignore_eos: bool = False  # the model's own end tokens do not end the text
    stop_ids: frozenset[int] = frozenset()  # more end tokens
    logprobs: int | None = None  # likeliest tokens reported at each place; None: no log-probabilities
    prompt_logprobs: int | None = None  # the same for the prompt, all of which is then computed
    grammar: str = ""  # the answer's, in llguidance's form; empty without one
    local_allowed: bool = True  # may continue on this daemon's target if another daemon's becomes unavailable
    trace: str = ""  # this daemon's span (W3C `traceparent`), parent of another daemon's; empty without one
    #: Another daemon's proposals, which this one verifies. The plan's drafter is then PEER, or this daemon's own, which
    #: drafts when the peer proposes nothing, with PEER among the alternatives.
    peer: Proposals | None = None
    #: Tokens at the prompt's end that belong to the answer: grammar, penalties and seed continue after them, and
    #: `max_tokens` are those that may follow.
    answered: int = 0
    skip_prefix_cache: bool = False  # neither uses nor fills the prefix cache

    @property
    def tier(self) -> ContextTier:
        return ContextTier.of(len(self.prompt))


class TokenLogprobs(NamedTuple):
    """The target's own log-probability of a token, before any transform, and the likeliest tokens in its place with
    theirs, in descending order. Natural logarithms. `rank`: among all tokens, 1 for the likeliest; 0 if not
    reported."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0
