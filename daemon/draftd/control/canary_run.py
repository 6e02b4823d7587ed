"""One run of the quality canaries, both ways: autoregressively, and at a rung that drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftd.canaries.prompts import Canary
from draftd.control.asking import Asker
from draftd.control.bounds import Bounds
from draftd.control.probing import Borrow, lent
from draftd.core import Origin
from draftd.policy import identity, quality
from draftd.policy.ladder import Rung
from draftd.policy.reports import CanaryOutcome, CanaryReport, Verdict


def run(
    rung: Rung,
    canaries: Sequence[Canary],
    asker: Asker,
    bounds: Bounds,
    borrow: Borrow,
    text: Callable[[Sequence[int]], str],
) -> tuple[tuple[CanaryOutcome, ...], str]:
    """What each showed, and why there are no more of them. Raises Unanswered."""
    for canary in canaries:
        if ended := bounds.reached():
            return (), ended
        asker.reference(canary.prompt, Origin.CANARY)
    made: list[CanaryOutcome] = []
    with lent(borrow, rung.drafter):
        for canary in canaries:
            if ended := bounds.reached():
                return tuple(made), ended
            reference = asker.reference(canary.prompt, Origin.CANARY)
            drafted = asker.drafted(canary.prompt, rung, Origin.CANARY)
            plain, fast = (canary.check.complaint(text(answer.tokens)) for answer in (reference, drafted))
            complaints = {"autoregressive": plain, "speculative": fast}
            told = fast if plain == fast else "; ".join(f"{way}: {said}" for way, said in complaints.items() if said)
            divergence = asker.divergence(reference, drafted)
            made.append(CanaryOutcome(canary.prompt.id, not plain, not fast, divergence, told))
    return tuple(made), ""


def judged(outcomes: Sequence[CanaryOutcome], ended: str, tolerated: float | None, tolerance: float) -> CanaryReport:
    """The report, but for its seconds. A run that ended early may be bad by what it saw; it cannot be good."""
    verdict, reason = quality.judge(outcomes, tolerance)
    if broken := identity.complaint(outcomes, tolerated):
        verdict, reason = Verdict.BAD, f"{broken}; {reason}"
    elif ended and verdict is not Verdict.BAD:
        verdict, reason = Verdict.FAILED, f"{ended}; {reason}" if outcomes else ended
    return CanaryReport(verdict, reason, tuple(outcomes))
