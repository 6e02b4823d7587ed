"""Greedy texts must be the same both ways. What of a text that is not?

Where the number of rows changes nothing in a logit, on a CPU, any divergence is an error. On Metal another kernel runs
for another number of rows, and two logits that lie close may change places: there a divergence is told, and only one
whose logits lie further apart than rounding explains is an error. A text that was decoded wrongly leaves the right one
by far more than that, and does so in one of a few dozen texts at the latest.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftd.policy.reports import CanaryOutcome, Divergence

NEAR_TIE = 0.5
"""Logits. Four steps of bfloat16 where logits lie between 16 and 32; the ties that were seen to flip were one apart."""


def tolerated(backend: str) -> float | None:
    """The largest gap that is no error on a backend, as ModelInfo names it; None where every divergence is one."""
    return NEAR_TIE if backend == "metal" else None


def broken(divergence: Divergence, tolerated: float | None) -> bool:
    """Whether it is an error. One whose gap is not known is, where every one is."""
    if tolerated is None:
        return True
    return divergence.logit_gap is not None and abs(divergence.logit_gap) > tolerated


def described(divergence: Divergence) -> str:
    gap = "not measured" if divergence.logit_gap is None else f"{divergence.logit_gap:.3g}"
    return f"leaves the autoregressive text at token {divergence.at}, logit gap {gap}"


def complaint(outcomes: Sequence[CanaryOutcome], tolerated: float | None) -> str:
    """What is broken of these texts; empty where nothing is."""
    found = [o for o in outcomes if o.divergence is not None and broken(o.divergence, tolerated)]
    if not found:
        return ""
    first = found[0]
    assert first.divergence is not None
    return f"{len(found)} of {len(outcomes)} texts are not the target's own: {first.id} {described(first.divergence)}"
