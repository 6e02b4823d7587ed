"""The seam between the command and its parts.

A part measures one claim. It is an object with a `name` (for `--parts` and for file names), a `title` (over its table)
and `run(context)`, which measures and returns its figures. A part to be run is added to `parts()` in `registry.py`.

What a part may count on:

- `context.store` is the part's own file of raw ticks. `store.add({...})` is durable when it returns; `store.records()`
  are those of earlier starts of the same run as well. A part that looks there first for what it is about to measure
  goes on where it was when a person stopped it. Figures are derived from records alone.
- Ctrl-C is KeyboardInterrupt in `run`: let it through. What was started must be a context manager (`serving.daemon`,
  `mlx_server.peer`), which ends its child whatever happens.
- A part that cannot measure raises; the others run all the same, and the command ends in 1. A figure that misses what
  is wanted of it is a figure: it is reported, and is no error.
- `context.quick` asks for figures that mean little in a tenth of the time: to try the command out.
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
    """Which side of what is wanted is good."""

    AT_LEAST = "at_least"
    AT_MOST = "at_most"


@dataclass(frozen=True, slots=True)
class Figure:
    """What was found. `wanted` and `direction` are None where nothing is asked of it; `low` and `high` are the lowest
    and highest of the repetitions, where there were several. `detail` says in a few words what stands behind it."""

    key: str
    value: float
    wanted: float | None = None
    direction: Direction | None = None
    detail: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def holds(self) -> bool | None:
        """None where nothing is wanted. A value that is not a number holds nothing."""
        if self.wanted is None or self.direction is None:
            return None
        return self.value >= self.wanted if self.direction is Direction.AT_LEAST else self.value <= self.wanted

    def document(self) -> dict[str, Any]:
        """For the last line and for the run's folder."""
        ranged = {} if self.low is None or self.high is None else {"range": [_short(self.low), _short(self.high)]}
        asked: dict[str, Any] = {}
        if self.wanted is not None and self.direction is not None:
            asked = {str(self.direction): self.wanted, "holds": self.holds}
        return {"value": _short(self.value)} | ranged | asked | ({"detail": self.detail} if self.detail else {})

    @classmethod
    def of_ratios(
        cls, key: str, ratios: Sequence[float], wanted: float | None, direction: Direction, detail: str
    ) -> Figure:
        """The median of the repetitions' ratios; nothing is asked of it where `wanted` is None."""
        asked = None if wanted is None else direction
        return cls(key, statistics.median(ratios), wanted, asked, detail, min(ratios), max(ratios))

    @classmethod
    def of_document(cls, key: str, document: dict[str, Any]) -> Figure:
        """What `document` gave."""
        direction = next((one for one in Direction if one in document), None)
        low, high = document.get("range", (None, None))
        value = float("nan") if document["value"] is None else float(document["value"])
        wanted = None if direction is None else float(document[direction])
        return cls(key, value, wanted, direction, document.get("detail", ""), low, high)


@dataclass(frozen=True, slots=True)
class Pair:
    """Folders or hub ids of a target and its draft, which is empty where there is none."""

    model: str
    draft: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """What a part is given. `prompts` are held-out ones of all workload classes, interleaved class by class, as token
    ids: as many as there are, of which a part takes what it needs. `seed` is what every draw begins with."""

    pair: Pair
    prompts: Sequence[Prompt]
    console: Console
    store: Store
    quick: bool
    seed: int

    def say(self, line: str) -> None:
        """How far it is: a line for whoever waits."""
        self.console.print(f"  {line}", style="dim", highlight=False)


class Part(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    def run(self, context: Context) -> list[Figure]:
        """Measures. Raises where it cannot; KeyboardInterrupt passes through."""
        ...


@runtime_checkable
class Draws(Protocol):
    """A part that can draw what it found, for `--plot`."""

    def draw(self, store: Store, path: Path) -> None: ...


def _short(value: float) -> float | None:
    """Four significant digits; None, which JSON has, for what is not a number."""
    return None if value != value else float(f"{value:.4g}")
