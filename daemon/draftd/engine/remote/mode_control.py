"""How the sequences of another daemon's target are decoded: by what was learnt of that daemon, and of drafting for it
(mode_estimate.py has the rule). What its target accepts is counted apart from what the local one does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draftd.core import CLASSES, DepthMode, DrafterName, WorkloadClass
from draftd.engine.depth.acceptance_rates import Acceptance, emitted
from draftd.engine.depth.saved import RemoteLearnt, counted
from draftd.engine.evidence import SequenceEvidence
from draftd.engine.limits import RemoteLimits
from draftd.engine.remote.mode_estimate import RemoteCosts, break_even, estimate
from draftd.engine.remote.verifier_link import LinkState, RemoteModel
from draftd.engine.sequence import DecodeSequence
from draftd.strategies import RemoteEstimate

_MEASURED = 48  # tokens of an answer, over which the pace of streaming is measured where that is not known


class Judged(NamedTuple):
    """What became of one draft: `accepted` of its first `drafted` tokens were right."""

    kind: DrafterName
    drafted: int
    accepted: int


class RemoteControl:
    """Engine thread only."""

    def __init__(self, limits: RemoteLimits) -> None:
        self._limits = limits
        self._fingerprint = ""
        self.costs, self.acceptance = RemoteCosts(), Acceptance()
        self.recalled: RemoteLearnt | None = None  # what an earlier run learnt of a verifier

    def follow(self, model: RemoteModel) -> None:
        """What the verifier serves now; of a model that is not the one before nothing is known."""
        if model.fingerprint == self._fingerprint:
            return
        self._fingerprint, known = model.fingerprint, self.recalled
        self.costs, self.acceptance = RemoteCosts(model.step_seconds), Acceptance()
        if known is not None and known.fingerprint == model.fingerprint:
            self.costs, self.acceptance = RemoteCosts.restored(known.figures, model.step_seconds), known.rates()

    def learnt(self) -> RemoteLearnt | None:
        """To be saved: of the verifier that decoded last."""
        if not self.costs.measured:
            return self.recalled
        return RemoteLearnt(self._fingerprint, self.costs.figures, counted(self.acceptance))

    def promised(self, kind: DrafterName, sequence: DecodeSequence, depth: int) -> float:
        """Tokens that a step is expected to give with so many drafted by it."""
        return self._expected(kind, sequence, depth)[-1]

    def decide(self, sequence: DecodeSequence, kinds: Sequence[DrafterName], state: LinkState) -> RemoteEstimate | None:
        """With the drafter, of those that know its text, that promises most; None where none can draft."""
        most = 0 if state.model is None else min(sequence.most, self._most(state.model))
        fixed = sequence.plan.depth_mode is DepthMode.FIXED
        found = []
        for kind in kinds if most > 0 else ():
            times = self.costs.times(state.round_trip, kind, most, sequence.request.workload)
            expected = self._expected(kind, sequence, most)
            found.append(estimate(times, expected, self._limits.in_flight, fixed_depth=fixed))
        return max(found, key=lambda one: one.rate, default=None)

    def streams_first(self, sequence: DecodeSequence, state: LinkState) -> bool:
        """Whether it is to stream for a while, to see how fast that is: the verifier drafts by itself, and it is not
        known, or was not for long, what that gives such texts."""
        model, free = state.model, sequence.plan.depth_mode is DepthMode.AUTOMATIC
        drafts = model is not None and model.drafts and free
        return drafts and sequence.emitted < _MEASURED and self.costs.unmeasured(sequence.request.workload)

    def estimates(self, state: LinkState, kind: DrafterName) -> dict[WorkloadClass, RemoteEstimate]:
        """What a greedy text of each class may expect with this drafter and without; from the hello of a verifier on
        that says what its steps take, or else from its first steps."""
        if state.model is not None:
            self.follow(state.model)
        if state.model is None or not self.costs.measured:
            return {}
        most, found = self._most(state.model), {}
        for workload in (WorkloadClass.UNSPECIFIED, *CLASSES):
            times = self.costs.times(state.round_trip, kind, most, workload)
            rates = self.acceptance.rates((kind, False, False, workload))
            found[workload] = estimate(times, emitted(rates, 1.0, most), self._limits.in_flight)
        return found

    def break_even(self, state: LinkState, kind: DrafterName) -> float | None:
        """The round trip below which this drafter's steps, one at a time, beat streaming; for greedy text of any
        kind. None before it drafted for this verifier."""
        if state.model is None or not self.costs.measured or kind not in self.costs.figures.draft:
            return None
        most = self._most(state.model)
        times = self.costs.times(state.round_trip, kind, most)
        rates = self.acceptance.rates((kind, False, False, WorkloadClass.UNSPECIFIED))
        return break_even(times, emitted(rates, 1.0, most))

    def learn(self, sequence: DecodeSequence, judged: Sequence[Judged]) -> None:
        for kind, drafted, accepted in judged:
            own = sequence.evidence.setdefault(kind, SequenceEvidence())
            self.acceptance.learn(sequence.evidence_key(kind), own, drafted, accepted)
        if judged:
            self.acceptance.refresh()

    def _expected(self, kind: DrafterName, sequence: DecodeSequence, most: int) -> list[float]:
        return self.acceptance.expected(sequence.evidence_key(kind), sequence, most)

    def _most(self, model: RemoteModel) -> int:
        return min(self._limits.max_draft_tokens, model.max_draft_tokens)
