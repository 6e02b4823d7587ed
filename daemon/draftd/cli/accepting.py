"""What `draftd accept` does: every stage of a run in turn, with one daemon, each gone on with where it was stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.gate.verdict import Verdict
from draftd.acceptance.quality.options import QualityOptions
from draftd.acceptance.quality.run import quality_complete, quality_prompts, run_quality
from draftd.acceptance.soak.options import SoakOptions
from draftd.acceptance.soak.run import run_soak, soak_complete, soak_prompts
from draftd.acceptance.sweep.knee import knee
from draftd.acceptance.sweep.options import SweepOptions
from draftd.acceptance.sweep.plan import chosen_prompts
from draftd.acceptance.sweep.prompts import checksums
from draftd.acceptance.sweep.run import run_sweep, sweep_complete
from draftd.acceptance.ticks import Stage
from draftd.cli import measuring, runs


def measure(folder: RunFolder, which: measuring.Which, sweep: Mapping[str, Any], soak: Mapping[str, Any]) -> None:
    """What is missing of sweep, soak and quality; without a daemon where nothing is. `sweep` and `soak` are what was
    asked otherwise than it is by default, or than the run began with."""
    swept = SweepOptions.resumed(folder.plan(Stage.SWEEP), **sweep)
    soaked = SoakOptions.resumed(folder.plan(Stage.SOAK), **soak)
    examined = QualityOptions.resumed(folder.plan(Stage.QUALITY))
    if _complete(folder, swept, soaked):
        return
    with runs.at_work("accept", folder, which, block_length=swept.longest_block) as (daemon, say):
        prompts = {
            Stage.SWEEP: checksums(chosen_prompts(swept, daemon.model)),
            Stage.SOAK: checksums(soak_prompts(daemon.model)),
            Stage.QUALITY: checksums(quality_prompts()),
        }
        session = runs.begin(daemon, folder, prompts)
        run_sweep(session, swept, daemon.model, say)
        block = candidate(folder, swept)
        run_soak(session, SoakOptions.resumed(soaked.plan(), block_length=block), daemon.model, say)
        run_quality(session, QualityOptions.resumed(examined.plan(), block_length=block), daemon.model, say)


def report(folder: RunFolder, which: measuring.Which, verdict: Verdict) -> Path:
    """Writes it, and gives the page's path."""
    from draftd.acceptance.report.writing import write_report  # draws: what is only stopped needs none of it

    return write_report(folder.path, verdict, prices=measuring.prices(which.settings())).html


def candidate(folder: RunFolder, swept: SweepOptions) -> int:
    """The block length that is soaked: the knee; the sweep's base where no block is shown to pay."""
    found = knee(folder.ticks(Stage.SWEEP))
    return found.block_length if found is not None and found.block_length else swept.block_length


def _complete(folder: RunFolder, swept: SweepOptions, soaked: SoakOptions) -> bool:
    """Whether all of it is measured, as it was asked."""
    if not (sweep_complete(folder) and soak_complete(folder) and quality_complete(folder)):
        return False
    begun = SweepOptions.from_plan(folder.plan(Stage.SWEEP) or {}), SoakOptions.from_plan(folder.plan(Stage.SOAK) or {})
    return begun == (swept, soaked)
