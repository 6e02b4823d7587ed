"""The committed files are those that the code writes, and a difference names its remedy."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dashboards.generate import ROOT, generated, main
from dashboards.settings import Alerting
from draftd import DOCS_URL


def test_committed_dashboards_and_rules_are_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_packaged_grafana_folder_contains_only_generated_files() -> None:
    packaged = ROOT / "daemon" / "draftd" / "grafana"
    files = {path.relative_to(ROOT) for path in packaged.rglob("*.*") if path.suffix in (".json", ".yaml")}
    assert files == {path for path in generated(Alerting()) if path.is_relative_to("daemon")}


def test_dashboard_generator_check_names_outdated_file_and_plain_run_rewrites_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    board = tmp_path / "daemon/draftd/grafana/dashboards/overview.json"
    written = board.read_text()
    board.write_text(written.replace("Overview", "Overlook"))
    capsys.readouterr()
    assert main(["--check"], tmp_path) == 1
    said = capsys.readouterr().err
    assert said.splitlines() == [
        "daemon/draftd/grafana/dashboards/overview.json is out of date: run python -m dashboards.generate"
    ]
    assert "Overlook" in board.read_text(), "a check writes nothing"
    assert main([], tmp_path) == 0
    assert board.read_text() == written


def test_dashboard_generator_output_is_deterministic(tmp_path: Path) -> None:
    assert generated(Alerting()) == generated(Alerting())


def test_generated_alert_files_use_given_documentation_url() -> None:
    shipped, copied = generated(Alerting()), generated(Alerting(), "https://docs.example.org/draftd")
    for path, text in shipped.items():
        assert copied[path] == text.replace(DOCS_URL, "https://docs.example.org/draftd")
        if "runbook_url" in text:
            assert f"runbook_url: {DOCS_URL}/runbooks.md#draftdabsent" in text


def test_pyproject_documentation_url_equals_dashboard_documentation_url() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["urls"]["Documentation"] == DOCS_URL
