"""The frame of `make bench-peers`: parts in order, resumed where they were, figures on the last line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers import command
from benchmarks.peers.part import Context, Direction, Figure
from benchmarks.peers.store import Store


class FakePart:
    """A part with the figures, or the error, that a test gives it."""

    title = "made up"

    def __init__(self, name: str, *figures: Figure, error: BaseException | None = None) -> None:
        self.name, self.figures, self.error, self.runs = name, figures, error, 0

    def run(self, context: Context) -> list[Figure]:
        self.runs += 1
        context.store.add({"run": self.runs})
        if self.error is not None:
            raise self.error
        return list(self.figures)


GOOD = Figure("speed", 1.23456, 1.0, Direction.AT_LEAST, "of two", low=1.2, high=1.3)
BAD = Figure("delay", 2.5, 2.0, Direction.AT_MOST)
PLAIN = Figure("rate", 100.0)


@pytest.fixture(autouse=True)
def no_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "load_prompts", lambda model, per_class: [])


def said(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_server_comparison_benchmark_lists_all_figures_last_and_exits_0_on_missed_target(
    tmp_path: Path, capsys
) -> None:
    assert command.main(["--run", str(tmp_path)], [FakePart("a", GOOD, BAD), FakePart("b", PLAIN)]) == 0
    last = said(capsys)
    assert last["held"] == 1
    assert last["missed"] == ["a.delay"]
    assert last["broken"] == {}
    assert last["figures"]["a"]["speed"] == {
        "value": 1.235,
        "range": [1.2, 1.3],
        "at_least": 1.0,
        "holds": True,
        "detail": "of two",
    }
    assert last["figures"]["b"]["rate"] == {"value": 100.0}


def test_server_comparison_benchmark_names_failed_part_and_still_runs_remaining_parts(tmp_path: Path, capsys) -> None:
    broken, other = FakePart("a", error=RuntimeError("no such port")), FakePart("b", PLAIN)
    assert command.main(["--run", str(tmp_path)], [broken, other]) == 1
    last = said(capsys)
    assert last["broken"] == {"a": "RuntimeError: no such port"}
    assert list(last["figures"]) == ["b"]


def test_interrupted_server_comparison_benchmark_resumes_at_interrupted_part(tmp_path: Path, capsys) -> None:
    done, stopped = FakePart("a", GOOD, BAD), FakePart("b", PLAIN, error=KeyboardInterrupt())
    assert command.main(["--run", str(tmp_path)], [done, stopped]) == 130
    stopped.error = None
    capsys.readouterr()
    assert command.main(["--run", str(tmp_path)], [done, stopped]) == 0
    assert (done.runs, stopped.runs) == (1, 2)
    last = said(capsys)
    assert last["missed"] == ["a.delay"]
    assert last["held"] == 1, "figures that were read back are judged as they were"
    assert Store(tmp_path / "b.jsonl").records() == [{"run": 1}, {"run": 2}]


def test_server_comparison_benchmark_runs_only_parts_named_by_option(tmp_path: Path, capsys) -> None:
    a, b, c = FakePart("a", PLAIN), FakePart("b", PLAIN), FakePart("c", PLAIN)
    assert command.main(["--run", str(tmp_path), "--parts", "c,a"], [a, b, c]) == 0
    assert (a.runs, b.runs, c.runs) == (1, 0, 1)
    with pytest.raises(SystemExit):
        command.main(["--run", str(tmp_path), "--parts", "a,d"], [a, b, c])
    assert "--parts: got d; allowed: a, b, c" in capsys.readouterr().err


def test_server_comparison_benchmark_refuses_to_resume_run_with_different_options(tmp_path: Path, capsys) -> None:
    part = FakePart("a", PLAIN)
    assert command.main(["--run", str(tmp_path), "--quick"], [part]) == 0
    assert command.main(["--run", str(tmp_path)], [part]) == 2
    assert part.runs == 1
    assert "started with" in capsys.readouterr().out


def test_benchmark_figure_of_nan_misses_bound_and_is_null_in_json() -> None:
    figure = Figure("x", float("nan"), 1.0, Direction.AT_MOST)
    assert figure.holds is False
    assert figure.document()["value"] is None
    again = Figure.of_document("x", json.loads(json.dumps(figure.document())))
    assert again.holds is False
    assert Figure.of_document("speed", GOOD.document()).holds is True


def test_benchmark_store_skips_truncated_record_and_appends_whole_record_after(tmp_path: Path) -> None:
    store = Store(tmp_path / "x.jsonl")
    assert store.records() == []
    store.add({"n": 1})
    with store.path.open("a") as file:
        file.write('{"n": 2')
    assert store.records() == [{"n": 1}]
    store.add({"n": 3})
    assert store.records() == [{"n": 1}, {"n": 3}]
