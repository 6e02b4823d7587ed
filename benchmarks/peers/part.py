"""The interface between the command and its parts.

A part measures one claim. It is an object with a `name` (for `--parts` and for file names), a `title` (over its table)
and `run(context)`, which measures and returns results. To add a part, add it to `parts()` in `registry.py`.

A part can rely on this:

- `context.store` is the part's own file of raw records. `store.add({...})` is durable when it returns;
  `store.records()` includes those of earlier starts with the same `--run`. A part that measures only what it does not
  find there continues where it was stopped. Results are computed from records alone.
- Ctrl-C raises KeyboardInterrupt in `run`: let it through. A child process must belong to a context manager
  (`serving.daemon`, `mlx_server.peer`), which ends it whatever happens.
- A part that cannot measure raises an error; the others are measured all the same, and the command returns 1. A result
  that misses its required value is reported, and is no error.
- `context.quick` asks for a measurement in a tenth of the time, to try the command out. Its results mean little.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rich.console import Console

from benchmarks.arms import Prompt
from benchmarks.peers.store import Store


class Direction(StrEnum):
    """The side of the required value on which a result passes."""

    AT_LEAST = "at_least"
    AT_MOST = "at_most"


@dataclass(frozen=True, slots=True)
class Figure:
    """One result. It passes if `value` is on the side `direction` of `wanted`; both are None if nothing is required.
    `low` and `high` are the lowest and highest of several repetitions. `detail` explains the value in a few words."""

    key: str
    value: float
    wanted: float | None = None
    direction: Direction | None = None
    detail: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def holds(self) -> bool | None:
        """True if the value passes, None if nothing is required. NaN never passes."""
        if self.wanted is None or self.direction is None:
            return None
        return self.value >= self.wanted if self.direction is Direction.AT_LEAST else self.value <= self.wanted

    def document(self) -> dict[str, Any]:
        """Returns the result as JSON data, for the last line and for the stored measurements."""
        ranged = {} if self.low is None or self.high is None else {"range": [_short(self.low), _short(self.high)]}
        asked: dict[str, Any] = {}
        if self.wanted is not None and self.direction is not None:
            asked = {str(self.direction): self.wanted, "holds": self.holds}
        return {"value": _short(self.value)} | ranged | asked | ({"detail": self.detail} if self.detail else {})

    @classmethod
    def of_ratios(
        cls, key: str, ratios: Sequence[float], wanted: float | None, direction: Direction, detail: str
    ) -> Figure:
        """Builds the result from the repetitions' ratios: their median and range. Nothing is required if `wanted` is
        None."""
        asked = None if wanted is None else direction
        return cls(key, statistics.median(ratios), wanted, asked, detail, min(ratios), max(ratios))

    @classmethod
    def of_document(cls, key: str, document: dict[str, Any]) -> Figure:
        """Builds the result again from what `document` returned."""
        direction = next((one for one in Direction if one in document), None)
        low, high = document.get("range", (None, None))
        value = float("nan") if document["value"] is None else float(document["value"])
        wanted = None if direction is None else float(document[direction])
        return cls(key, value, wanted, direction, document.get("detail", ""), low, high)


@dataclass(frozen=True, slots=True)
class Pair:
    """Folders or hub ids of a target model and its draft model; `draft` is empty for none."""

    model: str
    draft: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """Input of a part. `prompts` are all held-out prompts as token ids, interleaved by category (class). `seed` is that
    of all random numbers; `quick` asks for a short measurement."""

    pair: Pair
    prompts: Sequence[Prompt]
    console: Console
    store: Store
    quick: bool
    seed: int

    def say(self, line: str) -> None:
        """Prints a line about the progress."""
        self.console.print(f"  {line}", style="dim", highlight=False)


class Part(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    def run(self, context: Context) -> list[Figure]:
        """Measures and returns results. Raises an error if it cannot; KeyboardInterrupt passes through."""
        ...


@runtime_checkable
class Draws(Protocol):
    """A part that can draw its stored results, for `--plot`."""

    def draw(self, store: Store, path: Path) -> None: ...


def _short(value: float) -> float | None:
    """Returns the value with four significant digits, or None for NaN, which JSON does not have."""
    return None if value != value else float(f"{value:.4g}")
