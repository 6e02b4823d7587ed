"""`draftd sweep`, `draftd soak`, `draftd quality`: each measures or continues one stage of a run, and prints it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import typer

from draftd.cli import options, output
from draftd.cli.figures import NOTHING, milliseconds, percent, rate, size
from draftd.client.prompts import from_file
from draftd.core import BUILT_IN_DRAFTERS, DrafterName
from draftd_acceptance.commands import runs
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.options import OptionError, QualityOptions, SoakOptions, SweepOptions
from draftd_acceptance.quality import ModeAnswers, PromptResult, QualityComparison, QualityResult, quality_result
from draftd_acceptance.soak import SoakResult, SoakWindow, soak_result
from draftd_acceptance.statistics import Interval, MemoryGrowth
from draftd_acceptance.sweep.result import Sweep
from draftd_acceptance.ticks import Arm

_ARMS = ("arm", "tokens/s", "× AR", "together", "TTFT ms", "p95 ms", "accepted", "length", "requests")
_WINDOWS = ("window", "tokens/s", "p95 ms", "accepted", "drafts", "requests", "failed")
_PROMPTS = ("prompt", "autoregressive", "speculative", "texts")
_UNREADABLE = "cannot be read"
_T = TypeVar("_T")
_option = runs.stage_option
_how = partial(runs.option, panel="How to measure")


@dataclass(frozen=True)
class SweepFlags:
    """The options by the names of SweepOptions' fields."""

    block_lengths: str | None = _option(
        "--blocks", "LIST", "Block lengths to measure, in tokens drafted per step. Default: 0,2,3,4,6."
    )
    block_length: int | None = _option("--base", "TOKENS", "Block length while another option is varied. Default: 4.")
    drafters: str | None = _option(
        "--drafters", "LIST", "Drafters to measure. The first one drafts the blocks. Default: all."
    )
    temperatures: str | None = _option(
        "--temperatures", "LIST", "Temperatures to measure besides 0. none: only 0. Default: 0.8."
    )
    concurrency: str | None = _option(
        "--concurrency", "LIST", "Requests at a time to measure besides 1. none: only 1. Default: 2,4."
    )
    groups: str | None = _option(
        "--groups",
        "LIST",
        "Groups of draftd's prompts. none: only the prompts of --file. Default: all that suit the model.",
    )
    each: int | None = _option("--each", "COUNT", "Prompts of each workload class. Default: 4.")
    prompts: list[Path] | None = _option(
        "--file", "FILE", "File with more prompts, one per line; .jsonl: one chat per line. May be repeated."
    )
    repetitions: int | None = _how("--repeat", "COUNT", "How often each prompt is asked. Default: 3.")
    max_tokens: int | None = _how(
        "--max-tokens", "TOKENS", "Most tokens of an answer. Default: each prompt's own limit."
    )
    cool_down: float | None = _how("--cool-down", "SECONDS", "Pause between two requests. Default: 0.1.")
    heat_seconds: float | None = _how("--heat", "SECONDS", "Longest wait for a hot machine to cool down. Default: 300.")
    seed: int | None = _how("--seed", "NUMBER", "Seed for the order of requests and for sampled answers. Default: 0.")

    def read(self) -> dict[str, Any]:
        """Returns the given options in the types of SweepOptions. Raises OptionError, PromptError."""
        files = self.prompts or ()
        return {
            **vars(self),
            "block_lengths": parse_list("--blocks", self.block_lengths, int, "whole numbers"),
            "drafters": parse_list("--drafters", self.drafters, DrafterName, ", ".join(BUILT_IN_DRAFTERS)),
            "temperatures": parse_list("--temperatures", self.temperatures, float, "numbers"),
            "concurrency": parse_list("--concurrency", self.concurrency, int, "whole numbers"),
            "groups": parse_list("--groups", self.groups, str, "names"),
            "prompts": tuple(prompt for path in files for prompt in from_file(path)) or None,
        }


@dataclass(frozen=True)
class SoakFlags:
    """The options by the names of SoakOptions' fields."""

    duration: float | None = _option("--duration", "SECONDS", "Length of the soak. Default: 600.")
    streams: int | None = _option(
        "--streams", "COUNT", "Requests at a time. Default: 4, or fewer if the daemon decodes fewer together."
    )
    block_length: int | None = _option(
        "--block", "TOKENS", "Tokens drafted per step. 0: no drafts. Default: the daemon's most."
    )
    max_tokens: int | None = _option(
        "--max-tokens",
        "TOKENS",
        "Most tokens of an answer. Limits from an eighth of it upwards are mixed. Default: 256, or less.",
    )
    window_seconds: float | None = _option(
        "--window", "SECONDS", "Length of the windows in which acceptance and speed are shown. Default: 60."
    )
    sample_seconds: float | None = _option(
        "--every", "SECONDS", "Time between two readings of the machine. Default: 1."
    )
    seed: int | None = _option("--seed", "NUMBER", "Seed for the order of prompts. Default: 0.")


@dataclass(frozen=True)
class QualityFlags:
    """The options by the names of QualityOptions' fields."""

    block_length: int | None = _option("--block", "TOKENS", "Tokens drafted per step. Default: the daemon's most.")
    temperature: float | None = _option(
        "--temperature", "NUMBER", "Also check answers sampled at this temperature. Default: only greedy answers."
    )
    repeats: int | None = _option(
        "--repeat", "COUNT", "Sampled answers to each prompt, with --temperature. Default: 3."
    )
    seed: int | None = _option(
        "--seed", "NUMBER", "Seed for the order of requests and for sampled answers. Default: 0."
    )


@options.with_options(
    "draftd sweep",
    "draftd sweep --target 127.0.0.1:50551 --groups short_control,code --repeat 5",
    "draftd sweep --run draftd-runs/mine --json | jq .knee.block_length",
)
def sweep(flags: SweepFlags, which: runs.DaemonChoice, run: runs.Run = None, json: options.Json = False) -> None:
    """Decode the same prompts in different ways, and compare their speed.

    One option is varied at a time. Lists are separated by commas. Ctrl-C loses nothing that was measured: --run
    continues. Exits 1 if requests failed and are still missing. Figures are medians with 95 % intervals. "× AR": the
    ratio to autoregressive decoding on the same prompts. "together": tokens a second of all concurrent requests. "p95
    ms": the 95th percentile of the time between tokens. "length": mean tokens of a step with a draft.
    """
    folder = runs.measure_stage(SweepOptions, flags.read(), run, which)
    result = Sweep.read(folder)
    assert result is not None
    missing = f"{result.missing} requests are missing; continue with draftd sweep --run {folder.path}"
    _print_result(
        folder, _sweep_document(result) if json else None, lambda: _show_sweep(result), [missing] * bool(result.missing)
    )


@options.with_options(
    "draftd soak",
    "draftd soak --target 127.0.0.1:50551 --duration 3600 --streams 8",
    "draftd soak --run draftd-runs/mine --json | jq .resident.slope",
)
def soak(flags: SoakFlags, which: runs.DaemonChoice, run: runs.Run = None, json: options.Json = False) -> None:
    """Decode several requests at a time without a pause, and check whether memory grows without bound.

    Exits 1 if memory certainly grows fast enough to be used up within a week, if a request failed, or if the soak was
    stopped early. Ctrl-C loses nothing that was measured: --run continues. Growth has a 95 % interval. Growth leaves
    out the first quarter of each session, in which caches fill. With fewer than 60 readings, or less than 60 s, it is
    "too few samples". A window shows acceptance from 50 drafts on.
    """
    folder = runs.measure_stage(SoakOptions, vars(flags), run, which)
    result = soak_result(folder)
    assert result is not None
    short = f"soaked for {result.seconds:.0f} s; continue with draftd soak --run {folder.path}"
    complaints = [*(result.complaints if json else ()), *([] if result.complete else [short])]
    _print_result(folder, _soak_document(result) if json else None, lambda: _show_soak(result), complaints)
    if result.complaints:
        raise typer.Exit(1)


@options.with_options(
    "draftd quality",
    "draftd quality --target 127.0.0.1:50551 --temperature 0.8 --repeat 5",
    "draftd quality --run draftd-runs/mine --json | jq .difference",
)
def quality(flags: QualityFlags, which: runs.DaemonChoice, run: runs.Run = None, json: options.Json = False) -> None:
    """Check answers to frozen JSON and tool-call prompts, with and without drafts.

    Prompts whose answer is JSON are asked again with their schema, if the model's tokenizer supports grammars. Exits 1
    if the share that passes is more than 0.5 percentage points lower with drafts, with a schema or without; if an
    answer with a schema is not valid; if an answer is missing; if no answer passes; or if a checker fails its self-test
    on known right and wrong answers. The answers are kept in the run, and checked again whenever the run is read.
    """
    folder = runs.measure_stage(QualityOptions, vars(flags), run, which)
    result = quality_result(folder)
    assert result is not None
    _print_result(folder, _quality_document(result) if json else None, lambda: _show_quality(result), result.complaints)


def _print_result(
    folder: RunFolder, document: dict[str, Any] | None, show: Callable[[], None], complaints: Sequence[str]
) -> None:
    """Prints the `document` as JSON, or without one calls `show`. Exits 1 if there are complaints."""
    if document is not None:
        output.print_json({"run": str(folder.path)} | document)
    else:
        show()
        output.say(f"run: {folder.path}")
    for complaint in complaints:
        output.complain(complaint)
    if complaints:
        raise typer.Exit(1)


# a sweep


def parse_list(name: str, text: str | None, kind: Callable[[str], _T], allowed: str) -> tuple[_T, ...] | None:
    """Parses a list with commas; `none` is an empty one. Raises OptionError."""
    if text is None or text.strip() in ("", "none"):
        return None if text is None else ()
    try:
        return tuple(kind(part.strip()) for part in text.split(","))
    except ValueError:
        raise OptionError(name, text, f"{allowed}, with commas between; or the word none") from None


def _show_sweep(result: Sweep) -> None:
    output.print_table(_ARMS, [_arm_cells(result, arm) for arm in result.arms])
    if result.knee is not None:
        output.say(result.knee.sentence)
    if (fastest := result.fastest_drafter) is not None:
        output.say(fastest.sentence)
    for what, reason in result.left_out.items():
        output.say(f"left out: {what}: {reason}")
    for error, count in result.errors.items():
        output.say(f"failed {count} times: {error}")


def _sweep_document(result: Sweep) -> dict[str, Any]:
    gains = {arm: gain and asdict(gain) for arm, gain in result.gains.items()}
    return {
        "knee": result.knee and asdict(result.knee),
        "fastest_drafter": (fastest := result.fastest_drafter) and asdict(fastest),
        "arms": {arm.id: {"speedup": gains.get(arm)} | asdict(one) for arm, one in result.summaries.items()},
        "left_out": result.left_out,
        "errors": result.errors,
        "missing": result.missing,
    }


def _arm_cells(result: Sweep, arm: Arm) -> tuple[str, ...]:
    summary = result.summaries[arm]
    figures, failed = summary.figures, f" ({summary.errors} failed)" if summary.errors else ""
    return (
        arm.id,
        _interval(figures["decode_tokens_per_second"], "{:.0f}"),
        _interval(result.gains.get(arm), "{:.2f}"),
        _estimate(summary.total_tokens_per_second if arm.concurrency > 1 else None, "{:.0f}"),
        _estimate(figures["time_to_first_token"], "{:.1f}", 1000),
        _estimate(figures["inter_token_p95"], "{:.1f}", 1000),
        _estimate(figures["acceptance"], "{:.0%}"),
        _estimate(figures["mean_accepted_length"], "{:.2f}"),
        f"{summary.requests}{failed}",
    )


def _interval(interval: Interval | None, form: str) -> str:
    return (
        NOTHING
        if interval is None
        else f"{form} ({form}–{form})".format(interval.estimate, interval.low, interval.high)
    )


def _estimate(interval: Interval | None, form: str, factor: float = 1) -> str:
    return NOTHING if interval is None else form.format(interval.estimate * factor)


# a soak


def _show_soak(result: SoakResult) -> None:
    output.print_table(_WINDOWS, map(_window_cells, result.windows))
    output.print_fields(_soak_lines(result), 16)
    for complaint in result.complaints:
        output.say(complaint, style="bold red")


def _soak_document(result: SoakResult) -> dict[str, Any]:
    """Returns the result for JSON. Infinite `days_to_exhaustion` (memory does not certainly grow) becomes null."""
    document: dict[str, Any] = {"complete": result.complete} | asdict(result)
    if result.days_to_exhaustion is not None and math.isinf(result.days_to_exhaustion):
        document["days_to_exhaustion"] = None
    document |= {"tokens_per_second": result.tokens_per_second, "grows_without_bound": result.grows_without_bound}
    return document | {"complaints": result.complaints}


def _window_cells(window: SoakWindow) -> tuple[str, ...]:
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


def _soak_lines(result: SoakResult) -> Iterator[tuple[str, str]]:
    wanted = "" if result.complete or result.wanted_seconds is None else f" of {result.wanted_seconds:.0f}"
    sessions = f", {result.sessions} sessions" if result.sessions > 1 else ""
    few = result.too_few_samples and f"too few samples: {result.too_few_samples}"
    yield "soaked", f"{result.seconds:.0f} s{wanted}{sessions}, {result.requests} requests, {result.errors} failed"
    yield "resident set", f"{_size(result.peak_resident)} at most, {_growth(result.resident, few)}"
    yield "MLX's memory", _growth(result.mlx, few)
    yield "exhausted", few or _days(result.days_to_exhaustion)
    yield "headroom", f"{_size(result.least_headroom)} at least, over a floor of {_size(result.floor)}"
    yield "swapped in", _size(result.swap_in)
    yield "critical", _UNREADABLE if result.longest_critical is None else f"{result.longest_critical:.0f} s"
    yield "throttled", _UNREADABLE if result.throttles is None else f"{result.throttles} times"
    yield from (("failed", example) for example in result.error_examples)


def _growth(growth: MemoryGrowth | None, few: str) -> str:
    if growth is None:
        return f"growth: {few or 'cannot be told'}"
    low, high = (value * 3600 / 2**20 for value in (growth.slope.low, growth.slope.high))
    return f"grows by {low:+.0f} to {high:+.0f} MiB an hour (95 %, over {growth.seconds:.0f} s)"


def _days(days: float | None) -> str:
    if days is None:
        return "cannot be told"
    return "no growth is certain" if math.isinf(days) else f"in {days:.1f} days, at the least growth that is certain"


def _size(count: int | None) -> str:
    return _UNREADABLE if count is None else size(count)


# quality


def _show_quality(result: QualityResult) -> None:
    prompts = result.greedy.prompts
    output.print_table(_PROMPTS, map(_prompt_cells, prompts), words=True)
    _say_comparisons(result.greedy, result.sampled)
    output.say(f"{result.greedy.identical} of {len(prompts)} greedy texts are identical")
    under = result.schemas
    if under is not None and under.refused:
        output.say(f"under a schema: not measured: {under.refused}")
    elif under is not None:
        _say_comparisons(under.greedy, under.sampled, "under a schema, ")
        output.say(f"under a schema, {under.answers - len(under.invalid)} of {under.answers} answers are valid")
    for error in result.error_examples:
        output.say(f"failed: {error}")


def _say_comparisons(greedy: QualityComparison, sampled: QualityComparison | None, where: str = "") -> None:
    for result in greedy.prompts:
        for mode, way in (("autoregressive", result.autoregressive), ("speculative", result.speculative)):
            if way.complaint:
                output.say(f"{result.prompt}, {where}{mode}: {way.complaint}")
    for comparison in (greedy, sampled):
        if comparison is not None:
            output.say(where + _sentence(comparison))


def _sentence(comparison: QualityComparison) -> str:
    """Both shares, and their difference with its interval."""
    if comparison.autoregressive is None or comparison.speculative is None or comparison.difference is None:
        return f"temperature {comparison.temperature:g}: nothing to compare"
    low, high = comparison.difference.low, comparison.difference.high
    return (
        f"temperature {comparison.temperature:g}: {comparison.autoregressive:.1%} pass autoregressively,"
        f" {comparison.speculative:.1%} speculatively;"
        f" difference {comparison.difference.estimate:+.1%} ({low:+.1%} to {high:+.1%})"
    )


def _quality_document(result: QualityResult) -> dict[str, Any]:
    greedy = result.greedy
    return {
        "success": {"autoregressive": greedy.autoregressive, "speculative": greedy.speculative},
        "difference": greedy.difference and asdict(greedy.difference),
        "identical": greedy.identical,
        "schema_valid": result.schemas and result.schemas.valid_share,
        "checkers_sound": not result.faults,
        "complaints": result.complaints,
    } | asdict(result, dict_factory=_as_documented)


def _as_documented(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the JSON: the number of a prompt's answers is called `asked` there."""
    return {"asked" if name == "total" else name: value for name, value in fields}


def _prompt_cells(result: PromptResult) -> tuple[str, ...]:
    texts = NOTHING if result.identical is None else "identical" if result.identical else "differ"
    return result.prompt, _passed_text(result.autoregressive), _passed_text(result.speculative), texts


def _passed_text(way: ModeAnswers) -> str:
    if way.total == 1:
        return "passed" if way.passed else "failed"
    return f"{way.passed} of {way.total} passed" if way.total else "no answer"
