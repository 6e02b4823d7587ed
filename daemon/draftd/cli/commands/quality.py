"""`draftd quality`: JSON and tool calls with and without drafts, judged by checkers that are checked themselves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import typer

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.options import QualityOptions
from draftd.acceptance.quality import Comparison, PromptResult, QualityResult, Way, quality_result
from draftd.cli import options, output, runs
from draftd.cli.figures import NOTHING

_COLUMNS = ("prompt", "autoregressive", "speculative", "texts")
_option = options.measured


@dataclass(frozen=True)
class Asked:
    """The options by the names of QualityOptions' fields."""

    block_length: int | None = _option("--block", "TOKENS", "Drafted at a time; the daemon's own if not given.")
    temperature: float | None = _option(
        "--temperature", "NUMBER", "Sampled answers besides the greedy ones; none if not given."
    )
    repeats: int | None = _option("--repeat", "COUNT", "Sampled answers to each prompt; 3 if not given.")
    seed: int | None = _option("--seed", "NUMBER", "Of orders and sampled answers; 0 if not given.")


@options.with_options(
    "draftd quality",
    "draftd quality --target 127.0.0.1:50551 --temperature 0.8 --repeat 5",
    "draftd quality --run draftd-runs/mine --json | jq .difference",
)
def command(asked: Asked, which: runs.Which, run: runs.Run = None, json: options.Json = False) -> None:
    """Check answers to frozen JSON and tool-call prompts, with and without drafts.

    Exits 1 if the share that passes is more than 0.5 % lower with drafts than without, if an answer is missing, if none
    passes, or if a checker is broken: each checker is first tested with right and with wrong answers.

    The answers are kept in the run, and checked again whenever it is read.
    """
    folder = runs.measure_stage(QualityOptions, vars(asked), run, which)
    result = quality_result(folder)
    assert result is not None
    if json:
        output.print_json(document(folder, result))
    else:
        show(folder, result)
    for complaint in result.complaints:
        output.complain(complaint)
    if result.complaints:
        raise typer.Exit(1)


def show(folder: RunFolder, result: QualityResult) -> None:
    """On the terminal."""
    prompts = result.greedy.prompts
    output.print_table(_COLUMNS, map(_cells, prompts), words=True)
    for one in prompts:
        for mode, way in (("autoregressive", one.autoregressive), ("speculative", one.speculative)):
            if way.complaint:
                output.say(f"{one.prompt}, {mode}: {way.complaint}")
    for comparison in (result.greedy, result.sampled):
        if comparison is not None:
            output.say(sentence(comparison))
    output.say(f"{result.greedy.identical} of {len(prompts)} greedy texts are identical")
    for error in result.error_examples:
        output.say(f"failed: {error}")
    output.say(f"run: {folder.path}")


def sentence(found: Comparison) -> str:
    """Both shares, and their difference with its interval."""
    if found.autoregressive is None or found.speculative is None or found.difference is None:
        return f"temperature {found.temperature:g}: nothing to compare"
    low, high = found.difference.low, found.difference.high
    return (
        f"temperature {found.temperature:g}: {found.autoregressive:.1%} pass autoregressively, {found.speculative:.1%}"
        f" speculatively; difference {found.difference.estimate:+.1%} ({low:+.1%} to {high:+.1%})"
    )


def document(folder: RunFolder, result: QualityResult) -> dict[str, Any]:
    """For JSON."""
    greedy = result.greedy
    return {
        "run": str(folder.path),
        "success": {"autoregressive": greedy.autoregressive, "speculative": greedy.speculative},
        "difference": greedy.difference and asdict(greedy.difference),
        "identical": greedy.identical,
        "checkers_sound": not result.faults,
        "complaints": result.complaints,
    } | asdict(result)


def _cells(one: PromptResult) -> tuple[str, ...]:
    texts = NOTHING if one.identical is None else "identical" if one.identical else "differ"
    return one.prompt, _passed(one.autoregressive), _passed(one.speculative), texts


def _passed(way: Way) -> str:
    if way.asked == 1:
        return "passed" if way.passed else "failed"
    return f"{way.passed} of {way.asked} passed" if way.asked else "no answer"
