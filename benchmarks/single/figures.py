"""Computes results from records: one arm's value divided by another's in each repetition, then median, lowest and
highest.

They need the records alone, so that stored measurements can be evaluated again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftd_acceptance.statistics import bootstrap

Record = Mapping[str, Any]
Reduce = Callable[[Sequence[Record]], float]


@dataclass(frozen=True, slots=True)
class Spread:
    """Ratio of one arm's values to another's: the median, lowest and highest over repetitions. `mine` and `base` are
    the median values of the two arms."""

    median: float
    low: float
    high: float
    mine: float
    base: float

    def document(self, **more: float) -> dict[str, float]:
        """Returns the ratio's values and `more` with four significant digits, for the last line."""
        found = {"median": self.median, "low": self.low, "high": self.high} | more
        return {name: float(f"{value:.4g}") for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a part's table. `wanted` is the bound that the ratio must reach, with its sign."""

    claim: str
    spread: Spread
    unit: str = ""
    wanted: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A part's results: its keys of the last line, the rows of its table, and lines below the table."""

    figures: Mapping[str, Any]
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=list)


def spread(records: Iterable[Record], arm: str, base: str, reduce: Reduce, **where: object) -> Spread:
    """Returns the ratio of `arm` to `base`, paired by repetition. `reduce` computes one value from an arm's records in
    a repetition; only records with the fields `where` count. Raises ValueError if no repetition has both arms."""
    pairs = []
    for one in _by_repetition(records, where):
        if arm in one and base in one:
            pairs.append((reduce(one[arm]), reduce(one[base])))
    if not pairs:
        raise ValueError(f"no repetition has records of both the arms {arm} and {base} where {where}")
    quotients = [mine / theirs for mine, theirs in pairs]
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Spread(statistics.median(quotients), min(quotients), max(quotients), mine, theirs)


def interval(records: Iterable[Record], arm: str, base: str, reduce: Reduce, **where: object) -> tuple[float, float]:
    """Returns the 95 % interval (low, high) of the median ratio of `arm` to `base`, paired by prompt. The bootstrap
    resamples whole repetitions, because all answers of a repetition come from the same processes. Raises ValueError if
    no repetition has both arms' records of a prompt."""
    clusters = []
    for one in _by_repetition(records, where):
        of_base = {record["prompt"]: record for record in one.get(base, ())}
        both = [(mine, of_base[mine["prompt"]]) for mine in one.get(arm, ()) if mine["prompt"] in of_base]
        clusters.append([reduce([mine]) / reduce([theirs]) for mine, theirs in both])
    found = bootstrap(clusters)
    if found is None:
        raise ValueError(f"no repetition has records of both the arms {arm} and {base} where {where}")
    return found.low, found.high


def _by_repetition(records: Iterable[Record], where: Mapping[str, object]) -> list[dict[str, list[Record]]]:
    found: dict[int, dict[str, list[Record]]] = {}
    for record in records:
        if all(record.get(name) == value for name, value in where.items()):
            found.setdefault(record["repetition"], {}).setdefault(record["arm"], []).append(record)
    return [found[repetition] for repetition in sorted(found)]


def whole_rate(records: Sequence[Record]) -> float:
    """Returns tokens per second from the request to the last token, over all records."""
    return sum(len(one["text"]) for one in records) / math.fsum(one["times"][-1] for one in records)


def decode_rate(records: Sequence[Record]) -> float:
    """Returns tokens per second from each answer's first token to its last, over all records. Tokens that arrived
    together with the first one do not count. A record's `times` has the seconds from the request to each token."""
    pairs = [after_first(one["times"]) for one in records]
    return sum(tokens for tokens, _ in pairs) / math.fsum(seconds for _, seconds in pairs)


def after_first(times: Sequence[float]) -> tuple[int, float]:
    """Returns how many tokens came later than the first token, and the seconds from the first token to the last. Tokens
    that arrived together with the first one do not count."""
    return sum(at > times[0] for at in times), times[-1] - times[0]


def together_rate(records: Sequence[Record]) -> float:
    """Returns tokens per second of concurrent streams while all decode: from the latest first token to the earliest
    last one. Raises ValueError if they never decode at the same time."""
    since = max(float(one["times"][0]) for one in records)
    until = min(float(one["times"][-1]) for one in records)
    if until <= since:
        raise ValueError(f"{len(records)} streams: one ended before another decoded; allowed: longer answers")
    return len([at for one in records for at in one["times"] if since < at <= until]) / (until - since)


def median_of(name: str) -> Reduce:
    """Returns a function that computes the median of a field over records."""
    return lambda records: statistics.median(float(one[name]) for one in records)


def acceptance(records: Iterable[Record], arm: str, **where: object) -> tuple[float, float]:
    """Returns an arm's accepted tokens divided by drafted ones, and its output tokens per step."""
    chosen = [
        one for one in records if one["arm"] == arm and all(one.get(name) == value for name, value in where.items())
    ]
    drafted = sum(one["drafted"] for one in chosen)
    steps = sum(one["steps"] for one in chosen)
    accepted = sum(one["accepted"] for one in chosen) / drafted if drafted else 0.0
    return accepted, sum(len(one["text"]) for one in chosen) / steps if steps else 0.0


def same_share(records: Iterable[Record], arm: str, base: str, **where: object) -> float:
    """Returns the share of `base`'s texts that equal `arm`'s text for the same prompt in the same repetition; NaN
    without any."""
    both = [
        one[arm][0]["texts"][prompt] == text
        for one in _by_repetition(records, where)
        if arm in one and base in one
        for prompt, text in one[base][0]["texts"].items()
    ]
    return sum(both) / len(both) if both else math.nan


def same_texts(records: Iterable[Record]) -> None:
    """Raises ValueError if two arms gave different greedy texts for a prompt: their speeds could not be compared."""
    texts: dict[tuple[int, str], tuple[str, Sequence[int]]] = {}
    for one in records:
        arm, text = texts.setdefault((one["repetition"], one["prompt"]), (one["arm"], one["text"]))
        if list(text) != list(one["text"]):
            at = next((i for i, (a, b) in enumerate(zip(text, one["text"], strict=False)) if a != b), "the end")
            raise ValueError(f"{one['arm']}: the greedy text for {one['prompt']} differs from the arm {arm}'s at {at}")
