"""From a run to its verdict: each criterion, and whether it can be judged at all."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, WorkloadClass
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.gate.judge import CriterionOutcome, Decision, GateDecision, choose, judge, judge_run, weigh
from draftd_acceptance.gate.metrics import METRICS, GateEvidence, MetricReading, Moves
from draftd_acceptance.gate.spec import Criterion, Operator, PromotionCandidate, Spec, parse
from draftd_acceptance.manifest import Manifest
from draftd_acceptance.summary import against, select, total_throughput
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, RunPlace, Stage, Tick
from tests.synthetic_run import Truth, manifest, request, synthetic_run

K4 = PromotionCandidate(block_length=4)
WORKLOADS = {"short_control": WorkloadClass.UNSPECIFIED, "code": WorkloadClass.CODE, "prose": WorkloadClass.PROSE}


def asked(
    *arms: Arm, groups: Iterable[str] = WORKLOADS, truth: Truth = Truth(), seed: int = 0, prompts: int = 4
) -> list[Tick]:
    """Ticks of each arm, twice on each of the groups' prompts, one after the other."""
    random_, elapsed, ticks = random.Random(seed), 0.0, []
    for repetition in (1, 2):
        for group in groups:
            for prompt in range(prompts):
                for arm in arms:
                    place = RunPlace(Stage.SWEEP, 1, arm.id, repetition, f"{group}-{prompt}", group, WORKLOADS[group])
                    ticks.append(request(random_, truth, arm, place, elapsed))
                    elapsed += ticks[-1].ended + 0.1
    return ticks


def run(ticks: Iterable[Tick] = ()) -> GateEvidence:
    return GateEvidence("tonight", {1: manifest()}, tuple(ticks))


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
        (PromotionCandidate(block_length=4, drafter=PROMPT_LOOKUP), {}, "k4-prompt_lookup", None, None),
        (PromotionCandidate(), {"block_length": 2}, "k2", None, None),
    ],
)
def test_gate_ratio_divides_drafting_arm_by_autoregressive_arm_with_equal_other_settings(
    ticks: list[Tick],
    chosen: PromotionCandidate,
    narrowed: dict[str, object],
    arm: str,
    group: str | None,
    workload: WorkloadClass | None,
) -> None:
    wanted = criterion("decode_tokens_per_second", against="autoregressive", **narrowed)
    found = judge(wanted, chosen, run(ticks), None)
    base = arm.replace("k4", "ar").replace("k2", "ar").replace("-prompt_lookup", "")
    alike = [one for one in select(ticks, group=group) if workload in (None, one.place.workload)]
    expected = against(alike, arm, base, "decode_tokens_per_second")
    assert expected is not None
    assert found.arm == arm
    assert found.reading == MetricReading(expected.estimate, expected.low, expected.high, expected.samples)


def test_gate_criterion_with_block_length_0_reads_autoregressive_requests(ticks: list[Tick]) -> None:
    found = judge(criterion("decode_tokens_per_second", block_length=0), K4, run(ticks), None)
    assert found.arm == "ar"
    assert found.reading.value == pytest.approx(50, rel=0.02)  # a step takes 20 ms
    assert judge(criterion("acceptance", block_length=0), K4, run(ticks), None).outcome is CriterionOutcome.NOT_MEASURED


def test_gate_ratio_to_baseline_run_pairs_each_prompt_with_itself(ticks: list[Tick]) -> None:
    """A run that is 1.25 times as slow as the baseline has a ratio of 1.25 with a tight interval."""
    slower = [replace(t, chunks=tuple(replace(c, at=c.at * 1.25) for c in t.chunks)) for t in ticks]
    wanted = criterion("time_to_first_token", "<=", 1.2, against="baseline", group="code")
    found = judge(wanted, K4, run(slower), run(ticks))
    assert found.reading.value == pytest.approx(1.25)
    assert (found.reading.low, found.reading.high) == (pytest.approx(1.25), pytest.approx(1.25))
    assert found.reading.samples == 8
    assert found.outcome is CriterionOutcome.FAILED


def test_gate_ratio_is_not_measured_when_baseline_run_has_different_prompts(ticks: list[Tick]) -> None:
    others = [replace(t, place=replace(t.place, prompt=f"other {t.place.prompt}")) for t in ticks]
    found = judge(criterion("time_to_first_token", against="baseline"), K4, run(ticks), run(others))
    assert found.outcome is CriterionOutcome.NOT_MEASURED
    assert "in both runs" in found.reason


def test_gate_total_tokens_criterion_reads_throughput_of_concurrent_requests(ticks: list[Tick]) -> None:
    found = judge(criterion("total_tokens_per_second", concurrency=2), K4, run(ticks), None)
    expected = total_throughput(ticks, "k4-x2")
    assert expected is not None
    assert found.reading.value == expected.estimate


def test_gate_criterion_is_not_measured_when_sweep_lacks_its_requests(ticks: list[Tick]) -> None:
    for evidence, chosen, narrowed, why in (
        (run(), K4, {}, "no sweep"),
        (run(ticks), PromotionCandidate(), {}, "no knee"),
        (run(ticks), PromotionCandidate(block_length=6), {}, "k6"),
        (run(ticks), K4, {"group": "long_context"}, "long_context"),
        (run(t for t in ticks if t.place.arm != "ar"), K4, {"against": "autoregressive"}, "k4 and ar"),
    ):
        found = judge(criterion("decode_tokens_per_second", **narrowed), chosen, evidence, None)
        assert found.outcome is CriterionOutcome.NOT_MEASURED
        assert why in found.reason


def test_gate_criterion_sample_count_excludes_failed_requests(ticks: list[Tick]) -> None:
    failed = [replace(t, error="INTERNAL") if t.place.group != "code" else t for t in ticks]
    assert judge(criterion(), K4, run(failed), None).reading.samples == 8


def test_gate_candidate_defaults_to_knee_block_length_of_sweep() -> None:
    found, note = choose(PromotionCandidate(), run(asked(AUTOREGRESSIVE, *map(Arm, (2, 4)), truth=Truth(alpha=0.95))))
    assert (found.block_length, found.id) == (4, "k4")
    assert note.startswith("The knee is at 4")


def test_gate_candidate_takes_swept_drafter_unless_spec_names_drafter() -> None:
    lookup = [Arm(length, PROMPT_LOOKUP) for length in (2, 4)]
    ticks = asked(AUTOREGRESSIVE, *lookup, truth=Truth(alpha=0.95))
    assert choose(PromotionCandidate(), run(ticks))[0].id == "k2-prompt_lookup"
    named = PromotionCandidate(drafter=DRAFT_MODEL)
    assert choose(named, run(ticks)) == (named, "")


def test_gate_judges_fastest_drafting_block_length_when_speculation_does_not_pay() -> None:
    ticks = asked(AUTOREGRESSIVE, *map(Arm, (2, 4)), truth=Truth(alpha=0.05))
    found, note = choose(PromotionCandidate(), run(ticks))
    assert found.block_length == 2
    assert "does not pay" in note
    assert "blocks of 2" in note
    wanted = criterion("decode_tokens_per_second", ">=", 1.0, against="autoregressive")
    assert judge(wanted, found, run(ticks), None).outcome is CriterionOutcome.FAILED


def test_gate_candidate_with_set_block_length_needs_no_sweep() -> None:
    assert choose(PromotionCandidate(block_length=3), run())[0].id == "k3"
    assert choose(PromotionCandidate(), run())[0].id == ""


def test_gate_criterion_judged_by_bound_compares_worse_end_of_interval() -> None:
    reading = MetricReading(1.2, 1.1, 1.3, 40)
    for comparison, threshold, by_estimate, by_bound in (
        (">=", 1.15, CriterionOutcome.PASSED, CriterionOutcome.FAILED),
        (">", 1.05, CriterionOutcome.PASSED, CriterionOutcome.PASSED),
        ("<=", 1.25, CriterionOutcome.PASSED, CriterionOutcome.FAILED),
        ("<", 1.35, CriterionOutcome.PASSED, CriterionOutcome.PASSED),
        ("==", 1.2, CriterionOutcome.PASSED, CriterionOutcome.FAILED),
    ):
        for by, outcome in (("estimate", by_estimate), ("bound", by_bound)):
            wanted = criterion("acceptance", comparison, threshold, judge=by)
            assert weigh(wanted, reading, METRICS["acceptance"]) == (outcome, ""), (comparison, by)


def test_gate_excuses_unreadable_metric_but_not_missing_stage() -> None:
    excusing, metric = criterion("soak.throttles", "==", 0, unreadable="excuse"), METRICS["soak.throttles"]
    unreadable = MetricReading.none("throttles cannot be read", "unreadable")
    assert weigh(excusing, unreadable, metric) == (CriterionOutcome.EXCUSED, "throttles cannot be read")
    assert weigh(excusing, MetricReading.none("the run has no soak"), metric)[0] is CriterionOutcome.NOT_MEASURED
    assert weigh(criterion("soak.throttles", "==", 0), unreadable, metric)[0] is CriterionOutcome.NOT_MEASURED


def test_gate_judges_metric_with_too_few_readings_as_too_few_samples() -> None:
    wanted = criterion("soak.days_to_exhaustion", ">=", 7, min_samples=60, unreadable="excuse")
    found = weigh(wanted, MetricReading.none("nothing to tell", "too_few", 5), METRICS["soak.days_to_exhaustion"])
    assert found == (CriterionOutcome.TOO_FEW_SAMPLES, "5 of at least 60 readings: nothing to tell")
    found = weigh(wanted, MetricReading.none("330 in 32 s", "too_few", 440), METRICS["soak.days_to_exhaustion"])
    assert found == (CriterionOutcome.TOO_FEW_SAMPLES, "330 in 32 s"), "440 readings are not fewer than 60"


@pytest.mark.parametrize(
    ("metric", "comparison", "value", "threshold", "outcome"),
    [
        ("soak.errors", "==", 2, 0, CriterionOutcome.FAILED),
        ("soak.errors", "<=", 2, 1, CriterionOutcome.FAILED),
        ("soak.errors", "<", 2, 2, CriterionOutcome.FAILED),
        ("soak.errors", "==", 0, 0, CriterionOutcome.TOO_FEW_SAMPLES),
        ("soak.errors", "==", 2, 3, CriterionOutcome.TOO_FEW_SAMPLES),
        ("soak.seconds", ">=", 10, 600, CriterionOutcome.TOO_FEW_SAMPLES),
        ("soak.headroom", ">", -1, 0, CriterionOutcome.FAILED),
        ("soak.headroom", ">=", 1, 2, CriterionOutcome.FAILED),
        ("soak.headroom", "<=", 3, 2, CriterionOutcome.TOO_FEW_SAMPLES),
        ("soak.acceptance_held", ">=", 0.3, 0.4, CriterionOutcome.FAILED),
        ("acceptance", ">=", 0.3, 0.4, CriterionOutcome.TOO_FEW_SAMPLES),
    ],
)
def test_gate_criterion_that_more_samples_cannot_rescue_fails_at_once(
    metric: str, comparison: str, value: float, threshold: float, outcome: CriterionOutcome
) -> None:
    wanted = criterion(metric, comparison, threshold, min_samples=30)
    found = weigh(wanted, MetricReading(value, samples=5, reason="such as this"), METRICS[metric])
    assert found[0] is outcome
    assert ("5 of at least 30" in found[1]) == (outcome is CriterionOutcome.TOO_FEW_SAMPLES)
    assert (found[1] == "such as this") == (outcome is CriterionOutcome.FAILED)


@settings(deadline=None)
@given(
    value=st.floats(-10, 10),
    threshold=st.floats(-10, 10),
    samples=st.integers(0, 60),
    fewest=st.integers(1, 60),
    comparison=st.sampled_from(Operator),
    moves=st.sampled_from(get_args(Moves)),
    further=st.floats(0, 20),
)
def test_gate_criterion_below_min_samples_never_passes_nor_fails_prematurely(
    value: float,
    threshold: float,
    samples: int,
    fewest: int,
    comparison: Operator,
    moves: Moves,
    further: float,
) -> None:
    wanted = criterion("acceptance", comparison, threshold, min_samples=fewest)
    metric = replace(METRICS["acceptance"], moves=moves)
    outcome, _ = weigh(wanted, MetricReading(value, samples=samples), metric)
    holds, enough = comparison.holds(value, threshold), samples >= fewest
    assert outcome in (CriterionOutcome.PASSED, CriterionOutcome.FAILED, CriterionOutcome.TOO_FEW_SAMPLES)
    assert (outcome is CriterionOutcome.PASSED) == (holds and enough)
    if outcome is CriterionOutcome.FAILED and not enough:
        later = {"up": value + further, "down": value - further, "both ways": threshold}[moves]
        assert not comparison.holds(later, threshold)


def test_every_sweep_metric_of_gate_yields_samples_from_complete_sweep(ticks: list[Tick]) -> None:
    for name, metric in METRICS.items():
        if metric.stage is Stage.SWEEP:
            assert judge(criterion(name), K4, run(ticks), None).reading.samples > 0, name


SPEC = """
name = "ours"
[candidate]
block_length = 4
[[criterion]]
name = "acceptance"
metric = "acceptance"
comparison = ">="
threshold = 0.1
"""
AGAINST = SPEC + 'against = "baseline"\n'


def spec(text: str = SPEC) -> Spec:
    return parse(text, "ours.toml")


def small(path: Path, *manifests: Manifest, stage: Stage = Stage.SWEEP) -> Path:
    """A run of a few requests, each of the manifests' sessions with some of them."""
    folder = synthetic_run(
        path,
        manifests=manifests,
        stages=(stage,),
        arms=(AUTOREGRESSIVE, Arm(4)),
        groups=("code",),
        prompts=1,
        repetitions=1,
        tokens=8,
    )
    first = folder.ticks(stage)[-1]
    for number in range(2, len(manifests) + 1):
        folder.keep_tick(replace(first, place=replace(first.place, session=number)))
    return path


def with_draft(sha256: str, **changes: object) -> Manifest:
    made = manifest()
    draft = made.models["draft"]
    files = tuple(replace(file, sha256=sha256) if file.kind == "weights" else file for file in draft.files)
    return replace(made, models={**made.models, "draft": replace(draft, files=files, **changes)})  # type: ignore[arg-type]


def refused(verdict: GateDecision) -> str:
    assert verdict.decision is Decision.NOT_JUDGED
    assert verdict.judgements == ()
    return "\n".join(verdict.reasons)


def test_gate_promotes_run_whose_sessions_differ_only_in_time_and_load_seconds(tmp_path: Path) -> None:
    path = small(tmp_path / "run", manifest(), manifest(created="later", load_seconds=9.0))
    verdict = judge_run(path, spec())
    assert (verdict.decision, verdict.run, verdict.candidate) == (Decision.PROMOTED, "run", "k4")


@pytest.mark.parametrize(
    ("other", "field", "left", "right"),
    [
        (with_draft("aa" * 32), "models.draft.files.model.safetensors.sha256", "5b" * 32, "aa" * 32),
        (manifest(backend="cpu"), "backend", "metal", "cpu"),
        (manifest(low_power=True), "low_power", "false", "true"),
        (manifest(settings={"engine.max_draft_tokens": "6"}), "settings.engine.max_concurrency", "4", "absent"),
        (manifest(prompts={"code": "ff" * 32}), "prompts.code", "04" * 32, "ff" * 32),
    ],
)
def test_gate_refuses_run_whose_sessions_differ_in_model_backend_or_settings(
    tmp_path: Path, other: Manifest, field: str, left: str, right: str
) -> None:
    said = refused(judge_run(small(tmp_path / "run", manifest(), other), spec()))
    assert f"{field} is {left} in session 1 of run, and {right} in session 2" in said


def test_gate_refusal_names_difference_between_second_and_third_session(tmp_path: Path) -> None:
    sessions = [manifest(prompts={}), manifest(prompts={"own": "aa"}), manifest(prompts={"own": "bb"})]
    said = refused(judge_run(small(tmp_path / "run", *sessions), spec()))
    assert said == "prompts.own is aa in session 2 of run, and bb in session 3"


def test_gate_ignores_manifest_of_session_without_measurements(tmp_path: Path) -> None:
    path = small(tmp_path / "run", manifest())
    RunFolder.open(path).begin_session(manifest(backend="cpu"))
    assert judge_run(path, spec()).decision is Decision.PROMOTED


def test_gate_compares_manifest_of_session_that_holds_only_machine_sample(tmp_path: Path) -> None:
    path = small(tmp_path / "run", manifest())
    folder = RunFolder.open(path)
    folder.begin_session(manifest(backend="cpu"))
    folder.keep_sample(replace(folder.samples()[0], session=2))
    assert "backend is metal in session 1" in refused(judge_run(path, spec()))


def test_gate_refuses_run_whose_model_files_changed_since_load(tmp_path: Path) -> None:
    said = refused(judge_run(small(tmp_path / "run", with_draft("5b" * 32, changed_since_load=True)), spec()))
    assert "models.draft.changed_since_load is true in session 1 of run" in said


def test_gate_refuses_run_with_measurements_but_no_session_manifest(tmp_path: Path) -> None:
    path = small(tmp_path / "run", manifest(), manifest())
    (path / "manifests" / "0002.json").unlink()
    said = refused(judge_run(path, spec()))
    assert "run/manifests/0002.json: got 'no file'" in said
    assert "the manifest of session 2, which has measurements" in said


def test_gate_refuses_run_without_measurements(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run").begin_session(manifest())
    assert refused(judge_run(tmp_path / "run", spec())) == "nothing was measured in run"


def test_gate_refuses_missing_or_malformed_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for path in (tmp_path / "run", tmp_path / "none"):
        assert "run.json" in refused(judge_run(path, spec()))
    (tmp_path / "run" / "run.json").write_text("{")
    assert "run.json" in refused(judge_run(tmp_path / "run", spec()))


def break_line(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:1], '{"place": 4}\n', *lines[2:]]))


def break_file(path: Path) -> None:
    path.write_text("{")


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("sweep.jsonl", break_line),
        ("machine.jsonl", break_line),
        ("manifests/0001.json", break_file),
        ("sweep.json", break_file),
    ],
)
def test_gate_refuses_run_with_corrupt_file_and_names_file(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    path = small(tmp_path / "run", manifest())
    harm(path / name)
    said = refused(judge_run(path, spec()))
    assert name in said
    assert "line 2" in said or harm is break_file


def test_gate_refuses_baseline_criterion_when_no_baseline_is_given(tmp_path: Path) -> None:
    said = refused(judge_run(small(tmp_path / "run", manifest()), spec(AGAINST)))
    assert said == "'acceptance' needs a baseline, and none is given"


def test_gate_refuses_baseline_run_made_with_different_draft_model(tmp_path: Path) -> None:
    run, other = small(tmp_path / "run", manifest()), small(tmp_path / "other", with_draft("aa" * 32))
    verdict = judge_run(run, spec(AGAINST), baseline=other)
    field = "models.draft.files.model.safetensors.sha256"
    assert refused(verdict) == f"{field} is {'5b' * 32} in this run, and {'aa' * 32} in the baseline other"
    assert verdict.baseline == "other"


@pytest.mark.parametrize(
    ("may_differ", "judged"),
    [
        ("models.draft", True),
        ("models.draft.files.model.safetensors.sha256", True),
        ("models", True),
        ("models.dra", False),
        ("models.target", False),
        ("backend", False),
    ],
)
def test_gate_baseline_may_differ_only_in_allowed_manifest_fields(
    tmp_path: Path, may_differ: str, judged: bool
) -> None:
    run, other = small(tmp_path / "run", manifest()), small(tmp_path / "other", with_draft("aa" * 32))
    verdict = judge_run(run, spec(AGAINST), baseline=other, may_differ=[may_differ])
    assert (verdict.decision is not Decision.NOT_JUDGED) == judged
    if judged:
        assert verdict.notes == (
            f"allowed: models.draft.files.model.safetensors.sha256 is {'5b' * 32} in this run, "
            f"and {'aa' * 32} in the baseline other",
        )


def test_gate_allowed_differences_do_not_apply_between_sessions_of_one_run(tmp_path: Path) -> None:
    mixed = small(tmp_path / "mixed", manifest(), with_draft("aa" * 32))
    good = small(tmp_path / "good", manifest())
    for run, baseline in ((mixed, good), (good, mixed)):
        verdict = judge_run(run, spec(AGAINST), baseline=baseline, may_differ=["models"])
        assert "in session 1 of mixed" in refused(verdict)


def test_gate_refuses_unreadable_baseline_run(tmp_path: Path) -> None:
    run = small(tmp_path / "run", manifest())
    assert refused(judge_run(run, spec(AGAINST), baseline=tmp_path / "other")).startswith(
        f"the baseline: {tmp_path / 'other'}: "
    )


def test_gate_verdict_notes_number_of_requests_missing_from_sweep(tmp_path: Path) -> None:
    path = small(tmp_path / "run", manifest())
    plan = json.loads((path / "sweep.json").read_text())
    (path / "sweep.json").write_text(json.dumps(plan | {"requests": 9}))
    assert judge_run(path, spec()).notes == ("The sweep is not complete: 7 requests are still to be measured.",)
