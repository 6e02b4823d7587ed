"""Reports the results: a table for each part, and one line of JSON for all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.part import Direction, Figure

_SIGNS = {Direction.AT_LEAST: "≥", Direction.AT_MOST: "≤"}


def show(title: str, figures: Sequence[Figure], console: Console) -> None:
    """Prints a part's results, with the required value beside each and whether it is reached."""
    table = Table(title=title, title_justify="left")
    for heading in ("result", "value", "range", "required", "passes", ""):
        table.add_column(heading, justify="right" if heading in ("value", "range", "required") else "left")
    for one in figures:
        spread = "" if one.low is None or one.high is None else f"{one.low:.4g}–{one.high:.4g}"
        wanted = "" if one.wanted is None or one.direction is None else f"{_SIGNS[one.direction]} {one.wanted:g}"
        holds = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[one.holds]
        table.add_row(one.key, f"{one.value:.4g}", spread, wanted, holds, one.detail)
    console.print(table)


def last_line(
    found: Mapping[str, Sequence[Figure]], broken: Mapping[str, str], conditions: Mapping[str, Any], seconds: float
) -> str:
    """Returns the last line as JSON: every result by part and key, the number that passed (`held`), those that did not
    (`missed`), and the errors of parts that failed (`broken`)."""
    missed = [f"{part}.{one.key}" for part, figures in found.items() for one in figures if one.holds is False]
    held = sum(one.holds is True for figures in found.values() for one in figures)
    document = {
        "benchmark": "peers",
        **conditions,
        "seconds": round(seconds, 1),
        "held": held,
        "missed": missed,
        "broken": dict(broken),
        "figures": {part: {one.key: one.document() for one in figures} for part, figures in found.items()},
    }
    return json.dumps(document)
