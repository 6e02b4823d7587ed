"""The processes of `make models`, and what is made of their results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.models import page, run
from tests.models.result import COLUMNS, Result

_CHILD = """\
#!/bin/sh
[ "$4" = aborts ] && kill -ABRT $$
[ "$4" = hangs ] && exec sleep 60
echo "mlx-lm prints what it likes"
echo '{}'
"""
GOOD = Result("good", **dict.fromkeys(COLUMNS, True), texts=70, shared=3)


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that end well, badly, or not at all, by the architecture's name."""
    program = tmp_path / "python"
    program.write_text(_CHILD.replace("{}", json.dumps(GOOD.as_json())))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(run, "FOLDER", tmp_path / "results")


def test_crashed_architecture_check_process_is_reported_and_spares_another(child: None) -> None:
    found = {result.name: result for result, _ in run.results(["aborts", "good"], jobs=2)}
    assert found["good"] == GOOD
    assert found["aborts"].reasons == {"served": "its process ended by SIGABRT"}
    assert found["aborts"].broken


def test_hanging_architecture_check_process_is_ended_at_its_time_limit(child: None) -> None:
    ((found, _),) = run.results(["hangs"], seconds=0.2)
    assert found.reasons == {"served": "it was not done after 0.2 s"}
    assert found.broken


def test_architecture_check_results_are_reused_until_code_or_version_changes(
    child: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(again: bool = False) -> list[bool]:
        return [before for _, before in run.results(["good"], again=again)]

    assert found() == [False]
    assert found() == [True]
    assert found(again=True) == [False]
    monkeypatch.setattr(run, "version", lambda: "another mlx-lm")
    assert found() == [False]
    monkeypatch.setattr(run, "code", lambda: "another engine")
    assert found() == [False]
    monkeypatch.setattr(run, "configuration", lambda name: {"hidden_size": 32})
    assert found() == [False]


def test_architecture_page_gives_a_reason_for_every_missing_capability() -> None:
    unserved = Result("olmo", reasons={"served": "a package is missing"})
    partly = Result("llama", **dict.fromkeys(COLUMNS, True), texts=5)
    partly.batched, partly.reasons["batched"] = False, "no | layout"
    counted = page.summary([GOOD, unserved, partly])
    assert [counted[name] for name in ("architectures", *COLUMNS)] == [3, 2, 1, 2, 2, 2, 2, 2]
    assert counted["reasons"]["batched"] == {"olmo": "a package is missing", "llama": "no | layout"}
    text = page.render([GOOD, unserved, partly])
    assert "| `olmo` | no |  |  |  |  |  |  | a package is missing |" in text
    assert "| `llama` | yes | no | yes | whole texts | yes | yes | yes | no \\| layout |" in text
