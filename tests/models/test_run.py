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


def test_a_process_that_ends_badly_ends_no_other(child: None) -> None:
    found = {result.name: result for result, _ in run.results(["aborts", "good"], jobs=2)}
    assert found["good"] == GOOD
    assert found["aborts"].reasons == {"served": "its process ended by SIGABRT"}
    assert found["aborts"].broken


def test_a_process_that_does_not_end_is_ended(child: None) -> None:
    ((found, _),) = run.results(["hangs"], seconds=0.2)
    assert found.reasons == {"served": "it was not done after 0.2 s"}
    assert found.broken


def test_results_are_used_again_until_something_changes(child: None, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_page_and_the_summary_give_a_reason_for_all_that_is_not_so() -> None:
    unserved = Result("olmo", reasons={"served": "a package is missing"})
    partly = Result("llama", **dict.fromkeys(COLUMNS, True), texts=5)
    partly.batched, partly.reasons["batched"] = False, "no | layout"
    counted = page.summary([GOOD, unserved, partly])
    assert [counted[name] for name in ("architectures", *COLUMNS)] == [3, 2, 1, 2, 2, 2, 2, 2]
    assert counted["reasons"]["batched"] == {"olmo": "a package is missing", "llama": "no | layout"}
    text = page.render([GOOD, unserved, partly])
    assert "| `olmo` | no |  |  |  |  |  |  | a package is missing |" in text
    assert "| `llama` | yes | no | yes | whole texts | yes | yes | yes | no \\| layout |" in text
