"""The frame of `make bench` for one model: parts by repetition, resumed where they were, figures on the last line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.single import command
from benchmarks.single.figures import Found, Record, Row, median_of, spread
from benchmarks.single.part import Turn


class FakePart:
    """A part that measures nothing and stores fixed figures, or fails."""

    title = "made up"

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name, self.error, self.turns = name, error, list[int]()

    def measure(self, turn: Turn) -> None:
        self.turns.append(turn.repetition)
        turn.add("mine", {"value": 3 + turn.repetition})
        if self.error is not None:
            raise self.error
        turn.add("theirs", {"value": 2})

    def found(self, records: Sequence[Record]) -> Found:
        measured = spread(records, "mine", "theirs", median_of("value"))
        return Found({self.name: measured.document()}, [Row("mine over theirs", measured, "s", "≤ 1")])


@pytest.fixture(autouse=True)
def no_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Prompts", lambda model: None)


def last(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_single_model_benchmark_prints_median_low_and_high_of_all_repetitions(tmp_path: Path, capsys) -> None:
    part = FakePart("a")
    assert command.main(["--model", "m", "--run", str(tmp_path), "--repetitions", "3"], [part]) == 0
    assert last(capsys) == {"a": {"median": 2.0, "low": 1.5, "high": 2.5}}
    assert part.turns == [0, 1, 2]


def test_single_model_benchmark_names_failed_part_and_stores_no_partial_repetition(tmp_path: Path, capsys) -> None:
    broken, other = FakePart("a", RuntimeError("no such port")), FakePart("b")
    assert command.main(["--model", "m", "--run", str(tmp_path), "--repetitions", "2"], [broken, other]) == 1
    said = capsys.readouterr().out
    assert "a: RuntimeError: no such port" in said
    assert list(json.loads(said.splitlines()[-1])) == ["b"]
    assert broken.turns == [0]
    assert not (tmp_path / "a.jsonl").exists()


def test_resumed_single_model_benchmark_measures_only_missing_repetitions(tmp_path: Path, capsys) -> None:
    part = FakePart("a")
    arguments = ["--model", "m", "--run", str(tmp_path), "--repetitions"]
    assert command.main([*arguments, "1"], [part]) == 0
    assert command.main([*arguments, "2"], [part]) == 0
    assert part.turns == [0, 1]
    assert last(capsys) == {"a": {"median": 1.75, "low": 1.5, "high": 2.0}}
    assert command.main(["--model", "other", "--run", str(tmp_path)], [part]) == 2


def test_single_model_benchmark_measures_only_chosen_parts(tmp_path: Path, capsys) -> None:
    a, b = FakePart("a"), FakePart("b")
    assert command.main(["--model", "m", "--run", str(tmp_path), "--parts", "b"], [a, b]) == 0
    assert (len(a.turns), len(b.turns)) == (0, 7)
    with pytest.raises(SystemExit):
        command.main(["--model", "m", "--parts", "c"], [a, b])
    assert "--parts: got c; allowed: a, b" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--model", "m", "--repetitions", "0"], [a, b])
    assert "--repetitions: got 0; allowed: 1 or more" in capsys.readouterr().err
