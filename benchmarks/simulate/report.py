"""Prints the table of the simulated scenarios."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from benchmarks.simulate.outcome import Outcome, Spread


def show(outcomes: Mapping[str, Outcome], titles: Mapping[str, str], console: Console) -> None:
    table = Table(
        title="The fallback on a simulated clock",
        caption="median / longest; fall back: from a fault's beginning; recover: from its end",
    )
    for name in ("scenario", "what happens"):
        table.add_column(name)
    for name in ("faults", "fall back", "in requests", "recover", "false in 10,000", "flaps"):
        table.add_column(name, justify="right")
    for name, one in outcomes.items():
        table.add_row(
            name,
            titles[name],
            _faults(one),
            _times(one.fall_back_seconds),
            _counts(one.fall_back_requests),
            _times(one.recover_seconds),
            f"{one.false_fallbacks_per_10k:.2f}",
            f"[red]{one.flaps}[/red]" if one.flaps else "0",
        )
    console.print(table)


def _faults(one: Outcome) -> str:
    wrong = [f"{one.unanswered} unanswered"] * bool(one.unanswered) + [f"{one.unrecovered} not recovered"] * bool(
        one.unrecovered
    )
    return f"{one.faults}" + (f" [red]({', '.join(wrong)})[/red]" if wrong else "")


def _times(spread: Spread | None) -> str:
    return "–" if spread is None else f"{_duration(spread.median)} / {_duration(spread.longest)}"


def _counts(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.median:.0f} / {spread.longest:.0f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
