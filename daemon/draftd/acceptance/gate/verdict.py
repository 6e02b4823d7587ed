"""What a gate says: of each criterion what was measured and what came of it; of the candidate one of three things."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from draftd.acceptance.gate.reading import Reading
from draftd.acceptance.gate.spec import Criterion


class Outcome(StrEnum):
    """Too few samples and nothing measured are failures to prove; they are told apart from what was disproven."""

    PASSED = "passed"
    FAILED = "failed"
    TOO_FEW_SAMPLES = "too_few_samples"
    NOT_MEASURED = "not_measured"
    EXCUSED = "excused"  # it cannot be read on this machine, and the spec lets that pass

    @property
    def good(self) -> bool:
        return self in (Outcome.PASSED, Outcome.EXCUSED)


class Decision(StrEnum):
    """`not_judged`: what is there cannot be compared with what is wanted, so that any verdict would mislead."""

    PROMOTED = "promoted"
    NOT_PROMOTED = "not_promoted"
    NOT_JUDGED = "not_judged"

    @property
    def exit_code(self) -> int:
        return {Decision.PROMOTED: 0, Decision.NOT_PROMOTED: 1, Decision.NOT_JUDGED: 2}[self]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of one criterion. `arm` is whose figure it is; empty where it is not a sweep's."""

    criterion: Criterion
    arm: str
    reading: Reading
    outcome: Outcome
    reason: str = ""  # why, where it neither passed nor plainly failed


@dataclass(frozen=True, slots=True)
class Verdict:
    """`candidate` is the arm that was judged. `reasons` say why nothing was, `notes` what one should know besides."""

    decision: Decision
    spec: str
    run: str
    baseline: str = ""
    candidate: str = ""
    judgements: tuple[Judgement, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unproven(self) -> tuple[Judgement, ...]:
        """What stands in the way."""
        return tuple(one for one in self.judgements if not one.outcome.good)

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        if self.decision is Decision.NOT_JUDGED:
            return f"not judged: {self.reasons[0]}" + (f" (and {len(self.reasons) - 1} more)" * (len(self.reasons) > 1))
        proven = len(self.judgements) - len(self.unproven)
        counted = f"{proven} of {len(self.judgements)} criteria of {self.spec!r} hold"
        counted += f" for {self.candidate}" if self.candidate else ""
        if self.decision is Decision.PROMOTED:
            return f"promoted: {counted}"
        return f"not promoted: {counted}; not {', '.join(one.criterion.name for one in self.unproven)}"
