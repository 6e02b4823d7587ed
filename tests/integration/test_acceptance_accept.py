"""`draftd accept` as an operator runs it: stopped, gone on with, judged, reported; and it leaves no daemon behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from draftd_acceptance.folder import RunFolder
from draftd_acceptance.ticks import Stage
from tests.scripted_daemon import scripted_daemon
from tests.unit.cli.conftest import Ran, in_process
from tests.wait_until import until

_COMMAND = [sys.executable, "-m", "draftd.cli.main"]
_ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(("DRAFTD_", "OTEL_"))}
_SWEEP = (
    "--groups",
    "short_control",
    "--repeat",
    "1",
    "--blocks",
    "0,4",
    "--temperatures",
    "none",
    "--max-tokens",
    "32",
)


@pytest.fixture
def draftd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    """Runs `draftd …` in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        with monkeypatch.context() as patch:
            return in_process(arguments, patch, capsys)

    return run


@pytest.mark.slow
def test_accept_command_completes_interrupted_sweep_and_writes_verdict_and_report(
    draftd: Callable[..., Ran], tmp_path: Path
) -> None:
    with scripted_daemon(tmp_path, step_seconds=0.002, context_length=16384) as daemon:
        which = ("--target", f"127.0.0.1:{daemon.port}", "--run", "run")
        begun = subprocess.Popen(
            [*_COMMAND, "sweep", *which, *_SWEEP, "--concurrency", "2"],
            cwd=tmp_path,
            env=_ENVIRON,
            stderr=subprocess.PIPE,
        )
        until(lambda: _lines(tmp_path / "run" / "sweep.jsonl") >= 20, 60)
        begun.send_signal(signal.SIGTERM)
        _, said = begun.communicate(timeout=60)
        assert begun.returncode == 130
        assert b"continue with draftd sweep --run run" in said
        measured = (tmp_path / "run" / "sweep.jsonl").read_bytes()

        accepted = draftd("accept", "--run", "run", "--duration", "4", "--json", "--junit", "run.xml")
        assert accepted.code == 1, accepted.err
        verdict = json.loads(accepted.out)

        folder = RunFolder.open(tmp_path / "run")
        assert list(folder.manifests()) == [1, 2]
        kept = (tmp_path / "run" / "sweep.jsonl").read_bytes()
        assert kept.startswith(measured.rsplit(b"\n", 1)[0])  # but for a line that was cut short
        asked = [
            (t.place.arm, t.place.prompt, t.place.repetition) for t in folder.ticks(Stage.SWEEP) if not t.place.warm_up
        ]
        assert len(asked) == len(set(asked)) == (folder.plan(Stage.SWEEP) or {})["requests"]
        outcomes = {one["name"]: one["outcome"] for one in verdict["criteria"]}
        assert outcomes["soak duration"] == "failed"  # four seconds are not ten minutes
        assert outcomes["the checks tell right from wrong"] == "passed"
        assert outcomes["tasks succeed at all"] == "failed"  # a scripted model writes no JSON
        assert Path(tmp_path, verdict["report"]).read_text().startswith("<!doctype html>")
        assert (tmp_path / "run" / "report.md").exists()
        assert "<testsuite" in (tmp_path / "run.xml").read_text()

    # All of it is measured, so the daemon need not be there: the verdict is derived anew, and is the same.
    again = draftd("accept", "--run", "run", "--json")
    assert again.code == 1, again.err
    assert json.loads(again.out)["criteria"] == verdict["criteria"]
    assert (tmp_path / "run" / "sweep.jsonl").read_bytes() == kept


@pytest.mark.slow
def test_interrupted_accept_command_ends_its_daemon(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [*_COMMAND, "accept", "--run", "run"],
        cwd=tmp_path,
        env=_ENVIRON,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as a shell does for what it runs behind
    )
    until(lambda: _lines(tmp_path / "run" / "sweep.jsonl") >= 1, 120)
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) == 2  # the daemon, and the process that renders its chats
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    until(lambda: not any(child.is_running() for child in children), 30)


def test_accept_command_refuses_a_faulty_spec_before_measuring(draftd: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text("name = 3")
    said = draftd("accept", "--spec", "spec.toml", "--run", "run")
    assert said.code == 2
    assert "spec.toml" in said.err
    assert not (tmp_path / "run").exists()


def test_accept_command_judges_nothing_if_the_daemon_is_unreachable(draftd: Callable[..., Ran]) -> None:
    said = draftd("accept", "--target", "127.0.0.1:9", "--run", "run")
    assert said.code == 2
    assert "not judged" in said.err
    assert "127.0.0.1:9" in said.err


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
