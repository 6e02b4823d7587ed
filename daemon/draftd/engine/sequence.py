"""One request while it is decoded, and how many of its drafts were accepted. `Key` is the class of text that this
counts for (depth/acceptance_rates.py)."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from draftd.core import (
    MODEL_DRAFTERS,
    PEER,
    PROMPT_LOOKUP,
    TARGET,
    ClientProposals,
    DecodePlan,
    DecodeRequest,
    DrafterName,
    FinishReason,
    Origin,
    Proposals,
    SamplingParams,
    WorkloadClass,
)
from draftd.engine.guess import Guess
from draftd.outcome import RequestStats, TokenSink
from draftd.strategies import Strategy

_MEMORY = 40.0  # drafted tokens
_PRIOR_WEIGHT = 8.0  # drafts

Key = tuple[DrafterName, bool, bool, WorkloadClass | None]  # drafter; sampled, seeded; class of text (None: all texts)


@dataclass(slots=True)
class SequenceEvidence:
    """Counts of a drafter's tokens, for a sequence or for matches of one length: accepted and rejected, and the counts
    expected from the acceptance rates of the class of text. Counts fade within `memory` drafted tokens."""

    accepted: float = 0.0
    rejected: float = 0.0
    expected_accepted: float = 0.0
    expected_rejected: float = 0.0
    memory: float = _MEMORY

    def add(self, rates: Sequence[float], drafted: int, accepted: int) -> None:
        for i in range(min(accepted + 1, drafted, len(rates))):
            self.fade(1 - 1 / self.memory)
            self.accepted += i < accepted
            self.rejected += i >= accepted
            self.expected_accepted += rates[i]
            self.expected_rejected += 1 - rates[i]

    def fade(self, share: float) -> None:
        self.accepted *= share
        self.rejected *= share
        self.expected_accepted *= share
        self.expected_rejected *= share

    @property
    def odds(self) -> float:
        """Returns the odds of acceptance divided by those of the class of text; 1 without evidence."""
        prior = _PRIOR_WEIGHT / 2
        more = (self.accepted + prior) / (self.expected_accepted + prior)
        return more * (self.expected_rejected + prior) / (self.rejected + prior)


@dataclass(slots=True, eq=False)
class DecodeSequence:
    """One request's state on the engine thread. `tokens` is prompt and output; the last one is not yet in any cache."""

    request: DecodeRequest  # never changes
    sink: TokenSink
    sampling: SamplingParams  # the request's, with a seed where another daemon's target needs one
    plan: DecodePlan  # the request's, or less since it was lowered or moved
    proposals: Proposals  # its peer's, or a client's stand-in
    latest_drafter: DrafterName | None  # of the plan's: the last to draft, or the first to; steps count as its
    stats: RequestStats
    tokens: list[int]
    max_tokens: int  # the request's own, cut to the model's context
    generator: random.Random  # what a sampled sequence without a seed draws from
    most: int  # tokens to draft in a step: the plan's, or fewer after lowering or by a peer's bound
    id: int = 0  # the target's number for it
    guess: Guess | None = None  # of how its tokens go on, while another daemon's target decodes it
    replays: int = 0  # tokens that the target computes again in its next step
    degraded: str = ""
    lowered: str = ""
    finish: FinishReason | None = None
    error: str = ""
    end_reported: bool = False
    rebuilt_at: int = -1  # output length when the sequence's caches were last rebuilt after a failure
    kept: int = 0  # tokens of its text that the target kept for later requests, or tried to
    evidence: dict[DrafterName, SequenceEvidence] = field(default_factory=dict)  # of its own drafts
    reads_prefix: bool = False  # its prefix is being read from disk: it begins after that
    prefills_drafter: bool | None = None  # whether its drafter prefills it before it joins; None before that is decided
    proposed: Sequence[int] = ()  # by its peer, for the present step
    granted: float = math.inf  # tokens that its peer lets it emit without a proposal
    own_most: int = 0  # as `most`, without a peer's bound
    seconds: float = 0.0  # of the target and its own draft, not reported to its peer yet
    model_drafter: DrafterName | None = None  # of several draft models or heads, the one chosen for its text
    match: int = 0  # tokens of its end that prompt lookup found before: its latest draft is of what followed them
    told_cap: int = -1  # the last bound reported to be lower than what would pay
    failed_over: str = ""  # why another daemon's target decodes it no more
    unavailable: float | None = None  # seconds until a retry, if that target is lost and this one may not go on

    @classmethod
    def of(cls, request: DecodeRequest, sink: TokenSink, context_length: int) -> DecodeSequence:
        return cls(
            request=request,
            sink=sink,
            sampling=request.sampling,
            plan=request.plan,
            proposals=request.peer or ClientProposals(),
            latest_drafter=request.plan.drafter,
            stats=RequestStats(prompt_tokens=len(request.prompt), arrival=request.arrival),
            tokens=list(request.prompt),
            max_tokens=min(request.max_tokens, context_length - len(request.prompt)),
            generator=random.Random(),
            most=request.plan.max_draft_tokens,
            own_most=request.plan.max_draft_tokens,
        )

    @property
    def guesses(self) -> int:
        """The number of tokens at its end that the target has not judged."""
        return 0 if self.guess is None else len(self.guess)

    @property
    def ended(self) -> bool:
        return self.finish is not None

    @property
    def of_peer(self) -> bool:
        """Whether another daemon drafts for it."""
        return self.request.peer is not None

    @property
    def emitted(self) -> int:
        return self.stats.counts.emitted

    @property
    def answered(self) -> int:
        """Tokens of the answer, including those that it began with."""
        return self.request.answered + self.emitted

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_tokens - self.emitted

    @property
    def shares(self) -> bool:
        """Whether it uses the prefix cache and its text is kept there. The daemon's own requests are always computed,
        and a failed text cannot be trusted."""
        request = self.request
        trusted = request.origin is Origin.CLIENT and self.finish is not FinishReason.ERROR
        return trusted and not request.skip_prefix_cache

    @property
    def identity(self) -> str:
        """The caller whose earlier answers it may draft from, and whose later texts may draft from its answer; empty if
        it shares none."""
        return self.request.identity if self.shares else ""

    @property
    def wants_prompt(self) -> bool:
        """Whether the log-probabilities of its prompt are still to be sent."""
        return self.request.prompt_logprobs is not None and not self.emitted

    def evidence_key(self, drafter: DrafterName) -> Key:
        """Returns the key under which acceptance rates count its drafts by this drafter."""
        sampled = not self.sampling.greedy
        return drafter, sampled, sampled and self.sampling.seed is not None, self.request.workload

    @property
    def drafter(self) -> DrafterName | None:
        """The drafter of this sequence now; None decodes autoregressively."""
        return None if self.degraded else self.latest_drafter

    @property
    def first_drafter(self) -> DrafterName | None:
        """The drafter that takes in its prompt before it joins the running sequences: of a draft model and a draft head
        the one that was chosen."""
        chosen = self.model_drafter if self.drafter in MODEL_DRAFTERS else None
        return chosen or self.drafter

    @property
    def drafters(self) -> frozenset[DrafterName]:
        """All drafters of its plan, whichever drafted last."""
        drafter, others = self.plan.drafter, self.plan.alternatives
        return others if drafter is None else others | {drafter}

    @property
    def depth(self) -> int:
        """How many tokens to draft next: never past the last token that may be emitted."""
        return 0 if self.degraded else min(self.most, self.remaining - 1)

    def propose(self, proposed: Sequence[int], granted: int) -> None:
        """Takes its peer's proposal for the next step. If `proposed` is empty, its own drafter may draft, within the
        grant (`granted`: tokens that may be decoded without a proposal)."""
        self.proposed, self.granted, own = proposed, granted, self.plan.drafter
        if own is not None:
            self.latest_drafter = PEER if proposed else own
        self.most = len(proposed) or (min(self.own_most, max(0, granted - 1)) if own != PEER else 0)

    def degrade(self, reason: str) -> None:
        """Decodes this sequence autoregressively from now on. The first reason stands."""
        self.degraded = self.degraded or reason

    def take_proposals(self) -> None:
        """Lets only the peer draft from now on for its sequence, which was degraded because this daemon's drafter
        cannot."""
        if not self.of_peer or self.plan.drafter in (None, PEER):
            return
        self.lowered, self.degraded = self.lowered or self.degraded, ""
        self.plan = replace(self.plan, drafter=PEER, alternatives=frozenset())
        self.latest_drafter = PEER

    def lower(self, most: int, drafters: Collection[DrafterName], reason: str) -> None:
        """Bounds the drafts of this daemon to `most` tokens at a time, from one of `drafters`; without any, the
        sequence decodes autoregressively. A peer's proposals are not bounded here: the peer bounds them."""
        plan = self.plan
        if self.degraded or plan.drafter in (None, PEER):
            return
        kept = plan.alternatives & {PEER, *drafters}
        usable = (plan.drafter, *sorted(plan.alternatives.intersection(MODEL_DRAFTERS)), PROMPT_LOOKUP)
        first = next((kind for kind in usable if kind in drafters), None)  # prompt lookup needs only the text
        if not most or first is None:
            self.plan = replace(plan, alternatives=kept)
            self.degrade(reason)
            self.take_proposals()
        elif first != plan.drafter:
            others = kept & {PEER} if first == PROMPT_LOOKUP else kept - {first}
            self.plan = replace(plan, drafter=first, alternatives=others)
            self._bound(most, reason)
        else:
            self.plan = replace(plan, alternatives=kept)
            if most < self.own_most:
                self._bound(most, reason)
        self.latest_drafter = self.plan.drafter

    def _bound(self, most: int, reason: str) -> None:
        self.most, self.own_most = min(most, self.most), min(most, self.own_most)
        self.lowered = self.lowered or reason

    @property
    def speculates(self) -> bool:
        """Whether another daemon's target decodes it with drafts from here."""
        return self.plan.strategy is Strategy.SPECULATIVE and self.drafter is not None

    def move_here(self, why: str, context_length: int) -> None:
        """Moves it to the local target, whose texts have at most `context_length` tokens."""
        self.failed_over = why
        alternatives = self.plan.alternatives - {TARGET}
        self.plan = replace(self.plan, strategy=Strategy.LOCAL, alternatives=alternatives)
        self.latest_drafter = self.plan.drafter
        self.max_tokens = min(self.max_tokens, context_length - len(self.request.prompt))
        self.evidence.clear()

    def end(self, reason: FinishReason, error: str = "") -> None:
        """Marks the sequence as ended; the first reason stands."""
        if not self.ended:
            self.finish, self.error = reason, error
