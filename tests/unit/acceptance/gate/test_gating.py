"""Before anything is judged: is it one thing that was measured, and the same that it is held against?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.gate.judge import Decision, Verdict, judge_run
from draftd.acceptance.gate.spec import Spec, parse
from draftd.acceptance.manifest import Manifest
from draftd.acceptance.ticks import AUTOREGRESSIVE, Arm, Stage
from tests.acceptance import manifest, synthetic_run

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


def refused(verdict: Verdict) -> str:
    assert verdict.decision is Decision.NOT_JUDGED
    assert verdict.judgements == ()
    return "\n".join(verdict.reasons)


def test_a_run_of_one_thing_is_judged(tmp_path: Path) -> None:
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
def test_sessions_of_different_things_are_not_judged(
    tmp_path: Path, other: Manifest, field: str, left: str, right: str
) -> None:
    said = refused(judge_run(small(tmp_path / "run", manifest(), other), spec()))
    assert f"{field} is {left} in session 1 of run, and {right} in session 2" in said


def test_what_two_later_sessions_differ_in_is_seen_though_the_first_one_lacks_it(tmp_path: Path) -> None:
    sessions = [manifest(prompts={}), manifest(prompts={"own": "aa"}), manifest(prompts={"own": "bb"})]
    said = refused(judge_run(small(tmp_path / "run", *sessions), spec()))
    assert said == "prompts.own is aa in session 2 of run, and bb in session 3"


def test_a_session_that_measured_nothing_is_nothing_to_differ_from(tmp_path: Path) -> None:
    path = small(tmp_path / "run", manifest())
    RunFolder.open(path).begin_session(manifest(backend="cpu"))
    assert judge_run(path, spec()).decision is Decision.PROMOTED


def test_what_only_a_sample_shows_of_a_session_counts(tmp_path: Path) -> None:
    path = small(tmp_path / "run", manifest())
    folder = RunFolder.open(path)
    folder.begin_session(manifest(backend="cpu"))
    folder.keep_sample(replace(folder.samples()[0], session=2))
    assert "backend is metal in session 1" in refused(judge_run(path, spec()))


def test_models_that_changed_under_the_daemon_are_not_judged(tmp_path: Path) -> None:
    said = refused(judge_run(small(tmp_path / "run", with_draft("5b" * 32, changed_since_load=True)), spec()))
    assert "models.draft.changed_since_load is true in session 1 of run" in said


def test_measurements_without_a_manifest_are_not_judged(tmp_path: Path) -> None:
    path = small(tmp_path / "run", manifest(), manifest())
    (path / "manifests" / "0002.json").unlink()
    assert "session 2 of run measured something, and manifests/0002.json is not there" in refused(
        judge_run(path, spec())
    )


def test_an_empty_run_is_not_judged(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run").begin_session(manifest())
    assert refused(judge_run(tmp_path / "run", spec())) == "nothing was measured in run"


def test_where_there_is_no_run_nothing_is_judged(tmp_path: Path) -> None:
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
def test_what_cannot_be_read_is_not_judged_and_named(tmp_path: Path, name: str, harm: Callable[[Path], None]) -> None:
    path = small(tmp_path / "run", manifest())
    harm(path / name)
    said = refused(judge_run(path, spec()))
    assert name in said
    assert "line 2" in said or harm is break_file


def test_a_criterion_against_a_baseline_needs_one(tmp_path: Path) -> None:
    said = refused(judge_run(small(tmp_path / "run", manifest()), spec(AGAINST)))
    assert said == "'acceptance' is against a baseline, and none is given"


def test_a_baseline_of_another_thing_is_not_judged_against(tmp_path: Path) -> None:
    run, other = small(tmp_path / "run", manifest()), small(tmp_path / "other", with_draft("aa" * 32))
    verdict = judge_run(run, spec(AGAINST), baseline=other)
    field = "models.draft.files.model.safetensors.sha256"
    assert refused(verdict) == f"{field} is {'5b' * 32}, and in the baseline (other) {'aa' * 32}"
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
def test_what_may_differ_is_said_field_by_field(tmp_path: Path, may_differ: str, judged: bool) -> None:
    run, other = small(tmp_path / "run", manifest()), small(tmp_path / "other", with_draft("aa" * 32))
    verdict = judge_run(run, spec(AGAINST), baseline=other, may_differ=[may_differ])
    assert (verdict.decision is not Decision.NOT_JUDGED) == judged
    if judged:
        assert verdict.notes == (
            f"allowed: models.draft.files.model.safetensors.sha256 is {'5b' * 32}, "
            f"and in the baseline (other) {'aa' * 32}",
        )


def test_within_one_run_nothing_may_differ(tmp_path: Path) -> None:
    mixed = small(tmp_path / "mixed", manifest(), with_draft("aa" * 32))
    good = small(tmp_path / "good", manifest())
    for run, baseline in ((mixed, good), (good, mixed)):
        verdict = judge_run(run, spec(AGAINST), baseline=baseline, may_differ=["models"])
        assert "in session 1 of mixed" in refused(verdict)


def test_a_baseline_that_cannot_be_read_is_not_judged_against(tmp_path: Path) -> None:
    run = small(tmp_path / "run", manifest())
    assert refused(judge_run(run, spec(AGAINST), baseline=tmp_path / "other")).startswith(
        f"the baseline: {tmp_path / 'other'}: "
    )


def test_a_sweep_that_is_not_complete_is_said_to_be(tmp_path: Path) -> None:
    path = small(tmp_path / "run", manifest())
    plan = json.loads((path / "sweep.json").read_text())
    (path / "sweep.json").write_text(json.dumps(plan | {"requests": 9}))
    assert judge_run(path, spec()).notes == ("The sweep is not complete: 7 requests are still to be measured.",)
