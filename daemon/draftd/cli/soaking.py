"""What `draftd soak` does: soaks for as long as is missing, and shows what came of it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.soak.growth import Growth
from draftd.acceptance.soak.options import SoakOptions
from draftd.acceptance.soak.result import SoakResult
from draftd.acceptance.soak.run import run_soak, soak_complete, soak_prompts
from draftd.acceptance.soak.windows import Window
from draftd.acceptance.sweep.options import SweepOptions
from draftd.acceptance.sweep.prompts import checksums
from draftd.acceptance.ticks import Stage
from draftd.cli import measuring, runs, terminal
from draftd.cli.figures import NOTHING, milliseconds, percent, rate, size

_WINDOWS = ("window", "tokens/s", "p95 ms", "accepted", "drafts", "requests", "failed")


def measure(folder: RunFolder, which: measuring.Which, chosen: SoakOptions) -> None:
    """What is missing of it, with the daemon that it needs; without one where nothing is."""
    plan = folder.plan(Stage.SOAK)
    if plan is not None and soak_complete(folder) and SoakOptions.from_plan(plan) == chosen:
        return
    longest = longest_block(folder, chosen.block_length)
    with runs.at_work("soak", folder, which, block_length=longest) as (daemon, say):
        session = runs.begin(daemon, folder, {Stage.SOAK: checksums(soak_prompts(daemon.model))})
        run_soak(session, chosen, daemon.model, say)


def longest_block(folder: RunFolder, asked: int | None) -> int:
    """What a daemon of its own must allow, to be the one that the run's sweep was measured with."""
    plan = folder.plan(Stage.SWEEP)
    swept = SweepOptions.from_plan(plan) if plan is not None else SweepOptions()
    return max(asked or 0, swept.longest_block)


def show(folder: RunFolder, result: SoakResult) -> None:
    """On the terminal."""
    out = terminal.stdout()
    out.print(terminal.table(out, _WINDOWS, [_row(window) for window in result.windows]))
    for name, value in _lines(result):
        out.print(f"[bold]{name:<16}[/]", end=" ")
        out.print(value, markup=False, soft_wrap=True)
    for complaint in result.complaints:
        out.print(complaint, style="bold red", markup=False, soft_wrap=True)
    out.print(f"run: {folder.path}", markup=False, soft_wrap=True)


def to_json(folder: RunFolder, result: SoakResult) -> str:
    """One line of JSON. Days without end are null, and `grows_without_bound` says what they mean."""
    said: dict[str, Any] = {"run": str(folder.path), "complete": result.complete} | asdict(result)
    if result.days_to_exhaustion is not None and math.isinf(result.days_to_exhaustion):
        said["days_to_exhaustion"] = None
    said |= {"tokens_per_second": result.tokens_per_second, "grows_without_bound": result.grows_without_bound}
    return json.dumps(said | {"complaints": result.complaints}, ensure_ascii=False)


def _row(window: Window) -> tuple[str, ...]:
    accepted = percent(window.acceptance) if window.enough else f"{NOTHING} (few)"
    return (
        f"{window.start:.0f}–{window.start + window.seconds:.0f} s",
        rate(window.tokens_per_second),
        NOTHING if window.inter_token_p95 is None else milliseconds(window.inter_token_p95).removesuffix(" ms"),
        accepted,
        str(window.drafts),
        str(window.requests),
        str(window.errors),
    )


def _lines(result: SoakResult) -> list[tuple[str, str]]:
    wanted = "" if result.complete or result.wanted_seconds is None else f" of {result.wanted_seconds:.0f}"
    sessions = f", {result.sessions} sessions" if result.sessions > 1 else ""
    said = [
        ("soaked", f"{result.seconds:.0f} s{wanted}{sessions}, {result.requests} requests, {result.errors} failed"),
        ("resident set", f"{_size(result.peak_resident)} at most, {_growth(result.resident)}"),
        ("MLX's memory", _growth(result.mlx)),
        ("exhausted", _days(result.days_to_exhaustion)),
        ("headroom", f"{_size(result.least_headroom)} at least, over a floor of {_size(result.floor)}"),
        ("swapped in", _size(result.swap_in)),
        ("critical", "cannot be read" if result.longest_critical is None else f"{result.longest_critical:.0f} s"),
        ("throttled", "cannot be read" if result.throttles is None else f"{result.throttles} times"),
    ]
    return [*said, *(("failed", example) for example in result.error_examples)]


def _growth(found: Growth | None) -> str:
    if found is None:
        return "growth cannot be told"
    low, high = (value * 3600 / 2**20 for value in (found.slope.low, found.slope.high))
    return f"grows by {low:+.0f} to {high:+.0f} MiB an hour (95 %, over {found.seconds:.0f} s)"


def _days(days: float | None) -> str:
    if days is None:
        return "cannot be told"
    return "no growth is certain" if math.isinf(days) else f"in {days:.1f} days, at the least growth that is certain"


def _size(count: int | None) -> str:
    if count is None:
        return "cannot be read"
    return f"-{size(-count)}" if count < 0 else size(count)
