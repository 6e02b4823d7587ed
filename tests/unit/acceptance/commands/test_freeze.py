"""`draftd freeze` against a running daemon: the manifest shown, written, kept in a run, and compared with a written
one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftd_acceptance.folder import RunFolder, parse_json
from draftd_acceptance.manifest import Manifest
from draftd_acceptance.options import GROUPS
from tests.unit.cli.conftest import Run


def rewritten(path: Path, **changes: Any) -> str:
    """Writes a copy of a manifest with these top-level entries changed; returns its path."""
    other = path.with_name("other.json")
    other.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(other)


def taken(text: str | bytes) -> Manifest:
    return parse_json(Manifest, text, "manifest.json")


@pytest.fixture
def written(draftd: Run, tmp_path: Path) -> Path:
    path = tmp_path / "manifest.json"
    ran = draftd("freeze", "--out", str(path))
    assert ran.code == 0, ran.err
    return path


def test_freeze_command_shows_manifest_that_it_writes(draftd: Run, written: Path) -> None:
    made = taken(written.read_bytes())
    assert (made.backend, set(made.models)) == ("scripted", {"target", "draft"})
    assert set(made.prompts) == {f"sweep.{group}" for group in GROUPS}
    shown = draftd("freeze").out
    assert shown.startswith("draftd         ")
    for text in (
        made.python,
        made.os,
        made.device,
        f"{made.cores} cores",
        "scripted-draft",
        made.prompts["sweep.code"],
    ):
        assert text in shown
    assert shown.index("target ") < shown.index("draft ", shown.index("target "))
    told = draftd("freeze", "--json")
    assert taken(told.out).settings == made.settings


def test_freeze_check_passes_if_daemon_manifest_equals_stored_manifest(draftd: Run, written: Path) -> None:
    ran = draftd("freeze", "--check", str(written))
    assert ran.code == 0
    assert "no relevant difference from" in ran.out
    assert json.loads(draftd("freeze", "--check", str(written), "--json").out)["same"] is True


def test_freeze_check_fails_and_shows_both_values_of_relevant_difference(draftd: Run, written: Path) -> None:
    other = rewritten(written, python="2.7.18", created="long ago")
    ran = draftd("freeze", "--check", other)
    assert ran.code == 1
    rows = [line.split() for line in ran.out.splitlines()]
    python = taken(written.read_bytes()).python
    assert ["python", "2.7.18", python, "yes"] in rows
    fields = [row[0] for row in rows[1:-1]]
    assert fields.index("python") < fields.index("created")
    assert "relevant fields differ from" in ran.out
    said = json.loads(draftd("freeze", "--check", other, "--json").out)
    assert said["same"] is False
    assert said["differences"][0] == {"field": "python", "left": "2.7.18", "right": python, "matters": True}


def test_freeze_check_passes_despite_irrelevant_manifest_difference(draftd: Run, written: Path) -> None:
    ran = draftd("freeze", "--check", rewritten(written, harness="0.0.1"))
    assert ran.code == 0
    assert "harness" in ran.out


def test_freeze_command_writes_new_manifest_even_when_check_fails(draftd: Run, written: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.json"
    assert draftd("freeze", "--check", rewritten(written, cores=0), "--out", str(fresh)).code == 1
    assert taken(fresh.read_bytes()).cores == taken(written.read_bytes()).cores


def test_freeze_check_shortens_checksum_in_table_but_not_in_json(draftd: Run, written: Path) -> None:
    prompts = json.loads(written.read_text())["prompts"] | {"sweep.code": "ab" * 32}
    other = rewritten(written, prompts=prompts)
    assert "ab" * 6 + "…" in draftd("freeze", "--check", other).out
    assert "ab" * 32 in draftd("freeze", "--check", other, "--json").out


def test_freeze_command_adds_manifest_to_run_unless_it_differs_from_earlier_one(draftd: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for sessions in (1, 2):
        assert draftd("freeze", "--run", str(run)).code == 0
        assert sorted(RunFolder.open(run).manifests()) == list(range(1, sessions + 1))
    kept = run / "manifests" / "0001.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"cores": 999}))
    ran = draftd("freeze", "--run", str(run))
    assert ran.code == 2
    assert "cores" in ran.err
    assert "999" in ran.err
    assert len(RunFolder.open(run).manifests()) == 2


@pytest.mark.parametrize(("text", "named"), [("{}", "created"), ("nothing of the kind", "got")])
def test_freeze_check_refuses_file_that_is_no_manifest(draftd: Run, tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    ran = draftd("freeze", "--check", str(path))
    assert ran.code == 2
    assert str(path) in ran.err
    assert named in ran.err


def test_freeze_check_of_missing_manifest_file_fails_with_no_such_file(draftd: Run, tmp_path: Path) -> None:
    ran = draftd("freeze", "--check", str(tmp_path / "none.json"))
    assert ran.code == 1
    assert "No such file" in ran.err


def test_freeze_command_fails_when_no_daemon_answers(draftd: Run) -> None:
    ran = draftd("freeze", DRAFTD_TARGET="127.0.0.1:1")
    assert ran.code == 1
    assert "no daemon answers" in ran.err
