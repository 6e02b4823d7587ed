"""What `draftd sweep` does: measures what is missing of a run's sweep, and shows what it says."""

from __future__ import annotations

import json
from dataclasses import asdict

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.statistics import Interval
from draftd.acceptance.sweep.options import SweepOptions
from draftd.acceptance.sweep.plan import chosen_prompts
from draftd.acceptance.sweep.prompts import checksums
from draftd.acceptance.sweep.result import SweepResult, SweepRow, sweep_result
from draftd.acceptance.sweep.run import run_sweep, sweep_complete
from draftd.acceptance.ticks import Stage
from draftd.cli import measuring, runs, terminal
from draftd.cli.figures import NOTHING, length, percent

__all__ = ["measure", "show", "sweep_result", "to_json"]

_COLUMNS = ("arm", "tokens/s", "× AR", "together", "TTFT ms", "p95 ms", "accepted", "length", "requests")


def measure(folder: RunFolder, which: measuring.Which, chosen: SweepOptions) -> None:
    """What is missing of it, with the daemon that it needs; without one where nothing is."""
    plan = folder.plan(Stage.SWEEP)
    if plan is not None and sweep_complete(folder) and SweepOptions.from_plan(plan) == chosen:
        return
    with runs.at_work("sweep", folder, which, block_length=chosen.longest_block) as (daemon, say):
        session = runs.begin(daemon, folder, {Stage.SWEEP: checksums(chosen_prompts(chosen, daemon.model))})
        run_sweep(session, chosen, daemon.model, say)


def show(folder: RunFolder, result: SweepResult) -> None:
    """On the terminal."""
    out = terminal.stdout()
    out.print(terminal.table(out, _COLUMNS, [_row(row) for row in result.rows]))
    if result.knee is not None:
        out.print(result.knee.sentence, markup=False)
    for what, reason in result.left_out.items():
        out.print(f"left out: {what}: {reason}", markup=False)
    for error, count in result.errors.items():
        out.print(f"failed {count} times: {error}", markup=False)
    out.print(f"run: {folder.path}", markup=False, soft_wrap=True)


def to_json(folder: RunFolder, result: SweepResult) -> str:
    """One line of JSON."""
    arms = {row.arm.id: {"speedup": row.speedup and asdict(row.speedup)} | asdict(row.summary) for row in result.rows}
    return json.dumps(
        {
            "run": str(folder.path),
            "knee": result.knee and asdict(result.knee),
            "arms": arms,
            "left_out": result.left_out,
            "errors": result.errors,
            "missing": result.missing,
        },
        ensure_ascii=False,
    )


def _row(row: SweepRow) -> tuple[str, ...]:
    found = row.summary.figures
    return (
        row.arm.id,
        _interval(found["decode_tokens_per_second"], "{:.0f}"),
        _interval(row.speedup, "{:.2f}"),
        _estimate(row.summary.total_tokens_per_second if row.arm.concurrency > 1 else None, 1, "{:.0f}"),
        _estimate(found["time_to_first_token"], 1000, "{:.1f}"),
        _estimate(found["inter_token_p95"], 1000, "{:.1f}"),
        percent(None if found["acceptance"] is None else found["acceptance"].estimate),
        length(None if found["mean_accepted_length"] is None else found["mean_accepted_length"].estimate),
        f"{row.summary.requests}" + (f" ({row.summary.errors} failed)" if row.summary.errors else ""),
    )


def _interval(found: Interval | None, form: str) -> str:
    if found is None:
        return NOTHING
    return f"{form} ({form}–{form})".format(found.estimate, found.low, found.high)


def _estimate(found: Interval | None, factor: float, form: str) -> str:
    return NOTHING if found is None else form.format(found.estimate * factor)
