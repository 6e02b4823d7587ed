"""`draftd gate` as a person and a CI system call it: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from draftd_acceptance.gate.spec import shipped_text
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, Stage
from tests.synthetic_run import manifest, synthetic_run
from tests.unit.cli.conftest import Ran, in_process

SPEC = """
name = "ours"
[[criterion]]
name = "speed [decode]"
metric = "decode_tokens_per_second"
against = "autoregressive"
comparison = ">="
threshold = 1.16
min_samples = {samples}
"""

Draftd = Callable[..., Ran]


@pytest.fixture
def draftd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Draftd:
    """No daemon is needed to judge."""
    return lambda *arguments: in_process(arguments, monkeypatch, capsys)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = synthetic_run(
        tmp_path_factory.mktemp("runs") / "tonight",
        stages=(Stage.SWEEP,),
        arms=(AUTOREGRESSIVE, Arm(4)),
        groups=("code", "short_control"),
        repetitions=1,
    )
    return folder.path


def wanting(folder: Path, samples: int = 4, text: str = SPEC) -> str:
    path = folder / "ours.toml"
    path.write_text(text.format(samples=samples), encoding="utf-8")
    return str(path)


def test_gate_command_exits_with_0_and_prints_verdict_last_when_promoted(
    draftd: Draftd, measured: Path, tmp_path: Path
) -> None:
    ran = draftd("gate", "--run", str(measured), "--spec", wanting(tmp_path))
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].split() == ["criterion", "measured", "wanted", "samples", "outcome"]
    assert lines[1].startswith("speed [decode]")
    assert "≥ 1.160 × autoregressive" in lines[1]
    assert lines[1].rstrip().endswith("8  passed")
    assert lines[-1] == "promoted: k4 meets 1 of 1 criteria of 'ours'"


def test_gate_command_exits_with_1_and_names_unproven_criterion_when_not_promoted(
    draftd: Draftd, measured: Path, tmp_path: Path
) -> None:
    ran = draftd("gate", "--run", str(measured), "--spec", wanting(tmp_path, samples=9))
    assert ran.code == 1
    assert "too few samples" in ran.out
    assert "speed [decode]: 8 of at least 9 requests" in ran.out
    assert ran.out.splitlines()[-1].startswith("not promoted: k4 meets 0 of 1 criteria")


def test_gate_command_exits_with_2_and_names_differing_field_when_not_judged(
    draftd: Draftd, measured: Path, tmp_path: Path
) -> None:
    folder = synthetic_run(
        tmp_path / "mixed",
        manifests=(manifest(), replace(manifest(), backend="cpu")),
        stages=(Stage.SWEEP, Stage.QUALITY),
        arms=(AUTOREGRESSIVE, Arm(4)),
        groups=("code",),
        prompts=1,
        repetitions=1,
    )
    ran = draftd("gate", "--run", str(folder.path), "--spec", wanting(tmp_path))
    assert ran.code == 2
    assert ran.out == "not judged: backend is metal in session 1 of mixed, and cpu in session 2\n"
    assert json.loads((folder.path / "gate.json").read_text())["decision"] == "not_judged"


@pytest.mark.parametrize("option", ["--spec", "--run", "--baseline"])
def test_gate_command_exits_with_2_when_spec_run_or_baseline_is_missing(
    draftd: Draftd, measured: Path, tmp_path: Path, option: str
) -> None:
    arguments = {"--run": str(measured), "--spec": wanting(tmp_path)} | {option: str(tmp_path / "none")}
    ran = draftd("gate", *(part for pair in arguments.items() for part in pair))
    assert ran.code == 2
    assert ran.out.startswith("not judged: ")


def test_gate_command_exits_with_2_and_names_line_of_invalid_spec(
    draftd: Draftd, measured: Path, tmp_path: Path
) -> None:
    spec = wanting(tmp_path, text=SPEC.replace("metric", "metrik"))
    ran = draftd("gate", "--run", str(measured), "--spec", spec, "--json", "--junit", str(tmp_path / "gate.xml"))
    assert ran.code == 2
    verdict = json.loads(ran.out)
    assert (verdict["decision"], verdict["exit_code"]) == ("not_judged", 2)
    assert "ours.toml, line 5: criterion 1 (speed [decode]): metrik" in verdict["reasons"][0]
    assert Xml.parse(tmp_path / "gate.xml").getroot().get("errors") == "1"


def test_gate_command_without_run_option_exits_with_2(draftd: Draftd) -> None:
    ran = draftd("gate")
    assert ran.code == 2
    assert "--run" in ran.err


def test_gate_command_prints_same_json_verdict_that_run_folder_stores(
    draftd: Draftd, measured: Path, tmp_path: Path
) -> None:
    ran = draftd("gate", "--run", str(measured), "--spec", wanting(tmp_path), "--json")
    assert ran.out.count("\n") == 1
    verdict = json.loads(ran.out)
    assert verdict == json.loads((measured / "gate.json").read_text())
    (only,) = verdict["criteria"]
    assert only["low"] <= only["value"] <= only["high"]
    assert (only["samples"], only["outcome"], only["arm"]) == (8, "passed", "k4")


def test_gate_command_writes_junit_file_with_failed_criterion(draftd: Draftd, measured: Path, tmp_path: Path) -> None:
    junit = tmp_path / "gate.xml"
    ran = draftd("gate", "--run", str(measured), "--spec", wanting(tmp_path, samples=9), "--junit", str(junit))
    assert ran.code == 1
    failure = Xml.parse(junit).find(".//testcase[@name='speed [decode]']/failure")
    assert failure is not None
    assert failure.get("type") == "too_few_samples"


def test_gate_command_exits_with_2_when_junit_file_cannot_be_written(
    draftd: Draftd, measured: Path, tmp_path: Path
) -> None:
    ran = draftd("gate", "--run", str(measured), "--spec", wanting(tmp_path), "--junit", str(tmp_path / "no" / "x.xml"))
    assert ran.code == 2
    assert "--junit" in ran.err


def test_gate_command_promotes_run_and_warns_when_verdict_cannot_be_saved(
    draftd: Draftd, measured: Path, tmp_path: Path
) -> None:
    stands_in_the_way = measured / "gate.json.new"
    stands_in_the_way.mkdir()
    try:
        ran = draftd("gate", "--run", str(measured), "--spec", wanting(tmp_path))
    finally:
        stands_in_the_way.rmdir()
    assert ran.code == 0
    assert "gate.json was not written" in ran.err


def test_gate_command_replaces_verdict_saved_in_run_folder(draftd: Draftd, measured: Path, tmp_path: Path) -> None:
    draftd("gate", "--run", str(measured), "--spec", wanting(tmp_path))
    draftd("gate", "--run", str(measured), "--spec", wanting(tmp_path, text="name = 4"))
    assert json.loads((measured / "gate.json").read_text())["decision"] == "not_judged"


def test_gate_command_without_spec_option_judges_by_shipped_spec(draftd: Draftd, measured: Path) -> None:
    assert draftd("gate", "--print-spec").out == shipped_text()
    ran = draftd("gate", "--run", str(measured), "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["spec"] == "production candidate"
