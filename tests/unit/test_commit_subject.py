"""The hook that checks a commit's subject (scripts/hooks/commit-msg)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / "scripts" / "hooks" / "commit-msg"


def run_hook(message: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "COMMIT_EDITMSG"
    file.write_text(message)
    return subprocess.run(["sh", HOOK, file], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "message",
    [
        "engine: charge a prompt slice in one place\n\nThe body says why.",
        "engine, docs: embed the pair",
        "\n# a comment of git's\ndocs: mark the row of the later run",
        "Merge branch 'x'",
        'Revert "engine: charge twice"',
    ],
)
def test_commit_hook_accepts_subject_with_area_and_imperative_verb(message: str, tmp_path: Path) -> None:
    assert run_hook(message, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("Charge a prompt slice", "lacks an area"),
        ("engine: charge a prompt slice.", "full stop"),
        ("engine: " + "charge a prompt slice " * 3 + "once", "longer than 60 characters"),
        ("engine: charges a prompt slice", '"charges" is no verb'),
        ("engine: charged a prompt slice", '"charged" is no verb'),
        ("engine: what it costs", '"what" is no verb'),
        ("tests: an edge connects again", '"an" is no verb'),
        ("", "lacks an area"),
    ],
)
def test_commit_hook_refuses_invalid_subject_with_reason(subject: str, reason: str, tmp_path: Path) -> None:
    refused = run_hook(subject, tmp_path)
    assert refused.returncode == 1
    assert f'got "{subject}"' in refused.stderr
    assert reason in refused.stderr
    assert "allowed: " in refused.stderr
