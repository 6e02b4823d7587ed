"""How the sequences of another daemon's target are decoded: by what was learnt of that daemon, and of drafting for it
(remote.py has the rule). What its target accepts is counted apart from what the local one does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draftd.core import CLASSES, DepthMode, DrafterName, WorkloadClass
from draftd.engine.depth.acceptance_rates import Acceptance, SequenceEvidence, emitted, key_of
from draftd.engine.depth.remote import RemoteCosts, RemoteEstimate, break_even, estimate
from draftd.engine.limits import RemoteLimits
from draftd.engine.sequence import DecodeSequence
from draftd.engine.targets.link import LinkState, RemoteModel


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

    def follow(self, model: RemoteModel) -> None:
        """What the verifier serves now; of another model nothing is known."""
        if model.fingerprint != self._fingerprint:
            self._fingerprint = model.fingerprint
            self.costs, self.acceptance = RemoteCosts(model.step_seconds), Acceptance()

    def promised(self, kind: DrafterName, sequence: DecodeSequence, depth: int) -> float:
        """Tokens that a step is expected to give with so many drafted by it."""
        return self._expected(kind, sequence, depth)[-1]

    def decide(self, sequence: DecodeSequence, kinds: Sequence[DrafterName], state: LinkState) -> RemoteEstimate | None:
        """With the drafter, of those that know its text, that promises most; None where none can draft."""
        most = 0 if state.model is None else min(sequence.most, self._most(state.model))
        fixed = sequence.request.plan.depth_mode is DepthMode.FIXED
        found = []
        for kind in kinds if most > 0 else ():
            times = self.costs.times(state.round_trip, kind, most)
            expected = self._expected(kind, sequence, most)
            found.append(estimate(times, expected, self._limits.in_flight, fixed_depth=fixed))
        return max(found, key=lambda one: one.rate, default=None)

    def estimates(self, state: LinkState, kind: DrafterName) -> dict[WorkloadClass, RemoteEstimate]:
        """What a greedy text of each class may expect with this drafter and without."""
        if state.model is None:
            return {}
        most, found = self._most(state.model), {}
        times = self.costs.times(state.round_trip, kind, most)
        for workload in (WorkloadClass.UNSPECIFIED, *CLASSES):
            rates = self.acceptance.rates((kind, False, False, workload))
            found[workload] = estimate(times, emitted(rates, 1.0, most), self._limits.in_flight)
        return found

    def break_even(self, state: LinkState, kind: DrafterName) -> float | None:
        """The round trip below which this drafter's steps, one at a time, beat streaming; for greedy text of any
        kind."""
        if state.model is None:
            return None
        most = self._most(state.model)
        times = self.costs.times(state.round_trip, kind, most)
        rates = self.acceptance.rates((kind, False, False, WorkloadClass.UNSPECIFIED))
        return break_even(times, emitted(rates, 1.0, most))

    def learn(self, sequence: DecodeSequence, judged: Sequence[Judged]) -> None:
        for kind, drafted, accepted in judged:
            own = sequence.evidence.setdefault(kind, SequenceEvidence())
            self.acceptance.learn(key_of(kind, sequence.request), own, drafted, accepted)
        if judged:
            self.acceptance.refresh()

    def _expected(self, kind: DrafterName, sequence: DecodeSequence, most: int) -> list[float]:
        return self.acceptance.expected(key_of(kind, sequence.request), sequence, most)

    def _most(self, model: RemoteModel) -> int:
        return min(self._limits.max_draft_tokens, model.max_draft_tokens)
