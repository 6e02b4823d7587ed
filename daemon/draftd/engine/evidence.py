"""How one sequence's drafts fared, and the key under which that counts for others (depth/acceptance_rates.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftd.core import DrafterName, SamplingParams, WorkloadClass

_MEMORY = 40.0  # drafts
_PRIOR_WEIGHT = 8.0  # drafts

Key = tuple[DrafterName, bool, bool, WorkloadClass | None]  # drafter; sampled, seeded; class of text (None: all texts)


def key_of(kind: DrafterName, sampling: SamplingParams, workload: WorkloadClass) -> Key:
    """The key of drafts by this drafter for a text that is sampled so, of this class."""
    return kind, not sampling.greedy, not sampling.greedy and sampling.seed is not None, workload


@dataclass(slots=True)
class SequenceEvidence:
    """Counts of one sequence's drafted tokens, by one drafter, and of what its class made expect."""

    accepted: float = 0.0
    rejected: float = 0.0
    expected_accepted: float = 0.0
    expected_rejected: float = 0.0

    def add(self, rates: Sequence[float], drafted: int, accepted: int) -> None:
        for i in range(min(accepted + 1, drafted, len(rates))):
            self.fade(1 - 1 / _MEMORY)
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
        """Factor on the odds of the sequence's class."""
        prior = _PRIOR_WEIGHT / 2
        more = (self.accepted + prior) / (self.expected_accepted + prior)
        return more * (self.expected_rejected + prior) / (self.rejected + prior)
