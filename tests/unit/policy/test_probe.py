"""What lets the ladder up, and what the canaries' outcomes amount to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DrafterName
from draftd.fallback import signals as quality
from draftd.fallback.drift import Baseline, Sample
from draftd.fallback.ladder import Ladder, LadderSettings, rungs
from draftd.fallback.probes import Judgement, ProbeSettings, judge, permits
from draftd.fallback.reports import CanaryOutcome, Divergence, ProbeReport, Verdict

DRAFT, LOOKUP = DRAFT_MODEL, PROMPT_LOOKUP
LADDER = rungs(6, (4,), DRAFT, (LOOKUP,))
LIMITS = LadderSettings(dwell=100)
KNOWN = Baseline(0.7, 0.2)


def judged(
    acceptance: float, *, costs: float = 0.5, drafter: DrafterName = DRAFT, baseline: Baseline | None = KNOWN
) -> Judgement:
    """Eight prompts, each with 40 drafts, 100 reached tokens, a spread around `acceptance`, and what a draft costs."""
    shares = [acceptance + off for off in (-0.1, 0.1, -0.05, 0.05, 0.0, 0.0, -0.1, 0.1)]
    samples = [Sample(round(100 * share), 100 - round(100 * share)) for share in shares]
    return judge(
        samples,
        drafts=320,
        break_even_tokens=320 * costs,
        drafter=drafter,
        baseline=baseline,
        settings=ProbeSettings(),
    )


def test_a_draft_that_is_as_good_as_it_was_and_pays_is_good() -> None:
    found = judged(0.7)
    assert found.verdict is Verdict.GOOD
    assert found.acceptance == pytest.approx(0.7)
    assert found.speedup == pytest.approx((320 + 560) / (320 + 160))
    assert found.reason == "acceptance 0.70, speed-up 1.83 in 8 prompts"
    assert judged(0.9).verdict is Verdict.GOOD


def test_what_the_guard_would_call_drift_again_does_not_pass() -> None:
    assert judged(0.6).verdict is Verdict.BAD
    assert judged(0.6).reason == "acceptance 0.60, baseline 0.70, at most 0.08 less"
    assert judged(0.65).verdict is Verdict.GOOD
    assert judged(0.6, baseline=None).verdict is Verdict.GOOD, "nothing is known of these prompts"


def test_below_the_floor_is_bad_whatever_is_known_and_costing_more_than_it_brings_too() -> None:
    assert judged(0.3, baseline=None).reason == "acceptance 0.30, floor 0.40"
    assert judged(0.7, costs=2.0).reason == "speed-up 0.92, least 1"
    assert judged(0.7, costs=2.0).verdict is Verdict.BAD


def test_prompt_lookup_is_judged_by_speed_alone() -> None:
    assert judged(0.2, drafter=LOOKUP, costs=0.4).verdict is Verdict.GOOD
    assert judged(0.2, drafter=LOOKUP, costs=0.6).verdict is Verdict.BAD


def test_too_little_is_no_verdict() -> None:
    for samples, drafts in (([], 0), ([Sample(20, 19)], 20), ([Sample(30, 30)], 0)):
        found = judge(
            samples, drafts=drafts, break_even_tokens=0.0, drafter=DRAFT, baseline=None, settings=ProbeSettings()
        )
        assert found.verdict is Verdict.TOO_FEW_SAMPLES
        assert found.acceptance is None


def test_only_a_good_recent_probe_of_a_rung_above_since_the_last_step_lets_up() -> None:
    state, report = Ladder(rung=2, since=1000.0), ProbeReport(LADDER[1], Verdict.GOOD, "fine")
    assert permits(report, 1001.0, state, LADDER, LIMITS, 1050.0)
    assert permits(replace(report, rung=LADDER[0]), 1001.0, state, LADDER, LIMITS, 1050.0)
    assert not permits(report, 1000.0, state, LADDER, LIMITS, 1050.0), "made before the step"
    assert not permits(report, 1001.0, state, LADDER, LIMITS, 1102.0), "more than a dwell ago"
    assert not permits(replace(report, rung=LADDER[2]), 1001.0, state, LADDER, LIMITS, 1050.0)
    assert not permits(report, 1001.0, Ladder(), LADDER, LIMITS, 1050.0), "there is nothing above"
    for verdict in (Verdict.BAD, Verdict.FAILED, Verdict.TOO_FEW_SAMPLES):
        assert not permits(replace(report, verdict=verdict), 1001.0, state, LADDER, LIMITS, 1050.0)


def canaries(count: int, plain: int, drafted: int) -> list[CanaryOutcome]:
    return [
        CanaryOutcome(f"c{i}", i < plain, i < drafted, complaint="" if i < drafted else "no JSON") for i in range(count)
    ]


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (canaries(200, 200, 200), Verdict.GOOD),
        (canaries(200, 200, 199), Verdict.GOOD),  # 0.5 %, just within
        (canaries(200, 200, 198), Verdict.BAD),
        (canaries(200, 150, 150), Verdict.GOOD),  # what the target cannot do is not the draft's fault
        (canaries(200, 150, 160), Verdict.GOOD),
        (canaries(20, 20, 19), Verdict.BAD),
        ([], Verdict.TOO_FEW_SAMPLES),
    ],
)
def test_canaries_are_bad_below_the_autoregressive_score_by_more_than_the_tolerance(
    outcomes: list[CanaryOutcome], verdict: Verdict
) -> None:
    assert quality.judge(outcomes, 0.005)[0] is verdict


def test_the_reason_says_what_failed_and_where_texts_diverged() -> None:
    outcomes = canaries(20, 20, 19)
    outcomes[0] = replace(outcomes[0], divergence=Divergence(12, 0.03125))
    assert quality.judge(outcomes, 0.005)[1] == (
        "19 of 20 canaries passed speculatively, 20 autoregressively; 1 diverged, c0 at token 12, logit gap 0.0312; "
        "c19: no JSON; tolerance 0.5%"
    )
