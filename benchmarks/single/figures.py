"""From records to figures: one arm's value over another's in each repetition; then median, lowest and highest.

Every figure is derived from records alone, so that a stored run can be read again.
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
    """The median, lowest and highest of the repetitions' ratios, and the medians of both sides."""

    median: float
    low: float
    high: float
    mine: float
    base: float

    def document(self, **more: float) -> dict[str, float]:
        """For the last line, with four significant digits."""
        found = {"median": self.median, "low": self.low, "high": self.high} | more
        return {name: float(f"{value:.4g}") for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a part's table. `wanted`: the bound, with its sign."""

    claim: str
    spread: Spread
    unit: str = ""
    wanted: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a part found: its keys of the last line, its table, and lines below that."""

    figures: Mapping[str, Any]
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=list)


def spread(records: Iterable[Record], arm: str, base: str, reduce: Reduce, **where: object) -> Spread:
    """`arm` over `base`, by repetition; `reduce` makes one value of an arm's records in a repetition. Only records with
    the values `where` count. Raises ValueError where no repetition has both arms."""
    pairs = []
    for one in _by_repetition(records, where):
        if arm in one and base in one:
            pairs.append((reduce(one[arm]), reduce(one[base])))
    if not pairs:
        raise ValueError(f"no repetition has both {arm} and {base} where {where}")
    quotients = [mine / theirs for mine, theirs in pairs]
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Spread(statistics.median(quotients), min(quotients), max(quotients), mine, theirs)


def interval(records: Iterable[Record], arm: str, base: str, reduce: Reduce, **where: object) -> tuple[float, float]:
    """The 95 % interval of the median of `arm` over `base`, prompt by prompt. The bootstrap draws whole repetitions:
    all answers of one come from the same processes."""
    clusters = []
    for one in _by_repetition(records, where):
        of_base = {record["prompt"]: record for record in one.get(base, ())}
        both = [(mine, of_base[mine["prompt"]]) for mine in one.get(arm, ()) if mine["prompt"] in of_base]
        clusters.append([reduce([mine]) / reduce([theirs]) for mine, theirs in both])
    found = bootstrap(clusters)
    if found is None:
        raise ValueError(f"no repetition has both {arm} and {base} where {where}")
    return found.low, found.high


def _by_repetition(records: Iterable[Record], where: Mapping[str, object]) -> list[dict[str, list[Record]]]:
    found: dict[int, dict[str, list[Record]]] = {}
    for record in records:
        if all(record.get(name) == value for name, value in where.items()):
            found.setdefault(record["repetition"], {}).setdefault(record["arm"], []).append(record)
    return [found[repetition] for repetition in sorted(found)]


def whole_rate(records: Sequence[Record]) -> float:
    """Tokens per second, from asking to the last token."""
    return sum(len(one["text"]) for one in records) / math.fsum(one["times"][-1] for one in records)


def decode_rate(records: Sequence[Record]) -> float:
    """Tokens per second after the first ones that came. `times` has the seconds at which each token came."""
    pairs = [after_first(one["times"]) for one in records]
    return sum(tokens for tokens, _ in pairs) / math.fsum(seconds for _, seconds in pairs)


def after_first(times: Sequence[float]) -> tuple[int, float]:
    """Tokens that came later than the first ones, and the seconds that they took."""
    return sum(at > times[0] for at in times), times[-1] - times[0]


def together_rate(records: Sequence[Record]) -> float:
    """Tokens per second of streams that ran at once, while all decode: from the last one's first token to the first
    one's last. Raises ValueError where they never all did."""
    since = max(float(one["times"][0]) for one in records)
    until = min(float(one["times"][-1]) for one in records)
    if until <= since:
        raise ValueError(f"{len(records)} streams: one ended before another began; allowed: longer answers")
    return len([at for one in records for at in one["times"] if since < at <= until]) / (until - since)


def median_of(name: str) -> Reduce:
    """The median of a field."""
    return lambda records: statistics.median(float(one[name]) for one in records)


def acceptance(records: Iterable[Record], arm: str, **where: object) -> tuple[float, float]:
    """Accepted over drafted tokens, and tokens a step."""
    chosen = [
        one for one in records if one["arm"] == arm and all(one.get(name) == value for name, value in where.items())
    ]
    drafted = sum(one["drafted"] for one in chosen)
    steps = sum(one["steps"] for one in chosen)
    accepted = sum(one["accepted"] for one in chosen) / drafted if drafted else 0.0
    return accepted, sum(len(one["text"]) for one in chosen) / steps if steps else 0.0


def same_share(records: Iterable[Record], arm: str, base: str, **where: object) -> float:
    """Of the texts that both arms gave, by prompt in the records' `texts`, the share that is the same."""
    both = [
        one[arm][0]["texts"][prompt] == text
        for one in _by_repetition(records, where)
        if arm in one and base in one
        for prompt, text in one[base][0]["texts"].items()
    ]
    return sum(both) / len(both) if both else math.nan


def same_texts(records: Iterable[Record]) -> None:
    """Raises ValueError where two arms gave one prompt different greedy texts: they cannot be compared then."""
    texts: dict[tuple[int, str], tuple[str, Sequence[int]]] = {}
    for one in records:
        arm, text = texts.setdefault((one["repetition"], one["prompt"]), (one["arm"], one["text"]))
        if list(text) != list(one["text"]):
            at = next((i for i, (a, b) in enumerate(zip(text, one["text"], strict=False)) if a != b), "the end")
            raise ValueError(f"{one['arm']}: the greedy text of {one['prompt']} differs from that of {arm} at {at}")
