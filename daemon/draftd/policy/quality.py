"""Do speculative answers pass their checks as often as autoregressive ones?"""

from __future__ import annotations

from collections.abc import Sequence

from draftd.policy.reports import CanaryOutcome, Verdict

_EXACT = 1e-9  # 0.995 - 0.99 is a little less than 0.005


def judge(outcomes: Sequence[CanaryOutcome], tolerance: float) -> tuple[Verdict, str]:
    """The verdict, and what it rests on. BAD where the share that passed speculatively lies below the autoregressive
    one by more than `tolerance`. A text that diverges and passes is told, and is not bad by itself: on some machines
    two logits that lie close change places with the number of rows."""
    if not outcomes:
        return Verdict.TOO_FEW_SAMPLES, "no canary was run"
    plain = sum(o.passed_autoregressive for o in outcomes)
    drafted = sum(o.passed_speculative for o in outcomes)
    diverged = [o for o in outcomes if o.divergence is not None]
    reason = f"{drafted} of {len(outcomes)} canaries passed speculatively, {plain} autoregressively"
    if diverged:
        first = diverged[0]
        assert first.divergence is not None
        gap = "" if first.divergence.logit_gap is None else f", logit gap {first.divergence.logit_gap:.3g}"
        reason += f"; {len(diverged)} diverged, {first.id} at token {first.divergence.at}{gap}"
    bad = (plain - drafted) / len(outcomes) > tolerance + _EXACT
    if bad:
        complaint = next((o for o in outcomes if o.passed_autoregressive and not o.passed_speculative), None)
        if complaint is not None and complaint.complaint:
            reason += f"; {complaint.id}: {complaint.complaint}"
        reason += f"; tolerance {tolerance:.1%}"
    return (Verdict.BAD if bad else Verdict.GOOD), reason
