"""Routes and strategies on the command line, with a remote daemon that has another tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from draftd.cli.strategies import rows, summarise
from draftd.engine.remote.verifier_link import LinkState, RemoteModel
from draftd.strategies import QualityClass
from draftd.v1 import inference_pb2 as pb
from tests.in_process_daemon import serving
from tests.scripted import scripted_models
from tests.unit.cli.conftest import Ran, Run, in_process

MODEL = RemoteModel("big", "f", 4096, 256, 8, False, "token 7 differs", QualityClass.PROFESSIONAL, 0.01, 0.001)


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an edge whose remote has another tokenizer."""
    folder = tmp_path_factory.mktemp
    with (
        serving(folder("remote"), lambda: scripted_models(0.7)) as remote,
        serving(
            folder("edge"),
            lambda: scripted_models(0.7),
            remote={"enabled": True, "target": remote.target},
            cost={"remote_per_token": 0.5},
            link=lambda: LinkState(up=True, model=MODEL, round_trip=0.01),
        ) as served,
    ):
        yield served.target


@pytest.fixture
def ran(edge: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("DRAFTD_TARGET", edge)

    def run(*arguments: str) -> Ran:
        return in_process(arguments, monkeypatch, capsys)

    return run


def test_route_command_prints_chosen_strategy_and_a_table_with_the_explain_option(ran: Run) -> None:
    line = ran("route", "hello")
    assert (line.code, line.out.count("\n")) == (0, 1)
    assert line.out.startswith("strategy: auto: local, ")
    table = ran("route", "hello", "--quality", "professional", "--explain").out.splitlines()
    assert table[0].endswith("tokens of prompt, about 256 of answer; professional or better")
    local, remote, speculative = (row for row in table if row.startswith(("local", "remote", "speculative")))
    assert "local is standard" in local
    assert "✓" in remote
    assert "$128" in remote
    assert "another tokenizer: token 7 differs" in speculative
    assert table[-1].startswith("strategy: auto: remote, ")
    refused = ran("route", "hello", "--strategy", "speculative")
    assert (
        refused.code,
        refused.out.startswith("refused: the request demands strategy speculative, which is not available: another"),
    ) == (1, True)
    route = json.loads(ran("route", "hello", "--json").out)
    assert [row["strategy"] for row in route["rows"]] == ["local", "remote", "speculative"]


def test_generate_with_remote_strategy_reports_cost_and_quality_and_brackets_remote_text(ran: Run) -> None:
    answer = ran("generate", "hello", "-n", "4", "--strategy", "remote", "--highlight")
    assert "⟪" in answer.out
    assert "remote, professional · $2" in answer.err
    made = json.loads(ran("generate", "hello", "-n", "4", "--quality", "professional", "--json").out)
    assert (made["cost"], made["quality"], made["remote"]["tokens"]) == (2.0, "professional", 4)
    assert made["started"]["plan"]["strategy"] == "remote"


def test_flag_set_command_changes_the_decoding_strategy_flag(ran: Run) -> None:
    assert ran("flag", "set", "local").out.startswith("decoding-strategy: local (was auto), for every daemon whose ")
    assert "decoding-strategy" in ran("flag", "get").out
    flag = json.loads(ran("flag", "get", "decoding-strategy", "--prompt-tokens", "9", "--json").out)
    assert flag["evaluation"]["strategy"] == "local"
    assert ran("route", "hello", "--quality", "professional").code == 1
    assert ran("flag", "set", "auto").code == 0


def test_compare_strategies_option_tabulates_quality_and_cost_per_strategy(ran: Run) -> None:
    table = json.loads(ran("compare", "hello", "-n", "8", "--strategies", "local,remote", "--json").out)["strategies"]
    assert {way: (one["answers"], one["quality"], one["cost"]) for way, one in table.items()} == {
        "local": (1, "standard", 0.0),
        "remote": (1, "professional", 4.0),
    }
    assert ran("compare", "hello", "--strategies", "local,nowhere").code == 2


def test_strategy_comparison_row_shows_median_time_lowest_quality_and_mean_cost() -> None:
    def one(seconds: float, quality: int, cost: float | None, failed_over: str = "") -> dict[str, Any]:
        times = {"seconds": seconds, "first_token": seconds / 10, "tokens_per_second": 50.0}
        priced = {"cost": cost, "currency": "€"}
        return {"strategy": "remote", "quality": quality, "failed_over": failed_over} | times | priced

    professional, standard = pb.QUALITY_CLASS_PROFESSIONAL, pb.QUALITY_CLASS_STANDARD
    answers = [one(1, professional, 0.2), one(2, professional, 0.4), one(9, standard, None, "gone")]
    assert rows(summarise(answers)) == [("remote", "3", "0.200", "2.000", "50", "standard", "€0.3", "1")]
