"""Every metric, read from a run of all stages and compared with the stages' own results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftd_acceptance.folder import RunFolder
from draftd_acceptance.gate.judge import read_metric
from draftd_acceptance.gate.metrics import METRICS, GateEvidence, MetricReading
from draftd_acceptance.gate.spec import Criterion, Operator
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, Stage
from tests.synthetic_run import synthetic_run

STAGES = [name for name, metric in METRICS.items() if metric.stage is not Stage.SWEEP]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return synthetic_run(
        tmp_path_factory.mktemp("runs") / "run",
        arms=(AUTOREGRESSIVE, Arm(4)),
        groups=("code",),
        prompts=2,
        soak_seconds=300.0,
        leak=200_000.0,
        swap_in=1_000_000,
        critical_seconds=10.0,
        throttles=3,
        soak_errors=2,
        failing=2,
        failing_drafted=3,
    )


@pytest.fixture(scope="module")
def run(folder: RunFolder) -> GateEvidence:
    return GateEvidence.read(folder)


def read(name: str, run: GateEvidence, baseline: GateEvidence | None = None) -> MetricReading:
    wanted = Criterion(name=name, metric=name, comparison=Operator.AT_LEAST, threshold=0.0)
    return read_metric(wanted, Arm(4), run, baseline)


def test_gate_soak_metrics_equal_soak_result_fields(run: GateEvidence) -> None:
    soak = run.soak
    assert soak is not None
    assert soak.resident is not None
    assert soak.mlx is not None
    wanted = {
        "soak.seconds": soak.seconds,
        "soak.requests": soak.requests,
        "soak.errors": 2,
        "soak.tokens_per_second": soak.tokens_per_second,
        "soak.peak_resident": soak.peak_resident,
        "soak.headroom": soak.least_headroom,
        "soak.critical_seconds": soak.longest_critical,
        "soak.swap_in": 1_000_000,
        "soak.throttles": 3,
        "soak.resident_growth": soak.resident.slope.estimate,
        "soak.mlx_growth": soak.mlx.slope.estimate,
        "soak.days_to_exhaustion": soak.days_to_exhaustion,
        "soak.acceptance_held": soak.sustained_acceptance(),
    }
    assert {name: read(name, run).value for name in STAGES if name.startswith("soak.")} == wanted
    growth = read("soak.resident_growth", run)
    assert (growth.low, growth.high) == (soak.resident.slope.low, soak.resident.slope.high)


def test_gate_quality_metrics_equal_rates_of_quality_stage(run: GateEvidence) -> None:
    wanted = {
        "quality.success_autoregressive": 22 / 24,
        "quality.success_speculative": 21 / 24,
        "quality.difference": -1 / 24,
        "quality.gap": 1 / 24,
        "quality.identical": 1.0,
        "quality.schema_valid": 1.0,
        "quality.schema_difference": 0.0,
        "quality.schema_gap": 0.0,
        "quality.errors": 0,
        "quality.checkers_sound": 1.0,
    }
    found = {name: read(name, run).value for name in STAGES if name.startswith("quality.")}
    assert found == pytest.approx(wanted)


def test_each_gate_metric_counts_samples_in_its_declared_unit_such_as_requests_or_windows(run: GateEvidence) -> None:
    soak, quality = run.soak, run.quality
    assert soak is not None
    assert quality is not None
    wanted = {
        "sessions": 1,
        "requests": soak.requests,
        "readings": soak.readings["at"],
        "windows": len(soak.judged_windows),
        "answers": 36,
        "prompts": 24,
    }
    for name in STAGES:
        if name != "quality.errors":
            samples = (
                18 if name in ("quality.schema_difference", "quality.schema_gap") else wanted[METRICS[name].counted]
            )
            assert read(name, run).samples == samples, name
    assert read("quality.errors", run).samples == quality.requests == 48 + 36


def test_gate_machine_metric_sample_count_excludes_failed_readings(run: GateEvidence) -> None:
    assert run.soak is not None
    holed = replace(run, soak=replace(run.soak, readings={**run.soak.readings, "headroom": 0, "swap_in": 100}))
    assert read("soak.headroom", holed).samples == 0
    assert read("soak.swap_in", holed).samples == 100


def test_gate_metric_ratio_of_run_to_itself_is_one(run: GateEvidence) -> None:
    for name, metric in METRICS.items():
        if not metric.divisible:
            continue
        found = read(name, run, run)
        if not read(name, run).value:
            assert found == MetricReading.none("it is 0 in the baseline")
        else:
            assert found.value == pytest.approx(1.0), name
            assert found.samples > 0, name


def test_gate_metric_ratio_is_not_measured_when_either_run_lacks_soak(run: GateEvidence) -> None:
    bare = replace(run, soak=None)
    assert read("soak.peak_resident", run, bare) == MetricReading.none("the baseline has no soak")
    assert read("soak.peak_resident", bare, run) == MetricReading.none("the run has no soak")


def test_gate_metric_distinguishes_unreadable_machine_value_from_too_short_soak(
    tmp_path: Path, run: GateEvidence
) -> None:
    short = synthetic_run(tmp_path / "short", stages=(Stage.SOAK,), soak_seconds=4.0, groups=("code",))
    few = "4 in 3 s after the warm-up, at least 60 in 60 s"
    for name in ("soak.days_to_exhaustion", "soak.resident_growth", "soak.mlx_growth"):
        assert read(name, GateEvidence.read(short)) == MetricReading.none(few, "too_few", 5)
    assert read("soak.acceptance_held", GateEvidence.read(short)).lack == "too_few"
    assert run.soak is not None
    blind = replace(run, soak=replace(run.soak, throttles=None, readings={**run.soak.readings, "throttles": 0}))
    assert read("soak.throttles", blind).lack == "unreadable"
