"""`draftd sweep` from the command line, against a running daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftd_acceptance.folder import RunFolder
from draftd_acceptance.ticks import Stage
from tests.in_process_daemon import Served
from tests.unit.cli.conftest import Ran, in_process

ASKED = ("--groups", "short_control", "--repeat", "1", "--max-tokens", "6", "--cool-down", "0")


@pytest.fixture
def sweep(daemon: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):  # type: ignore[no-untyped-def]
    """Runs `draftd sweep …` in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        with monkeypatch.context() as patch:
            return in_process(("sweep", *arguments), patch, capsys)

    return run


def test_sweep_command_prints_run_and_left_out_arms_and_rerun_adds_no_measurement(
    sweep, daemon: Served, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    ran = sweep(*ASKED, "--target", daemon.target, "--run", "run", "--concurrency", "none", "--temperatures", "none")
    assert ran.code == 0, ran.err
    for arm in ("ar", "k2", "k3", "k4", "k4-prompt_lookup"):
        assert f"\n{arm} " in ran.out
    assert "left out: k6: the daemon drafts 4 tokens a step at most" in ran.out
    assert "run: run" in ran.out
    # The run alone says how to go on, and nothing is left to do.
    before = (tmp_path / "run" / "sweep.jsonl").read_bytes()
    again = sweep("--run", "run", "--json")
    assert again.code == 0, again.err
    said = json.loads(again.out)
    assert said["missing"] == 0
    assert said["arms"]["k4"]["requests"] == 8
    # On a busy machine all tokens of an answer may come at once, and then it has no rate.
    assert 1 <= said["arms"]["k4"]["speedup"]["samples"] <= 8
    assert set(said["left_out"]) == {"k6"}
    assert (tmp_path / "run" / "sweep.jsonl").read_bytes() == before


def test_sweep_command_stores_prompts_from_file_in_run_for_resumption(sweep, daemon: Served, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "mine.jsonl").write_text('{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}\n')
    only = ("--groups", "none", "--file", "mine.jsonl", "--blocks", "0,2", "--base", "2", "--drafters", "draft_model")
    ran = sweep(*only, "--target", daemon.target, "--run", "run", "--repeat", "2", "--temperatures", "none")
    assert ran.code == 0, ran.err
    assert "left out: ar-x2: there are 1 prompts" in ran.out
    (tmp_path / "mine.jsonl").unlink()
    assert sweep("--run", "run").code == 0
    ticks = RunFolder.open(tmp_path / "run").ticks(Stage.SWEEP)
    assert {(tick.place.group, tick.place.prompt) for tick in ticks} == {("mine", "Hello")}
    assert set(RunFolder.open(tmp_path / "run").manifests()[1].prompts) == {"sweep.mine"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--blocks", "0,two"), "--blocks: got '0,two'; allowed: whole numbers, with commas between"),
        (("--blocks", "2,65"), "block_lengths[1]: got 65; allowed: less than or equal to 64"),
        (("--groups", "shrt"), "groups: got 'shrt'; allowed: short_control"),
        (("--groups", "none"), "groups: got ()"),
        (("--repeat", "0"), "repetitions: got 0"),
        (("--file", "absent.jsonl"), "absent.jsonl: No such file"),
    ],
)
def test_sweep_command_names_invalid_argument_and_creates_no_run_folder(  # type: ignore[no-untyped-def]
    sweep, daemon: Served, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    ran = sweep(*arguments, "--target", daemon.target, "--run", "run")
    assert ran.code in (1, 2)
    assert complaint in ran.err
    assert not (tmp_path / "run").exists()
