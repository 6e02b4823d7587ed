"""`draftd report` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftd.cli.main import build_app
from draftd.errors import FieldError
from draftd_acceptance.folder import RunError
from draftd_acceptance.ticks import Stage
from tests.synthetic_run import synthetic_run
from tests.unit.acceptance.report.conftest import FEW


@pytest.fixture
def swept(run: Path) -> Path:
    return synthetic_run(
        run, stages=(Stage.SWEEP,), groups=("code",), arms=FEW[:2], prompts=2, repetitions=2, tokens=16
    ).path


def test_report_command_writes_html_and_markdown_with_prices_from_settings(
    swept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTD_COST__PER_HOUR", "0.36")
    said = CliRunner().invoke(build_app(), ["report", "--run", str(swept)], catch_exceptions=False)
    assert said.exit_code == 0
    assert (swept / "report.html").read_text().startswith("<!doctype html>")
    assert (swept / "report.md").read_text().startswith("# Larch-8B-4bit with")
    assert "$0.00200" in (swept / "report.md").read_text()
    assert str(swept / "report.html") in said.output
    assert "not promoted" in said.output


def test_report_command_json_output_holds_verdict_and_html_path(swept: Path) -> None:
    said = CliRunner().invoke(build_app(), ["report", "--run", str(swept), "--json"], catch_exceptions=False)
    told = json.loads(said.output)
    assert told["html"] == str(swept / "report.html")
    assert told["verdict"]["decision"] == "not_promoted"


def test_report_command_refuses_missing_run_option_and_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="--run"):
        CliRunner().invoke(build_app(), ["report"], catch_exceptions=False)
    with pytest.raises(RunError, match=r"run\.json"):
        CliRunner().invoke(build_app(), ["report", "--run", str(tmp_path)], catch_exceptions=False)
