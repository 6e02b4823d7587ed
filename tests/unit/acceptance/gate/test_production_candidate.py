"""The shipped criteria: a run that meets them all, and for each one a run that misses it and no other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftd.canaries.checkers import JsonObject
from draftd_acceptance.gate.judge import CriterionOutcome, Decision, GateDecision, judge_run
from draftd_acceptance.gate.spec import Spec, load_spec, parse, shipped_text
from draftd_acceptance.quality import SCHEMAS
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, Stage
from tests.synthetic_run import Truth, synthetic_run

MIB = 1 << 20
PAYS, P95, FIRST, ACCEPTED = (one.name for one in load_spec().criterion[:4])
(
    DURATION, ERRORS, HEADROOM, GROWTH, CRITICAL, SWAP, THROTTLES, HELD, GAP, SUCCEEDS, VALID, SCHEMA_GAP, CHECKERS
) = (one.name for one in load_spec().criterion[4:])  # fmt: skip
ALL = tuple(one.name for one in load_spec().criterion)
OF_THE_SWEEP, OF_THE_SOAK, OF_QUALITY = ALL[:4], ALL[4:12], ALL[12:]
OF_THE_MACHINE = (HEADROOM, GROWTH, CRITICAL, SWAP, THROTTLES)

SMALL: dict[str, Any] = {
    "arms": (AUTOREGRESSIVE, Arm(2), Arm(4)),
    "groups": ("short_control", "code"),
    "prompts": 6,
}


def outcomes(verdict: GateDecision) -> dict[str, CriterionOutcome]:
    return {one.criterion.name: one.outcome for one in verdict.judgements}


def rewritten(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Replaces each line of a JSON Lines file by what `change` returns; None drops the line."""
    lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line is not None))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_run(tmp_path_factory.mktemp("runs") / "good", **SMALL).path


def test_gate_promotes_run_that_meets_all_shipped_criteria(good: Path) -> None:
    verdict = judge_run(good, load_spec())
    assert outcomes(verdict) == dict.fromkeys(ALL, CriterionOutcome.PASSED)
    assert verdict.decision is Decision.PROMOTED
    assert verdict.candidate == "k4"
    assert [note.partition(":")[0] for note in verdict.notes] == ["The knee is at 4"]


def test_gate_verdict_notes_soak_and_quality_run_at_different_block_length(good: Path) -> None:
    verdict = judge_run(good, parse(shipped_text().replace('"knee"', "2"), "ours.toml"))
    assert verdict.notes == (
        "The candidate is k2, but the soak stage measured k4-x4.",
        "The candidate is k2, but the quality stage measured ar, k4.",
    )


# For each criterion, the change that makes a run miss it.
FAULTS: dict[str, dict[str, Any]] = {
    PAYS: {"truth": Truth(alpha=0.995, spread=0.0, draft_seconds=0.0165)},
    P95: {"truth": Truth(alpha=0.8, spread=0.0)},
    FIRST: {"truth": Truth(first_token_factor=1.12)},
    ACCEPTED: {"truth": Truth(alpha=0.72, spread=0.0, draft_seconds=0.0002, verify_slope=-0.04)},
    DURATION: {"soak_seconds": 500.0},
    ERRORS: {"soak_errors": 1},
    HEADROOM: {"headroom": -50 * MIB},
    GROWTH: {"leak": 100_000.0},
    CRITICAL: {"critical_seconds": 70.0},
    SWAP: {"swap_in": 210_000_000},
    THROTTLES: {"throttles": 1},
    HELD: {"soak_alpha": (0.88, 0.88, 0.3, 0.3, 0.88)},
    GAP: {"failing": 1, "failing_drafted": 2},
    SUCCEEDS: {"failing": 24, "failing_drafted": 24},
    SCHEMA_GAP: {"wrong_under_schemas": 1},
}
# Changes that come near to missing a criterion and still meet it.
NEAR: dict[str, dict[str, Any]] = {
    FIRST: {"truth": Truth(first_token_factor=1.05)},
    GROWTH: {"leak": 300.0},
    CRITICAL: {"critical_seconds": 50.0},
    SWAP: {"swap_in": 190_000_000},
    HELD: {"soak_alpha": (0.88, 0.3, 0.88, 0.3, 0.88)},
    GAP: {"failing": 5, "failing_drafted": 5},
}


def changed(good: Path, to: Path, name: str, how: dict[str, Any]) -> Path:
    """Copies the good run, with the stage of the criterion replaced."""
    stage = Stage.SWEEP if name in OF_THE_SWEEP else Stage.SOAK if name in OF_THE_SOAK else Stage.QUALITY
    path = shutil.copytree(good, to / "run")
    other = synthetic_run(to / "other", **SMALL | how, stages=(stage,)).path
    for file in (f"{stage}.json", f"{stage}.jsonl"):
        shutil.copy(other / file, path / file)
    if stage is Stage.SOAK:
        shutil.copy(other / "machine.jsonl", path / "machine.jsonl")
    return path


@pytest.mark.parametrize("name", FAULTS)
def test_gate_fails_only_shipped_criterion_that_run_misses(good: Path, tmp_path: Path, name: str) -> None:
    verdict = judge_run(changed(good, tmp_path, name, FAULTS[name]), load_spec())
    assert outcomes(verdict) == {**dict.fromkeys(ALL, CriterionOutcome.PASSED), name: CriterionOutcome.FAILED}
    assert verdict.decision is Decision.NOT_PROMOTED
    assert [one.criterion.name for one in verdict.unproven] == [name]


@pytest.mark.parametrize("name", NEAR)
def test_gate_promotes_run_just_within_threshold_of_shipped_criterion(good: Path, tmp_path: Path, name: str) -> None:
    verdict = judge_run(changed(good, tmp_path, name, NEAR[name]), load_spec())
    assert outcomes(verdict) == dict.fromkeys(ALL, CriterionOutcome.PASSED)


def test_gate_broken_answer_checker_fails_run_and_leaves_quality_unmeasured(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for broken in ("", "never right"):
        monkeypatch.setattr(JsonObject, "complaint", lambda self, text, broken=broken: broken)
        verdict = judge_run(good, load_spec())
        found = outcomes(verdict)
        assert found.pop(CHECKERS) is CriterionOutcome.FAILED
        assert {found.pop(name) for name in (GAP, SUCCEEDS, VALID, SCHEMA_GAP)} == {CriterionOutcome.NOT_MEASURED}
        assert set(found.values()) == {CriterionOutcome.PASSED}
        assert verdict.decision is Decision.NOT_PROMOTED
        assert "json-person" in verdict.judgements[-1].reason


def test_gate_fails_run_with_answer_that_violates_json_schema(good: Path, tmp_path: Path) -> None:
    verdict = judge_run(changed(good, tmp_path, VALID, {"invalid": 1}), load_spec())
    found = {one.criterion.name: one for one in verdict.judgements}
    assert found[VALID].outcome is CriterionOutcome.FAILED
    assert found[VALID].reason.startswith("tool-set_light (k4): no JSON: '{")
    assert found[VALID].reading.value == pytest.approx(35 / 36)


def test_gate_excuses_schema_criteria_only_when_model_lacks_grammars(good: Path, tmp_path: Path) -> None:
    old = changed(good, tmp_path, VALID, {"schemas": False})
    found = outcomes(judge_run(old, load_spec()))
    assert (found[VALID], found[SCHEMA_GAP]) == (CriterionOutcome.NOT_MEASURED, CriterionOutcome.NOT_MEASURED)
    refused = "INVALID_ARGUMENT: response_format.json_schema: got '…'; allowed: no value: there are no grammars"

    def refusing(tick: dict[str, Any]) -> dict[str, Any]:
        return tick | {"error": refused, "text": None} if tick["place"]["group"] == SCHEMAS else tick

    shutil.copy(good / "quality.jsonl", old / "quality.jsonl")
    rewritten(old / "quality.jsonl", refusing)
    verdict = judge_run(old, load_spec())
    assert outcomes(verdict) == {
        **dict.fromkeys(ALL, CriterionOutcome.PASSED),
        VALID: CriterionOutcome.EXCUSED,
        SCHEMA_GAP: CriterionOutcome.EXCUSED,
    }
    assert {one.reason for one in verdict.judgements if one.outcome is CriterionOutcome.EXCUSED} == {
        "there are no grammars"
    }


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> GateDecision:
    """The verdict on a run that measured everything, with too few samples."""
    path = tmp_path_factory.mktemp("runs") / "short"
    synthetic_run(path, **SMALL | {"prompts": 2, "repetitions": 2, "soak_seconds": 20.0})
    rewritten(path / "quality.jsonl", lambda tick: tick if tick["place"]["prompt"].startswith("json") else None)
    return judge_run(path, load_spec())


@pytest.mark.parametrize("name", [name for name in ALL if name not in (DURATION, CHECKERS)])
def test_gate_does_not_promote_run_with_too_few_samples_for_criterion(short: GateDecision, name: str) -> None:
    (found,) = (one for one in short.judgements if one.criterion.name == name)
    assert found.outcome is CriterionOutcome.TOO_FEW_SAMPLES
    assert 0 < found.reading.samples < found.criterion.min_samples or name == HELD
    assert f"{found.reading.samples} of at least {found.criterion.min_samples}" in found.reason
    assert short.decision is Decision.NOT_PROMOTED


@pytest.mark.parametrize(
    ("stage", "missing"),
    [
        (Stage.SWEEP, OF_THE_SOAK + OF_QUALITY),
        (Stage.SOAK, OF_THE_SWEEP + OF_QUALITY),
        (Stage.QUALITY, OF_THE_SWEEP + OF_THE_SOAK),
    ],
)
def test_gate_criteria_of_missing_stage_are_not_measured(
    good: Path, tmp_path: Path, stage: Stage, missing: tuple[str, ...]
) -> None:
    path = shutil.copytree(good, tmp_path / "run")
    for other in set(Stage) - {stage}:
        (path / f"{other}.jsonl").unlink()
    verdict = judge_run(path, load_spec())
    wanted = {name: CriterionOutcome.NOT_MEASURED if name in missing else CriterionOutcome.PASSED for name in ALL}
    assert outcomes(verdict) == wanted
    assert verdict.decision is Decision.NOT_PROMOTED


@pytest.fixture(scope="module")
def blind(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose machine samples have no readings."""
    path = shutil.copytree(good, tmp_path_factory.mktemp("runs") / "blind")
    kept = ("stage", "session", "arm", "elapsed", "at")
    rewritten(path / "machine.jsonl", lambda sample: {name: sample[name] for name in kept})
    return path


def test_gate_criteria_without_machine_readings_are_not_measured(blind: Path) -> None:
    verdict = judge_run(blind, load_spec())
    wanted = {
        name: CriterionOutcome.NOT_MEASURED if name in OF_THE_MACHINE else CriterionOutcome.PASSED for name in ALL
    }
    assert outcomes(verdict) == wanted
    assert verdict.decision is Decision.NOT_PROMOTED
    assert all("cannot be read on this machine" in one.reason for one in verdict.unproven)


def excusing() -> Spec:
    spec = load_spec()
    return spec.model_copy(
        update={"criterion": tuple(one.model_copy(update={"unreadable": "excuse"}) for one in spec.criterion)}
    )


def test_gate_spec_may_excuse_criteria_whose_machine_readings_are_unreadable(blind: Path) -> None:
    verdict = judge_run(blind, excusing())
    wanted = {name: CriterionOutcome.EXCUSED if name in OF_THE_MACHINE else CriterionOutcome.PASSED for name in ALL}
    assert outcomes(verdict) == wanted
    assert verdict.decision is Decision.PROMOTED


def test_gate_does_not_excuse_soak_that_stored_no_machine_samples(good: Path, tmp_path: Path) -> None:
    path = shutil.copytree(good, tmp_path / "run")
    rewritten(path / "machine.jsonl", lambda sample: None if sample["stage"] == "soak" else sample)
    found = outcomes(judge_run(path, excusing()))
    assert {found[name] for name in OF_THE_MACHINE} == {CriterionOutcome.NOT_MEASURED}
