"""Choosing the daemon to measure and the run to resume, and showing the time that remains."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from pathlib import Path

import pytest

from draftd.cli.options import DaemonOptions
from draftd.client.client import DraftdClient
from draftd.client.prompts import Prompt, from_texts
from draftd.errors import ConfigError
from draftd_acceptance.commands import runs
from draftd_acceptance.commands.runs import DaemonChoice, begin, measured_client, open_run, progress, time_left
from draftd_acceptance.folder import RunError, RunFolder
from draftd_acceptance.session import Advance
from draftd_acceptance.ticks import Stage
from tests.in_process_daemon import serving
from tests.scripted import scripted_models

PAIR = DaemonChoice(model="models/big", draft_model="models/small", assignments=["engine.max_batch=2"])


def test_resumed_run_reuses_daemon_options_and_never_stores_token(tmp_path: Path) -> None:
    open_run(tmp_path / "run", dataclasses.replace(PAIR, token="secret"))
    folder, which = open_run(tmp_path / "run", DaemonChoice(token="secret"))
    assert which == dataclasses.replace(PAIR, token="secret")
    assert "secret" not in (folder.path / "run.json").read_text() + repr(which) + repr(DaemonOptions(token="secret"))


def test_resumed_run_accepts_different_daemon_address(tmp_path: Path) -> None:
    open_run(tmp_path / "run", PAIR)
    assert open_run(tmp_path / "run", DaemonChoice(target="127.0.0.1:1"))[1].target == "127.0.0.1:1"


def test_new_run_folder_name_consists_of_time_and_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, _ = open_run(None, PAIR)
    assert re.fullmatch(r"draftd-runs/\d{8}-\d{6}-big", str(folder.path))


def test_opening_run_in_folder_with_unrelated_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="a new or empty folder"):
        open_run(tmp_path, PAIR)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_unknown_setting_for_measured_daemon_is_refused_by_name(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"engine\.max_bath"),
        measured_client(DaemonChoice(assignments=["engine.max_bath=2"])),
    ):
        raise AssertionError


def test_measurement_starts_daemon_with_required_depth_and_without_fallback_guard() -> None:
    which = DaemonChoice(assignments=["engine.max_batch=3", "engine.max_draft_tokens=2"])
    with measured_client(which, block_length=6) as client:
        assert client.model().max_draft_tokens == 6
        manifest = client.manifest()
        assert manifest.HasField("exactness"), "it was measured before the first request"
        settings = manifest.settings
        wanted = {"engine.max_batch": "3", "fallback.guard": "false", "fallback.probe_share": "0"}
        assert {name: settings[name] for name in wanted} == wanted
        address = client.target
    with DraftdClient(address) as gone:
        assert not gone.serving()


def code(text: str) -> list[Prompt]:
    return [replace(one, group="code") for one in from_texts([text])]


def test_resumed_run_refuses_daemon_with_changed_settings_or_prompts(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with serving(tmp_path / "one", lambda: scripted_models(0.7)) as first:
        assert begin(first.client, folder, {Stage.SWEEP: code("ab")}).number == 1
        # another stage may ask other prompts of a group
        assert begin(first.client, folder, {Stage.SOAK: code("cd")}).number == 2
        with pytest.raises(RunError, match=r"prompts\.sweep\.code.*session 1"):
            begin(first.client, folder, {Stage.SWEEP: code("cd")})
    with (
        serving(tmp_path / "two", lambda: scripted_models(0.7), engine={"max_batch": 2}) as second,
        pytest.raises(RunError, match=r"settings\.engine\.max_batch: got '2'.*'8', as in session 1"),
    ):
        begin(second.client, folder, {Stage.SWEEP: code("ab")})
    assert list(folder.manifests()) == [1, 2]


def test_run_progress_into_pipe_prints_one_line_every_30_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(runs.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    with progress() as advance:
        for done in range(0, 100, 10):
            advance(Advance(Stage.SWEEP, done, 100, 10.0 * (100 - done), "k4"))
            now[0] += 10
    assert capsys.readouterr().err.splitlines() == [
        "sweep: 0%, about 17 min left",
        "sweep: 30%, about 12 min left",
        "sweep: 60%, about 7 min left",
        "sweep: 90%, about 2 min left",
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "time left not known yet"),
        (0.0, "about 5 s left"),
        (62.0, "about 60 s left"),
        (90.0, "about 2 min left"),
        (3600.0, "about 60 min left"),
        (7200.0, "about 2.0 h left"),
    ],
)
def test_run_progress_shows_remaining_time_in_coarse_units(seconds: float | None, said: str) -> None:
    assert time_left(seconds) == said
