"""`draftd soak`: continuous decoding, and what becomes of memory, acceptance and errors."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import typer

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.options import SoakOptions
from draftd.acceptance.soak import SoakResult, Window, soak_result
from draftd.acceptance.statistics import Growth
from draftd.cli import options, output, runs
from draftd.cli.figures import NOTHING, milliseconds, percent, rate, size

_WINDOWS = ("window", "tokens/s", "p95 ms", "accepted", "drafts", "requests", "failed")
_UNREADABLE = "cannot be read"
_option = options.measured


@dataclass(frozen=True)
class Asked:
    """The options by the names of SoakOptions' fields."""

    duration: float | None = _option("--duration", "SECONDS", "For how long; 600 if not given.")
    streams: int | None = _option(
        "--streams", "COUNT", "Requests at a time; 4 if not given, or as many as it decodes together."
    )
    block_length: int | None = _option(
        "--block", "TOKENS", "Drafted at a time; the daemon's own if not given, 0: none."
    )
    max_tokens: int | None = _option(
        "--max-tokens", "TOKENS", "Longest answer; lengths are mixed, from an eighth of it."
    )
    window_seconds: float | None = _option("--window", "SECONDS", "Of acceptance and speed; 60 if not given.")
    sample_seconds: float | None = _option("--every", "SECONDS", "Between two readings of the machine; 1 if not given.")
    seed: int | None = _option("--seed", "NUMBER", "Of the order of prompts; 0 if not given.")


@options.with_options(
    "draftd soak",
    "draftd soak --target 127.0.0.1:50551 --duration 3600 --streams 8",
    "draftd soak --run draftd-runs/mine --json | jq .resident.slope",
)
def command(asked: Asked, which: runs.Which, run: runs.Run = None, json: options.Json = False) -> None:
    """Decode without a pause, several requests at a time: does memory grow without bound, does acceptance hold?

    Exits 1 if memory certainly grows so fast that it is used up within a week, if a request failed, or if the soak was
    stopped early. Ctrl-C loses nothing: the run can be continued, and what was measured counts.

    Growth has a 95 % interval. It leaves out the first quarter of each session, in which caches fill, and needs 60
    readings in 60 s: with fewer it says "too few samples". A window's accepted share needs 50 drafts.
    """
    folder = runs.measure_stage(SoakOptions, vars(asked), run, which)
    result = soak_result(folder)
    assert result is not None
    if json:
        output.print_json(document(folder, result))
        for complaint in result.complaints:
            output.complain(complaint)
    else:
        show(folder, result)
    if not result.complete:
        output.complain(f"soaked for {result.seconds:.0f} s; continue with draftd soak --run {folder.path}")
    if result.complaints or not result.complete:
        raise typer.Exit(1)


def show(folder: RunFolder, result: SoakResult) -> None:
    """On the terminal."""
    output.print_table(_WINDOWS, map(_cells, result.windows))
    output.print_fields(_lines(result), 16)
    for complaint in result.complaints:
        output.say(complaint, style="bold red")
    output.say(f"run: {folder.path}")


def document(folder: RunFolder, result: SoakResult) -> dict[str, Any]:
    """For JSON. Days without end are null, and `grows_without_bound` says what they mean."""
    made: dict[str, Any] = {"run": str(folder.path), "complete": result.complete} | asdict(result)
    if result.days_to_exhaustion is not None and math.isinf(result.days_to_exhaustion):
        made["days_to_exhaustion"] = None
    made |= {"tokens_per_second": result.tokens_per_second, "grows_without_bound": result.grows_without_bound}
    return made | {"complaints": result.complaints}


def _cells(window: Window) -> tuple[str, ...]:
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
    few = result.too_few_samples and f"too few samples: {result.too_few_samples}"
    made = [
        ("soaked", f"{result.seconds:.0f} s{wanted}{sessions}, {result.requests} requests, {result.errors} failed"),
        ("resident set", f"{_size(result.peak_resident)} at most, {_growth(result.resident, few)}"),
        ("MLX's memory", _growth(result.mlx, few)),
        ("exhausted", few or _days(result.days_to_exhaustion)),
        ("headroom", f"{_size(result.least_headroom)} at least, over a floor of {_size(result.floor)}"),
        ("swapped in", _size(result.swap_in)),
        ("critical", _UNREADABLE if result.longest_critical is None else f"{result.longest_critical:.0f} s"),
        ("throttled", _UNREADABLE if result.throttles is None else f"{result.throttles} times"),
    ]
    return [*made, *(("failed", example) for example in result.error_examples)]


def _growth(found: Growth | None, few: str) -> str:
    if found is None:
        return f"growth: {few or 'cannot be told'}"
    low, high = (value * 3600 / 2**20 for value in (found.slope.low, found.slope.high))
    return f"grows by {low:+.0f} to {high:+.0f} MiB an hour (95 %, over {found.seconds:.0f} s)"


def _days(days: float | None) -> str:
    if days is None:
        return "cannot be told"
    return "no growth is certain" if math.isinf(days) else f"in {days:.1f} days, at the least growth that is certain"


def _size(count: int | None) -> str:
    return _UNREADABLE if count is None else size(count)
