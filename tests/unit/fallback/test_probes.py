"""Probe verdicts that let the ladder up, and the verdict on canary outcomes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DrafterName, FallbackLevel, LadderLevel
from draftd.counts import DraftCounts
from draftd.fallback.drift import Baseline
from draftd.fallback.ladder import LadderSettings, LadderState, ladder_levels
from draftd.fallback.probes import (
    NEAR_TIE,
    CanaryOutcome,
    Divergence,
    ProbedPrompt,
    ProbeReport,
    ProbeVerdict,
    judge_canaries,
    judge_probe,
    permits,
    tolerated_gap,
)

DRAFT, LOOKUP = DRAFT_MODEL, PROMPT_LOOKUP
LADDER = ladder_levels(6, (4,), DRAFT, (LOOKUP,))
LIMITS, FLOOR = LadderSettings(cooldown=100), 0.40
KNOWN = Baseline(0.7, 0.2)


def judged(
    acceptance: float, *, costs: float = 0.5, drafter: DrafterName = DRAFT, baseline: Baseline | None = KNOWN
) -> ProbeReport:
    """Judges eight prompts of 40 drafts and 100 reached tokens each, with a spread around `acceptance`, at this cost of
    a draft."""
    shares = [acceptance + off for off in (-0.1, 0.1, -0.05, 0.05, 0.0, 0.0, -0.1, 0.1)]
    prompts = [probed(40, round(100 * share), 100 - round(100 * share), 40 * costs) for share in shares]
    return judge_probe(LadderLevel(FallbackLevel.FULL, 4, drafter), prompts, "", baseline, None, FLOOR)


def probed(drafts: int, accepted: int, rollbacks: int, break_even: float = 0.0, cut: int = 0) -> ProbedPrompt:
    counts = DraftCounts(drafts=drafts, accepted=accepted, cut=cut, rollbacks=rollbacks, break_even_tokens=break_even)
    return ProbedPrompt("p", counts)


def test_probe_at_baseline_acceptance_with_speedup_above_one_is_good() -> None:
    report = judged(0.7)
    assert report.verdict is ProbeVerdict.GOOD
    assert report.acceptance == pytest.approx(0.7)
    assert report.speedup == pytest.approx((320 + 560) / (320 + 160))
    assert report.reason == "acceptance 0.70, speed-up 1.83 in 8 prompts"
    assert judged(0.9).verdict is ProbeVerdict.GOOD


def test_probe_speedup_excludes_accepted_tokens_cut_at_the_end_of_text() -> None:
    level = LadderLevel(FallbackLevel.FULL, 4, DRAFT)
    whole = judge_probe(level, [probed(40, 70, 30, 60.0)], "", None, None, FLOOR)
    ended = judge_probe(level, [probed(40, 70, 30, 60.0, cut=20)], "", None, None, FLOOR)
    assert (whole.verdict, whole.speedup) == (ProbeVerdict.GOOD, 110 / 100)
    assert (ended.verdict, ended.reason) == (ProbeVerdict.BAD, "speed-up 0.90, minimum 1")
    assert ended.acceptance == whole.acceptance == 0.7


def test_probe_without_measured_draft_cost_has_too_few_samples() -> None:
    unpriced = ProbedPrompt("p", DraftCounts(drafts=40, accepted=70, rollbacks=30, unpriced_drafts=40))
    level = LadderLevel(FallbackLevel.FULL, 4, DRAFT)
    report = judge_probe(level, [unpriced], "", None, None, FLOOR)
    assert (report.verdict, report.speedup) == (ProbeVerdict.TOO_FEW_SAMPLES, None)
    assert judge_probe(level, [unpriced, probed(40, 70, 30, 60.0)], "", None, None, FLOOR).speedup == 110 / 100


def test_probe_acceptance_far_below_its_baseline_is_bad() -> None:
    assert judged(0.6).verdict is ProbeVerdict.BAD
    assert judged(0.6).reason == "acceptance 0.60, baseline 0.70, at most 0.08 less"
    assert judged(0.65).verdict is ProbeVerdict.GOOD
    assert judged(0.6, baseline=None).verdict is ProbeVerdict.GOOD, "nothing is known of these prompts"


def test_probe_counts_acceptance_as_unchanged_only_if_good_and_near_known_baseline() -> None:
    assert judged(0.7).as_ever
    assert judged(0.9).as_ever
    assert not judged(0.66).as_ever
    assert not judged(0.6).as_ever
    assert not judged(0.7, baseline=None).as_ever
    assert not judged(0.7, costs=2.0).as_ever


def test_probe_below_acceptance_floor_or_with_speedup_below_one_is_bad() -> None:
    assert judged(0.3, baseline=None).reason == "acceptance 0.30, floor 0.40"
    assert judged(0.7, costs=2.0).reason == "speed-up 0.92, minimum 1"
    assert judged(0.7, costs=2.0).verdict is ProbeVerdict.BAD


def test_probe_of_prompt_lookup_is_judged_by_speedup_alone() -> None:
    assert judged(0.2, drafter=LOOKUP, costs=0.4).verdict is ProbeVerdict.GOOD
    assert judged(0.2, drafter=LOOKUP, costs=0.6).verdict is ProbeVerdict.BAD


def test_probe_with_too_few_drafted_tokens_has_no_verdict() -> None:
    for prompt in (probed(20, 20, 19), probed(0, 30, 30)):
        report = judge_probe(LADDER[0], [prompt], "", None, None, FLOOR)
        assert report.verdict is ProbeVerdict.TOO_FEW_SAMPLES
        assert report.acceptance is None


def test_fallback_step_up_needs_a_good_recent_probe_of_a_higher_level() -> None:
    state, report = LadderState(2, since=1000.0), ProbeReport(LADDER[1], ProbeVerdict.GOOD, "fine")
    assert permits(report, 1001.0, state, LADDER, LIMITS, 1050.0)
    assert permits(replace(report, level=LADDER[0]), 1001.0, state, LADDER, LIMITS, 1050.0)
    assert not permits(report, 1000.0, state, LADDER, LIMITS, 1050.0), "made before the step"
    assert not permits(report, 1001.0, state, LADDER, LIMITS, 1102.0), "more than a cooldown ago"
    assert not permits(replace(report, level=LADDER[2]), 1001.0, state, LADDER, LIMITS, 1050.0)
    assert not permits(report, 1001.0, LadderState(), LADDER, LIMITS, 1050.0), "there is nothing above"
    for verdict in (ProbeVerdict.BAD, ProbeVerdict.FAILED, ProbeVerdict.TOO_FEW_SAMPLES):
        assert not permits(replace(report, verdict=verdict), 1001.0, state, LADDER, LIMITS, 1050.0)


def canaries(count: int, plain: int, drafted: int) -> list[CanaryOutcome]:
    return [
        CanaryOutcome(f"c{i}", i < plain, i < drafted, complaint="" if i < drafted else "no JSON") for i in range(count)
    ]


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (canaries(200, 200, 200), ProbeVerdict.GOOD),
        (canaries(200, 200, 199), ProbeVerdict.GOOD),  # 0.5 %, just within
        (canaries(200, 200, 198), ProbeVerdict.BAD),
        (canaries(200, 150, 150), ProbeVerdict.GOOD),  # what the target cannot do is not the draft's fault
        (canaries(200, 150, 160), ProbeVerdict.GOOD),
        (canaries(20, 20, 19), ProbeVerdict.BAD),
        ([], ProbeVerdict.TOO_FEW_SAMPLES),
    ],
)
def test_canaries_are_bad_below_the_autoregressive_score_by_more_than_the_tolerance(
    outcomes: list[CanaryOutcome], verdict: ProbeVerdict
) -> None:
    assert judge_canaries(outcomes, "", NEAR_TIE, 0.005).verdict is verdict


def test_canary_verdict_reason_names_failed_canaries_and_first_divergence() -> None:
    outcomes = canaries(20, 20, 19)
    outcomes[0] = replace(outcomes[0], divergence=Divergence(12, 0.03125))
    assert judge_canaries(outcomes, "", NEAR_TIE, 0.005).reason == (
        "19 of 20 canaries passed speculatively, 20 autoregressively; 1 diverged, c0 at token 12, logit gap 0.0312; "
        "c19: no JSON; tolerance 0.5%"
    )


gaps = st.floats(allow_nan=False, allow_infinity=False)


def outcome(name: str, divergence: Divergence | None) -> CanaryOutcome:
    return CanaryOutcome(name, True, True, divergence)


@pytest.mark.parametrize("backend", ["cpu (openblas)", "cpu (reference)", "scripted", "test", ""])
@given(gap=gaps | st.none(), at=st.integers(0, 100))
def test_every_divergence_of_speculative_text_is_an_error_on_cpu_backends(
    backend: str, gap: float | None, at: int
) -> None:
    assert Divergence(at, gap).broken(tolerated_gap(backend))


@pytest.mark.parametrize("backend", ["metal", "cuda"])
@given(gap=gaps)
def test_divergence_of_speculative_text_on_a_gpu_is_an_error_only_beyond_a_near_tie(backend: str, gap: float) -> None:
    assert Divergence(3, gap).broken(tolerated_gap(backend)) == (abs(gap) > NEAR_TIE)


@pytest.mark.parametrize("backend", ["metal", "cuda"])
def test_divergence_of_speculative_text_with_unknown_logit_gap_is_no_error_on_a_gpu(backend: str) -> None:
    assert not Divergence(3, None).broken(tolerated_gap(backend))


@given(st.lists(st.none() | st.builds(Divergence, st.integers(0, 50), gaps | st.none()), max_size=8))
def test_canaries_are_bad_exactly_when_a_divergence_exceeds_the_tolerated_logit_gap(
    found: list[Divergence | None],
) -> None:
    outcomes = [outcome(f"c{n}", divergence) for n, divergence in enumerate(found)]
    for limit in (None, NEAR_TIE):
        bad = judge_canaries(outcomes, "", limit, 1.0).verdict is ProbeVerdict.BAD
        assert bad == any(d is not None and d.broken(limit) for d in found)


def test_canary_verdict_reason_names_the_first_intolerable_divergence() -> None:
    outcomes = [outcome("a", None), outcome("b", Divergence(2, 0.1)), outcome("c", Divergence(7, 3.25))]
    assert judge_canaries(outcomes, "", NEAR_TIE, 0.0).reason.startswith(
        "1 of 3 texts are not the target's own: c leaves the autoregressive text at token 7, logit gap 3.25; 3 of 3"
    )
    reason = judge_canaries(outcomes, "", None, 0.0).reason
    assert reason.startswith("2 of 3 texts are not the target's own: b leaves")
    assert str(Divergence(4, None)) == "leaves the autoregressive text at token 4, logit gap not measured"
