"""What `draftd quality` does: asks what is missing, and shows what the checks say of the answers."""

from __future__ import annotations

import json
from dataclasses import asdict

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.quality.options import QualityOptions
from draftd.acceptance.quality.result import Comparison, PromptResult, QualityResult
from draftd.acceptance.quality.run import quality_complete, quality_prompts, run_quality
from draftd.acceptance.sweep.prompts import checksums
from draftd.acceptance.ticks import Stage
from draftd.cli import measuring, runs, terminal
from draftd.cli.figures import NOTHING
from draftd.cli.soaking import longest_block

_COLUMNS = ("prompt", "autoregressive", "speculative", "texts")


def measure(folder: RunFolder, which: measuring.Which, chosen: QualityOptions) -> None:
    """What is missing of it, with the daemon that it needs; without one where nothing is."""
    plan = folder.plan(Stage.QUALITY)
    if plan is not None and quality_complete(folder) and QualityOptions.from_plan(plan) == chosen:
        return
    longest = longest_block(folder, chosen.block_length)
    with runs.at_work("quality", folder, which, block_length=longest) as (daemon, say):
        session = runs.begin(daemon, folder, {Stage.QUALITY: checksums(quality_prompts())})
        run_quality(session, chosen, daemon.model, say)


def show(folder: RunFolder, result: QualityResult) -> None:
    """On the terminal."""
    out = terminal.stdout()
    drawn = terminal.table(out, _COLUMNS, [_row(one) for one in result.prompts])
    for column in drawn.columns:
        column.justify, column.no_wrap = "left", True
    out.print(drawn)
    for one in result.prompts:
        for way, said in (("autoregressive", one.autoregressive_complaint), ("speculative", one.speculative_complaint)):
            if said:
                out.print(f"{one.prompt}, {way}: {said}", markup=False, soft_wrap=True)
    for comparison in (result.greedy, result.sampled):
        if comparison is not None:
            out.print(sentence(comparison), markup=False, soft_wrap=True)
    out.print(f"{result.identical} of {len(result.prompts)} greedy texts are identical", markup=False)
    for error in result.error_examples:
        out.print(f"failed: {error}", markup=False, soft_wrap=True)
    out.print(f"run: {folder.path}", markup=False, soft_wrap=True)


def sentence(found: Comparison) -> str:
    """Both shares, and their difference with its interval."""
    if found.autoregressive is None or found.speculative is None or found.difference is None:
        return f"temperature {found.temperature:g}: nothing to compare"
    low, high = found.difference.low, found.difference.high
    return (
        f"temperature {found.temperature:g}: {found.autoregressive:.1%} pass autoregressively, {found.speculative:.1%}"
        f" speculatively; difference {found.difference.estimate:+.1%} ({low:+.1%} to {high:+.1%})"
    )


def to_json(folder: RunFolder, result: QualityResult) -> str:
    """One line of JSON."""
    return json.dumps(
        {
            "run": str(folder.path),
            "success": {"autoregressive": result.autoregressive_success, "speculative": result.speculative_success},
            "difference": None if result.difference is None else asdict(result.difference),
            "identical": result.identical,
            "checkers_sound": result.checkers_sound,
            "complaints": result.complaints,
        }
        | asdict(result),
        ensure_ascii=False,
    )


def _row(one: PromptResult) -> tuple[str, ...]:
    texts = NOTHING if one.identical is None else "identical" if one.identical else "differ"
    return (
        one.prompt,
        _share(one.autoregressive_passed, one.autoregressive_asked),
        _share(one.speculative_passed, one.speculative_asked),
        texts,
    )


def _share(passed: int, asked: int) -> str:
    if asked == 1:
        return "passed" if passed else "failed"
    return f"{passed} of {asked} passed" if asked else "no answer"
