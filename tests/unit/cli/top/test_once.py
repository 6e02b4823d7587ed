"""`draftd top --once` and `--json` against a daemon that runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run


def test_top_json_prints_one_document_with_status_and_derived_rates(draftd: Run) -> None:
    answer = json.loads(draftd("generate", "-n", "40", "--json", "count with me").out)
    assert answer["counts"]["drafted_tokens"] > 0
    ran = draftd("top", "--json", "--interval", "0.2")
    assert ran.code == 0, ran.err
    assert ran.out.count("\n") == 1
    document = json.loads(ran.out)
    status, whole, now = document["status"], document["whole"], document["now"]
    assert status["state"] == "serving"
    assert status["started"].startswith("20")
    counts = status["counts"]
    assert whole["acceptance"] == counts["accepted_tokens"] / counts["drafted_tokens"]
    assert len(whole["per_position"]) == len(counts["drafted_per_position"])
    assert 0.15 < now["seconds"] < 5.0
    assert (now["tokens_per_second"], now["drafting"]["acceptance"]) == (0.0, None)


def test_top_json_has_null_for_unread_hardware_values(draftd: Run) -> None:
    hardware = json.loads(draftd("top", "--json", "--interval", "0.2").out)["status"]["hardware"]
    assert hardware["memory_limit_bytes"] > 0
    assert hardware["gpu_utilization"] is None
    assert hardware["thermal_level"] is None or sys.platform == "darwin"


def test_top_in_a_pipe_prints_one_plain_screen_without_escape_codes(draftd: Run) -> None:
    draftd("generate", "-n", "40", "count with me")
    assert draftd("flag", "set", "off").code == draftd("flag", "set", "on").code == 0
    refused_run = draftd("top", "--once", "--interval", "0.2")
    piped = draftd("top", "--interval", "0.2")
    for ran in (refused_run, piped):
        assert ran.code == 0, ran.err
        assert "\x1b" not in ran.out
        assert "│" not in ran.out
        names = {line[:17].rstrip() for line in ran.out.splitlines()}
        assert {"tokens/s", "accepted", "speed-up", "accepted at 1", "flag", "level", "headroom", "thermal"} <= names
        assert "flag off → on · set over gRPC" in ran.out


@pytest.mark.parametrize("option", ["--once", "--json"])
def test_top_once_without_a_daemon_prints_one_line_suggesting_draftd_serve(draftd: Run, option: str) -> None:
    ran = draftd("top", option, DRAFTD_TARGET="127.0.0.1:1")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert "draftd serve" in ran.err


@pytest.mark.parametrize("interval", ["0", "0.1", "x"])
def test_top_refuses_too_short_or_malformed_interval_option(draftd: Run, interval: str) -> None:
    ran = draftd("top", "--once", "--interval", interval)
    assert ran.code == 2
    assert "--interval" in ran.err


def test_top_once_save_option_writes_the_screen_as_svg(draftd: Run, tmp_path: Path) -> None:
    ran = draftd("top", "--once", "--interval", "0.2", "--save", str(tmp_path / "top.svg"))
    assert ran.code == 0, ran.err
    picture = (tmp_path / "top.svg").read_text()
    assert picture.startswith("<svg")
    assert "speculation" in picture
    assert "quit" in picture
    assert "speculation" not in ran.out


def test_top_once_with_unwritable_save_path_exits_1_with_one_line(draftd: Run, tmp_path: Path) -> None:
    ran = draftd("top", "--once", "--interval", "0.2", "--save", str(tmp_path / "none" / "top.svg"))
    assert ran.code == 1
    assert ran.err.count("\n") == 1
