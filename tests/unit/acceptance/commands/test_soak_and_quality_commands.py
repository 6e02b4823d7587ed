"""`draftd soak` and `draftd quality` from the command line, against a running daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from draftd.canaries.checkers import JsonObject
from draftd_acceptance.ticks import Stage
from tests.in_process_daemon import Served, serving
from tests.scripted import scripted_models
from tests.synthetic_run import synthetic_run
from tests.unit.cli.conftest import Ran, in_process

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(
        tmp_path_factory.mktemp("daemon"), lambda: scripted_models(0.7, context_length=16_384), engine={"max_batch": 2}
    ) as served:
        yield served


@pytest.fixture
def draftd(daemon: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `draftd …` in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        with monkeypatch.context() as patch:
            return in_process(arguments, patch, capsys)

    return run


def test_soak_command_prints_summary_and_refuses_changed_option_on_resume(
    draftd: Run, daemon: Served, tmp_path: Path
) -> None:
    asked = ("soak", "--target", daemon.target, "--run", "run", "--duration", "1", "--block", "2", "--max-tokens", "16")
    ran = draftd(*asked)
    assert ran.code == 0, ran.err
    assert re.search(r"\nsoaked +\d+ s, ", ran.out)
    assert "critical         cannot be read" in ran.out
    assert "run: run" in ran.out
    # The run alone says how to go on, and nothing is left to do.
    kept = (tmp_path / "run" / "soak.jsonl").read_bytes()
    again = draftd("soak", "--run", "run", "--json")
    assert again.code == 0, again.err
    said = json.loads(again.out)
    assert (said["complete"], said["errors"], said["days_to_exhaustion"]) == (True, 0, None)
    assert (tmp_path / "run" / "soak.jsonl").read_bytes() == kept
    assert json.loads((tmp_path / "run" / "soak.json").read_text())["streams"] == 2
    other = draftd("soak", "--run", "run", "--block", "1")
    assert other.code == 2
    assert "soak: block_length: got 1; allowed: 2, as this run began with" in other.err


def test_soak_command_fails_on_memory_leak_and_reports_too_few_samples_of_short_soak(
    draftd: Run, tmp_path: Path
) -> None:
    for name, seconds in (("long", 600.0), ("short", 44.0)):
        synthetic_run(tmp_path / name, stages=[Stage.SOAK], soak_seconds=seconds, leak=200_000)
    ran = draftd("soak", "--run", "long", "--json")
    assert (ran.code, "memory grows without bound" in ran.err) == (1, True)
    ran = draftd("soak", "--run", "short")
    assert (ran.code, ran.err) == (0, "")
    said = dict(line.split(maxsplit=1) for line in ran.out.splitlines() if line[:1].isalpha())
    few = "too few samples: 34 in 33 s after the warm-up, at least 60 in 60 s"
    assert said["exhausted"] == few
    assert said["resident"].endswith(f"at most, growth: {few}")
    assert "an hour" not in ran.out
    found = json.loads(draftd("soak", "--run", "short", "--json").out)
    assert (found["resident"], found["mlx"], found["days_to_exhaustion"]) == (None, None, None)
    assert found["too_few_samples"] == few.removeprefix("too few samples: ")


def test_quality_command_fails_when_no_answer_passes_or_checker_is_broken(
    draftd: Run, daemon: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scripted model writes noise, the same both ways. The same answers are judged twice."""
    ran = draftd("quality", "--target", daemon.target, "--run", "run")
    assert ran.code == 1
    assert "json-person, speculative: no JSON object" in ran.out
    assert "24 of 24 greedy texts are identical" in ran.out
    assert "under a schema: not measured: this model's tokenizer does not support grammars" in ran.out
    assert "no prompt passes its check even without drafts" in ran.err
    monkeypatch.setattr(JsonObject, "complaint", lambda self, answer: "")
    ran = draftd("quality", "--run", "run", "--json")
    assert ran.code == 1
    said = json.loads(ran.out)
    assert said["success"]["speculative"] >= 8 / 24  # the broken checker accepts every answer
    assert said["checkers_sound"] is False
    assert set(said["greedy"]["prompts"][0]["speculative"]) == {"asked", "passed", "complaint"}
    assert "nothing is shown, because the checker of json-person is broken: accepts what is wrong" in ran.err


def test_quality_command_names_schema_invalid_answer_and_refuses_incomplete_plan(draftd: Run, tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path / "run", stages=[Stage.QUALITY], invalid=1)
    ran = draftd("quality", "--run", "run")
    assert ran.code == 1
    assert "under a schema, 35 of 36 answers are valid" in ran.out
    assert "1 of 36 answers under a schema are not valid: tool-set_light (k4): no JSON" in ran.err
    folder.write("quality.json", '{"block_length": 4}')
    ran = draftd("quality", "--run", "run")
    assert (ran.code, ran.out) == (2, "")
    assert "quality.json: drafter: not set" in ran.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("soak", "--duration", "0"), "duration: got 0.0; allowed: greater than or equal to 1"),
        (("soak", "--streams", "65"), "streams: got 65; allowed: less than or equal to 64"),
        (("quality", "--block", "0"), "block_length: got 0; allowed: greater than or equal to 1"),
        (("quality", "--repeat", "0"), "repeats: got 0; allowed: greater than or equal to 1"),
    ],
)
def test_soak_and_quality_commands_refuse_invalid_options_without_creating_run(
    draftd: Run, daemon: Served, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    ran = draftd(*arguments, "--target", daemon.target, "--run", "run")
    assert ran.code == 2
    assert complaint in ran.err
    assert not (tmp_path / "run").exists()
