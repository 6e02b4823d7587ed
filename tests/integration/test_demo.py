"""The demo, whole: a real daemon on the embedded pair, each class that it has learnt, both ways, over gRPC."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from draftd.client.prompts import EMBEDDED
from tests.conftest import NanoPair


@pytest.mark.slow
def test_demo_command_gets_same_text_with_and_without_drafts_for_each_workload(nano_pair: NanoPair) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "draftd.cli.main", "demo", "--each", "1", "--max-tokens", "24"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=dict(os.environ),
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert figures["model"] == EMBEDDED
    assert set(figures["classes"]) == {"code", "tool_call", "chat", "prose"}
    assert figures["identical"] == figures["pairs"] == 4
    assert figures["acceptance"] is None or 0 <= figures["acceptance"] <= 1
    for name, figure in figures["classes"].items():
        # On a machine that is busy with something else drafts may not pay, and none is made.
        assert figure["mean_accepted_length"] is None or figure["mean_accepted_length"] >= 1, name
    assert "⟦" in ended.stdout
    assert "\x1b" not in ended.stdout
