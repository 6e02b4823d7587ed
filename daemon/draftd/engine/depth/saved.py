"""What was learnt about a pair on a machine, as plain numbers: to be kept, and read back by the next process.

Prices, how far rounds were found to be off them, and how often drafts stood. Whoever keeps it says which pair and
machine it is of; here it is only read and written. A document that is not one is refused with the field's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftd.core import DrafterName, WorkloadClass
from draftd.engine.depth.acceptance_rates import Acceptance, Evidence, Key
from draftd.engine.depth.costs import DEEPEST, Prices, RoundCosts
from draftd.errors import ConfigError

VERSION = 1
_AGED = 0.5  # of what was counted before, the share that still counts: texts and weights may be others

OffsetKey = tuple[DrafterName | None, int, bool, int]


@dataclass(frozen=True, slots=True)
class Learnt:
    """`offsets` as `RoundCosts.offsets` gives them; `acceptance`: tokens tried, and those that stood, by position."""

    prices: Prices
    offsets: Mapping[OffsetKey, tuple[float, float]] = field(default_factory=dict)
    acceptance: Mapping[Key, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, costs: RoundCosts, acceptance: Acceptance) -> Learnt:
        counted = {key: (tuple(e.tried), tuple(e.stood)) for key, e in acceptance.evidence.items()}
        return cls(costs.prices, costs.offsets(), counted)

    def costs(self, plain: float | None) -> RoundCosts:
        """To go on with, where a plain round of one row takes `plain` seconds now; None where that is not known."""
        costs = RoundCosts(self.prices)
        costs.restore(self.offsets, 0.0)
        if plain:
            costs.restore({}, math.log(plain / costs.plain(1, self.prices.context)))
        return costs

    def counted(self, deepest: int) -> Acceptance:
        """To go on with, up to position `deepest`."""
        acceptance = Acceptance(deepest)
        for key, (tried, stood) in self.acceptance.items():
            acceptance.evidence[key] = Evidence.of(key, tried, stood, _AGED)
        return acceptance

    def to_document(self) -> dict[str, Any]:
        """Of strings, numbers, lists and null: what JSON can hold."""
        prices = self.prices
        return {
            "version": VERSION,
            "context": prices.context,
            "plain": [[batch, seconds] for batch, seconds in sorted(prices.plain.items())],
            "drafted": [
                [kind, batch, depth, seconds]
                for kind, found in sorted(prices.drafted.items())
                for (batch, depth), seconds in sorted(found.items())
            ],
            "growth": [[depth, seconds] for depth, seconds in sorted(prices.growth.items())],
            "taking_in": [[kind, seconds] for kind, seconds in sorted(prices.taking_in.items())],
            "offsets": [
                [kind, batch, sampled, depth, value, variance]
                for (kind, batch, sampled, depth), (value, variance) in self.offsets.items()
            ],
            "acceptance": [
                [key[0], key[1], key[2], key[3] and key[3].value, list(tried), list(stood)]
                for key, (tried, stood) in self.acceptance.items()
            ],
        }

    @classmethod
    def of_document(cls, document: object) -> Learnt:
        """Raises ConfigError, which names the field, where it is not what `to_document` wrote."""
        if not isinstance(document, dict):
            raise ConfigError("learnt", document, "an object")
        if document.get("version") != VERSION:
            raise ConfigError("learnt.version", document.get("version"), str(VERSION))
        read = _Reader(document)
        drafted: dict[DrafterName, dict[tuple[int, int], float]] = {}
        for kind, batch, depth, seconds in read.rows("drafted", _drafter, _count, _depth, _seconds):
            drafted.setdefault(kind, {})[batch, depth] = seconds
        prices = Prices(
            dict(read.rows("plain", _count, _seconds)),
            drafted,
            dict(read.rows("growth", _whole, _not_negative)),
            _whole(document.get("context"), "learnt.context"),
            dict(read.rows("taking_in", _drafter, _seconds)),
        )
        offsets = {
            (kind, batch, sampled, depth): (value, variance)
            for kind, batch, sampled, depth, value, variance in read.rows(
                "offsets", _perhaps(_drafter), _count, _truth, _whole_depth, _small, _not_negative
            )
        }
        acceptance = {
            (kind, sampled, seeded, workload): (tried, stood)
            for kind, sampled, seeded, workload, tried, stood in read.rows(
                "acceptance", _drafter, _truth, _truth, _perhaps(_workload), _counts, _counts
            )
        }
        return cls(prices, offsets, acceptance)


class _Reader:
    """Lists of rows of values."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def rows(self, name: str, *columns: Any) -> list[Any]:
        rows, at = self._document.get(name), f"learnt.{name}"
        if not isinstance(rows, list):
            raise ConfigError(at, rows, "a list")
        found = []
        for i, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != len(columns):
                raise ConfigError(f"{at}[{i}]", row, f"a list of {len(columns)} values")
            found.append(tuple(read(value, f"{at}[{i}]") for read, value in zip(columns, row, strict=True)))
        return found


def _number(value: object, at: str, least: float, most: float, allowed: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(at, value, allowed)
    return float(value)


def _seconds(value: object, at: str) -> float:
    return _number(value, at, 1e-9, 1e6, "seconds above 0")


def _not_negative(value: object, at: str) -> float:
    return _number(value, at, 0.0, 1e6, "a number from 0 on")


def _small(value: object, at: str) -> float:
    return _number(value, at, -10.0, 10.0, "a number from -10 to 10")


def _whole(value: object, at: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ConfigError(at, value, "a whole number from 0 on")
    return value


def _count(value: object, at: str) -> int:
    if _whole(value, at) == 0:
        raise ConfigError(at, value, "a whole number from 1 on")
    return _whole(value, at)


def _whole_depth(value: object, at: str) -> int:
    if _whole(value, at) > DEEPEST:
        raise ConfigError(at, value, f"a depth of at most {DEEPEST}")
    return _whole(value, at)


def _depth(value: object, at: str) -> int:
    _count(value, at)
    return _whole_depth(value, at)


def _truth(value: object, at: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(at, value, "true or false")
    return value


def _counts(value: object, at: str) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) != DEEPEST:
        raise ConfigError(at, value, f"a list of {DEEPEST} counts")
    return tuple(_not_negative(one, at) for one in value)


def _drafter(value: Any, at: str) -> DrafterName:
    if not isinstance(value, str) or not value:
        raise ConfigError(at, value, "a drafter's name")
    return value


def _workload(value: Any, at: str) -> WorkloadClass:
    try:
        return WorkloadClass(value)
    except ValueError:
        raise ConfigError(at, value, ", ".join(WorkloadClass)) from None


def _perhaps(read: Any) -> Any:
    return lambda value, at: None if value is None else read(value, at)
