"""Compares strategies on the same prompts: local, remote, and speculative. Times, cost and class of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftd.cli.figures import NOTHING, precise_seconds, rate
from draftd.cli.output import track_items
from draftd.client.client import Ask, DraftdClient
from draftd.client.timing import capture, quantile
from draftd.errors import ConfigError
from draftd.planning.prices import money
from draftd.protocol import enum_name
from draftd.strategies import Strategy
from draftd.v1 import inference_pb2 as pb

COLUMNS = (
    *("strategy", "answers", "first token s", "whole answer s"),
    *("tokens/s", "class", "cost per answer", "failed over"),
)
WAYS = (Strategy.LOCAL, Strategy.REMOTE, Strategy.SPECULATIVE)
_ANSWER_SECONDS = 600.0


def chosen_ways(text: str) -> list[Strategy]:
    """Parses names of strategies, separated by commas. Raises ConfigError."""
    ways = [one.strip() for one in text.split(",")]
    if not ways or any(one not in WAYS for one in ways):
        raise ConfigError("--strategies", text, ", ".join(WAYS))
    return list(dict.fromkeys(map(Strategy, ways)))


def run_ways(
    client: DraftdClient, asks: Sequence[tuple[str, Ask]], ways: Sequence[Strategy]
) -> Iterator[dict[str, Any]]:
    """Yields answers under the names of the JSON output. Each prompt is decoded by all ways in turn, so that other load
    affects them alike. Raises CallError if a way is unavailable."""
    for way in ways:  # a warm-up: the first request of each way is slower than later ones
        _answer(client, replace(asks[0][1], max_tokens=8, strategy=way), "")
    for name, ask in track_items(asks):
        for way in ways:
            yield _answer(client, replace(ask, strategy=way, skip_prefix_cache=True), name)


def _answer(client: DraftdClient, ask: Ask, name: str) -> dict[str, Any]:
    """Decodes one prompt. `seconds`: to the complete answer, as the client measured it."""
    assert ask.strategy is not None
    captured = capture(client, ask, timeout=_ANSWER_SECONDS).raise_failure()
    answer, finished = captured.answer, captured.answer.finished
    return {
        "strategy": ask.strategy.value,
        "name": name,
        "seconds": captured.ended,
        "first_token": answer.time_to_first_token,
        "tokens": answer.tokens,
        "tokens_per_second": answer.tokens_per_second,
        "quality": finished.quality,
        "cost": finished.cost if finished.HasField("cost") else None,
        "currency": finished.currency,
        "failed_over": finished.failed_over,
    }


def summarise(answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns, by strategy, the medians of the answers' times and speeds, their mean cost, and their lowest quality
    class."""
    by_way = {way.value: [one for one in answers if one["strategy"] == way] for way in WAYS}
    return {way: _summary(group) for way, group in by_way.items() if group}


def _summary(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    costs = [one["cost"] for one in answers if one["cost"] is not None]
    rates = [one["tokens_per_second"] for one in answers if one["tokens_per_second"]]
    return {
        "answers": len(answers),
        "first_token_seconds": quantile([one["first_token"] for one in answers], 0.5),
        "seconds": quantile([one["seconds"] for one in answers], 0.5),
        "tokens_per_second": quantile(rates, 0.5),
        "quality": enum_name(pb.QualityClass.DESCRIPTOR, min(one["quality"] for one in answers)),
        "cost": sum(costs) / len(costs) if costs else None,
        "currency": answers[0]["currency"],
        "failed_over": sum(bool(one["failed_over"]) for one in answers),
    }


def rows(summaries: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            way,
            str(entry["answers"]),
            precise_seconds(entry["first_token_seconds"]),
            precise_seconds(entry["seconds"]),
            rate(entry["tokens_per_second"]),
            str(entry["quality"]),
            NOTHING if entry["cost"] is None else money(entry["currency"], entry["cost"]),
            str(entry["failed_over"]),
        )
        for way, entry in summaries.items()
    ]
