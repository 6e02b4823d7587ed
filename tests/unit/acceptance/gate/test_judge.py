"""What comes of a criterion: of the right requests, against the right ones, and from enough of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.acceptance.gate.judge import Chosen, Outcome, choose, judge, weigh
from draftd.acceptance.gate.metrics import METRICS, Evidence, Lack, Moves, Reading
from draftd.acceptance.gate.spec import Candidate, Comparison, Criterion
from draftd.acceptance.summary import against, select, total_throughput
from draftd.acceptance.ticks import AUTOREGRESSIVE, Arm, Place, Stage, Tick
from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, WorkloadClass
from tests.acceptance import Truth, manifest, request

K4 = Chosen(4, DRAFT_MODEL)
WORKLOADS = {"short_control": WorkloadClass.UNSPECIFIED, "code": WorkloadClass.CODE, "prose": WorkloadClass.PROSE}


def asked(
    *arms: Arm, groups: Iterable[str] = WORKLOADS, truth: Truth = Truth(), seed: int = 0, prompts: int = 4
) -> list[Tick]:
    """Each arm twice on each of the groups' prompts, one after the other."""
    random_, elapsed, ticks = random.Random(seed), 0.0, []
    for repetition in (1, 2):
        for group in groups:
            for prompt in range(prompts):
                for arm in arms:
                    place = Place(Stage.SWEEP, 1, arm.id, repetition, f"{group}-{prompt}", group, WORKLOADS[group])
                    ticks.append(request(random_, truth, arm, place, elapsed))
                    elapsed += ticks[-1].ended + 0.1
    return ticks


def run(ticks: Iterable[Tick] = ()) -> Evidence:
    return Evidence("tonight", {1: manifest()}, tuple(ticks))


def criterion(
    metric: str = "acceptance", comparison: str = ">=", threshold: float = 0.0, **narrowed: object
) -> Criterion:
    return Criterion.model_validate(
        {"name": metric, "metric": metric, "comparison": comparison, "threshold": threshold, **narrowed}
    )


@pytest.fixture(scope="module")
def ticks() -> list[Tick]:
    hot = tuple(replace(arm, temperature=0.8) for arm in (AUTOREGRESSIVE, Arm(4)))
    two = tuple(replace(arm, concurrency=2) for arm in (AUTOREGRESSIVE, Arm(4)))
    return asked(AUTOREGRESSIVE, Arm(2), Arm(4), Arm(4, PROMPT_LOOKUP), *hot, *two)


@pytest.mark.parametrize(
    ("chosen", "narrowed", "arm", "group", "workload"),
    [
        (K4, {}, "k4", None, None),
        (K4, {"block_length": 2}, "k2", None, None),
        (K4, {"group": "code"}, "k4", "code", None),
        (K4, {"workload": "prose"}, "k4", None, WorkloadClass.PROSE),
        (K4, {"temperature": 0.8}, "k4-t0.8", None, None),
        (K4, {"concurrency": 2}, "k4-x2", None, None),
        (Chosen(4, PROMPT_LOOKUP), {}, "k4-prompt_lookup", None, None),
        (Chosen(None, DRAFT_MODEL), {"block_length": 2}, "k2", None, None),
    ],
)
def test_a_ratio_is_of_the_requests_that_are_named_over_the_same_without_drafts(
    ticks: list[Tick],
    chosen: Chosen,
    narrowed: dict[str, object],
    arm: str,
    group: str | None,
    workload: WorkloadClass | None,
) -> None:
    wanted = criterion("decode_tokens_per_second", against="autoregressive", **narrowed)
    found = judge(wanted, chosen, run(ticks), None)
    base = arm.replace("k4", "ar").replace("k2", "ar").replace("-prompt_lookup", "")
    expected = against(select(ticks, group=group, workload=workload), arm, base, "decode_tokens_per_second")
    assert expected is not None
    assert found.arm == arm
    assert found.reading == Reading(expected.estimate, expected.low, expected.high, expected.samples)


def test_block_length_nought_is_autoregressive_decoding_itself(ticks: list[Tick]) -> None:
    found = judge(criterion("decode_tokens_per_second", block_length=0), K4, run(ticks), None)
    assert found.arm == "ar"
    assert found.reading.value == pytest.approx(50, rel=0.02)  # a step takes 20 ms
    assert judge(criterion("acceptance", block_length=0), K4, run(ticks), None).outcome is Outcome.NOT_MEASURED


def test_against_a_baseline_each_prompt_is_held_against_itself(ticks: list[Tick]) -> None:
    """Of a run that is the same but for being 1.25 times as slow the ratio is 1.25, and sure."""
    slower = [replace(t, chunks=tuple(replace(c, at=c.at * 1.25) for c in t.chunks)) for t in ticks]
    wanted = criterion("time_to_first_token", "<=", 1.2, against="baseline", group="code")
    found = judge(wanted, K4, run(slower), run(ticks))
    assert found.reading.value == pytest.approx(1.25)
    assert (found.reading.low, found.reading.high) == (pytest.approx(1.25), pytest.approx(1.25))
    assert found.reading.samples == 8
    assert found.outcome is Outcome.FAILED


def test_a_baseline_that_was_asked_other_prompts_measures_nothing(ticks: list[Tick]) -> None:
    others = [replace(t, place=replace(t.place, prompt=f"other {t.place.prompt}")) for t in ticks]
    found = judge(criterion("time_to_first_token", against="baseline"), K4, run(ticks), run(others))
    assert found.outcome is Outcome.NOT_MEASURED
    assert "in both runs" in found.reason


def test_all_tokens_of_requests_that_run_at_a_time(ticks: list[Tick]) -> None:
    found = judge(criterion("total_tokens_per_second", concurrency=2), K4, run(ticks), None)
    expected = total_throughput(ticks, "k4-x2")
    assert expected is not None
    assert found.reading.value == expected.estimate


def test_what_was_not_swept_is_not_measured(ticks: list[Tick]) -> None:
    for evidence, chosen, narrowed, why in (
        (run(), K4, {}, "no sweep"),
        (run(ticks), Chosen(None, DRAFT_MODEL), {}, "no knee"),
        (run(ticks), Chosen(6, DRAFT_MODEL), {}, "k6"),
        (run(ticks), K4, {"group": "long_context"}, "long_context"),
        (run(t for t in ticks if t.place.arm != "ar"), K4, {"against": "autoregressive"}, "k4 and ar"),
    ):
        found = judge(criterion("decode_tokens_per_second", **narrowed), chosen, evidence, None)
        assert found.outcome is Outcome.NOT_MEASURED
        assert why in found.reason


def test_requests_that_failed_are_no_samples(ticks: list[Tick]) -> None:
    failed = [replace(t, error="INTERNAL") if t.place.group != "code" else t for t in ticks]
    assert judge(criterion(), K4, run(failed), None).reading.samples == 8


def test_the_candidate_is_the_knee() -> None:
    found = choose(Candidate(), run(asked(AUTOREGRESSIVE, *map(Arm, (2, 4)), truth=Truth(alpha=0.95))))
    assert (found.block_length, found.id) == (4, "k4")
    assert found.note.startswith("The knee is at 4")


def test_where_speculation_does_not_pay_the_fastest_that_drafts_is_judged() -> None:
    ticks = asked(AUTOREGRESSIVE, *map(Arm, (2, 4)), truth=Truth(alpha=0.05))
    found = choose(Candidate(), run(ticks))
    assert found.block_length == 2
    assert "does not pay" in found.note
    assert "blocks of 2" in found.note
    wanted = criterion("decode_tokens_per_second", ">=", 1.0, against="autoregressive")
    assert judge(wanted, found, run(ticks), None).outcome is Outcome.FAILED


def test_a_candidate_of_a_set_block_length_needs_no_knee() -> None:
    assert choose(Candidate(block_length=3), run()).id == "k3"
    assert choose(Candidate(), run()).id == ""


def test_by_its_bound_the_worse_end_of_the_interval_has_to_pass() -> None:
    reading = Reading(1.2, 1.1, 1.3, 40)
    for comparison, threshold, by_estimate, by_bound in (
        (">=", 1.15, Outcome.PASSED, Outcome.FAILED),
        (">", 1.05, Outcome.PASSED, Outcome.PASSED),
        ("<=", 1.25, Outcome.PASSED, Outcome.FAILED),
        ("<", 1.35, Outcome.PASSED, Outcome.PASSED),
        ("==", 1.2, Outcome.PASSED, Outcome.FAILED),
    ):
        for by, outcome in (("estimate", by_estimate), ("bound", by_bound)):
            wanted = criterion("acceptance", comparison, threshold, judge=by)
            assert weigh(wanted, reading, METRICS["acceptance"]) == (outcome, ""), (comparison, by)


def test_only_what_a_machine_cannot_say_is_excused() -> None:
    excusing, metric = criterion("soak.throttles", "==", 0, unreadable="excuse"), METRICS["soak.throttles"]
    unreadable = Reading.none("throttles cannot be read", Lack.UNREADABLE)
    assert weigh(excusing, unreadable, metric) == (Outcome.EXCUSED, "throttles cannot be read")
    assert weigh(excusing, Reading.none("the run has no soak"), metric)[0] is Outcome.NOT_MEASURED
    assert weigh(criterion("soak.throttles", "==", 0), unreadable, metric)[0] is Outcome.NOT_MEASURED


def test_what_is_there_and_too_little_to_tell_is_too_few_samples() -> None:
    wanted = criterion("soak.days_to_exhaustion", ">=", 7, min_samples=60, unreadable="excuse")
    found = weigh(wanted, Reading.none("nothing to tell", Lack.TOO_FEW, 5), METRICS["soak.days_to_exhaustion"])
    assert found == (Outcome.TOO_FEW_SAMPLES, "5 of at least 60 readings: nothing to tell")


@pytest.mark.parametrize(
    ("metric", "comparison", "value", "threshold", "outcome"),
    [
        ("soak.errors", "==", 2, 0, Outcome.FAILED),
        ("soak.errors", "<=", 2, 1, Outcome.FAILED),
        ("soak.errors", "<", 2, 2, Outcome.FAILED),
        ("soak.errors", "==", 0, 0, Outcome.TOO_FEW_SAMPLES),
        ("soak.errors", "==", 2, 3, Outcome.TOO_FEW_SAMPLES),
        ("soak.seconds", ">=", 10, 600, Outcome.TOO_FEW_SAMPLES),
        ("soak.headroom", ">", -1, 0, Outcome.FAILED),
        ("soak.headroom", ">=", 1, 2, Outcome.FAILED),
        ("soak.headroom", "<=", 3, 2, Outcome.TOO_FEW_SAMPLES),
        ("soak.acceptance_held", ">=", 0.3, 0.4, Outcome.FAILED),
        ("acceptance", ">=", 0.3, 0.4, Outcome.TOO_FEW_SAMPLES),
    ],
)
def test_what_more_samples_cannot_mend_has_failed_however_few_there_are(
    metric: str, comparison: str, value: float, threshold: float, outcome: Outcome
) -> None:
    wanted = criterion(metric, comparison, threshold, min_samples=30)
    found = weigh(wanted, Reading(value, samples=5, reason="such as this"), METRICS[metric])
    assert found[0] is outcome
    assert ("5 of at least 30" in found[1]) == (outcome is Outcome.TOO_FEW_SAMPLES)
    assert (found[1] == "such as this") == (outcome is Outcome.FAILED)


@settings(deadline=None)
@given(
    value=st.floats(-10, 10),
    threshold=st.floats(-10, 10),
    samples=st.integers(0, 60),
    fewest=st.integers(1, 60),
    comparison=st.sampled_from(Comparison),
    moves=st.sampled_from(Moves),
    further=st.floats(0, 20),
)
def test_nothing_passes_from_too_few_samples_and_nothing_fails_that_more_could_mend(
    value: float,
    threshold: float,
    samples: int,
    fewest: int,
    comparison: Comparison,
    moves: Moves,
    further: float,
) -> None:
    wanted = criterion("acceptance", comparison, threshold, min_samples=fewest)
    metric = replace(METRICS["acceptance"], moves=moves)
    outcome, _ = weigh(wanted, Reading(value, samples=samples), metric)
    holds, enough = comparison.holds(value, threshold), samples >= fewest
    assert outcome in (Outcome.PASSED, Outcome.FAILED, Outcome.TOO_FEW_SAMPLES)
    assert (outcome is Outcome.PASSED) == (holds and enough)
    if outcome is Outcome.FAILED and not enough:
        later = {Moves.UP: value + further, Moves.DOWN: value - further, Moves.BOTH_WAYS: threshold}[moves]
        assert not comparison.holds(later, threshold)


def test_every_metric_of_a_sweep_has_a_reading(ticks: list[Tick]) -> None:
    for name, metric in METRICS.items():
        if metric.stage is Stage.SWEEP:
            assert judge(criterion(name), K4, run(ticks), None).reading.samples > 0, name
