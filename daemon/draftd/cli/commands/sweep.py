"""`draftd sweep`: every way of decoding on the same prompts in turn, and how long a block pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import typer

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.options import OptionError, SweepOptions
from draftd.acceptance.statistics import Interval
from draftd.acceptance.sweep.result import Sweep
from draftd.acceptance.ticks import Arm
from draftd.cli import options, output, runs
from draftd.cli.figures import NOTHING
from draftd.client.prompts import from_file
from draftd.core import BUILT_IN_DRAFTERS, DrafterName

_HOW = "How to measure"
_COLUMNS = ("arm", "tokens/s", "× AR", "together", "TTFT ms", "p95 ms", "accepted", "length", "requests")
_T = TypeVar("_T")
_option = options.measured


@dataclass(frozen=True)
class Asked:
    """The options by the names of SweepOptions' fields."""

    block_lengths: str | None = _option("--blocks", "LIST", "Tokens drafted at a time; 0,2,3,4,6 if not given.")
    block_length: int | None = _option("--base", "TOKENS", "Block length while other options change; 4 if not given.")
    drafters: str | None = _option("--drafters", "LIST", "Drafters; blocks are swept with the first. Default: all.")
    temperatures: str | None = _option("--temperatures", "LIST", "Besides 0; 0.8 if not given. none: no other.")
    concurrency: str | None = _option("--concurrency", "LIST", "Requests at a time besides 1; 2,4 if not given.")
    groups: str | None = _option("--groups", "LIST", "Of the package's prompts; all if not given. none: only --file's.")
    each: int | None = _option("--each", "COUNT", "Prompts of each workload class; 4 if not given.")
    prompts: list[Path] | None = _option(  # noqa: RUF009  a field, like the others
        "--file", "FILE", "Also your own prompts: .jsonl, or one a line."
    )
    repetitions: int | None = _option("--repeat", "COUNT", "How often each is asked; 3 if not given.", _HOW)
    max_tokens: int | None = _option("--max-tokens", "TOKENS", "Longest answer; each prompt's own if not given.", _HOW)
    cool_down: float | None = _option("--cool-down", "SECONDS", "Pause between requests; 0.1 if not given.", _HOW)
    heat_seconds: float | None = _option("--heat", "SECONDS", "Longest wait for a hot machine; 300 if not given.", _HOW)
    seed: int | None = _option("--seed", "NUMBER", "Of orders and sampled answers; 0 if not given.", _HOW)

    def read(self) -> dict[str, Any]:
        """What was given, each in its own type. Raises OptionError, PromptError."""
        lists: dict[str, tuple[str, Callable[[str], Any], str]] = {
            "block_lengths": ("--blocks", int, "whole numbers"),
            "drafters": ("--drafters", DrafterName, ", ".join(BUILT_IN_DRAFTERS)),
            "temperatures": ("--temperatures", float, "numbers"),
            "concurrency": ("--concurrency", int, "whole numbers"),
            "groups": ("--groups", str, "names"),
        }
        made = dict(vars(self))
        for name, (option, kind, allowed) in lists.items():
            if made[name] is not None:
                made[name] = listed(option, made[name], kind, allowed)
        if files := made.pop("prompts", None):
            made["prompts"] = tuple(prompt for path in files for prompt in from_file(path))
        return made


@options.with_options(
    "draftd sweep",
    "draftd sweep --target 127.0.0.1:50551 --groups short_control,code --repeat 5",
    "draftd sweep --run draftd-runs/mine --json | jq .knee.block_length",
)
def command(asked: Asked, which: runs.Which, run: runs.Run = None, json: options.Json = False) -> None:
    """Decode the same prompts in different ways: block lengths, drafters, temperatures, requests at a time.

    One option is changed at a time. Ctrl-C loses nothing that was measured: --run continues, with the same options.
    Exits 1 if requests failed and are still missing.

    Figures are medians with 95 % intervals. × AR is the ratio to autoregressive decoding on the same prompts, together
    the tokens a second of all concurrent requests, p95 the time between tokens, length the tokens for each draft.
    """
    folder = runs.measure_stage(SweepOptions, asked.read(), run, which)
    result = Sweep.read(folder)
    assert result is not None
    if json:
        output.print_json(document(folder, result))
    else:
        show(folder, result)
    if result.missing:
        output.complain(f"{result.missing} requests are missing; continue with draftd sweep --run {folder.path}")
        raise typer.Exit(1)


def listed(name: str, text: str, kind: Callable[[str], _T], allowed: str) -> tuple[_T, ...]:
    """A list with commas; `none` is an empty one. Raises OptionError."""
    if text.strip() in ("", "none"):
        return ()
    try:
        return tuple(kind(part.strip()) for part in text.split(","))
    except ValueError:
        raise OptionError(name, text, f"{allowed}, with commas between; or none") from None


def show(folder: RunFolder, result: Sweep) -> None:
    """On the terminal."""
    output.print_table(_COLUMNS, [_cells(result, arm) for arm in result.arms])
    if result.knee is not None:
        output.say(result.knee.sentence)
    for what, reason in result.left_out.items():
        output.say(f"left out: {what}: {reason}")
    for error, count in result.errors.items():
        output.say(f"failed {count} times: {error}")
    output.say(f"run: {folder.path}")


def document(folder: RunFolder, result: Sweep) -> dict[str, Any]:
    """For JSON."""
    gains = {arm: gain and asdict(gain) for arm, gain in result.gains.items()}
    return {
        "run": str(folder.path),
        "knee": result.knee and asdict(result.knee),
        "arms": {arm.id: {"speedup": gains.get(arm)} | asdict(one) for arm, one in result.summaries.items()},
        "left_out": result.left_out,
        "errors": result.errors,
        "missing": result.missing,
    }


def _cells(result: Sweep, arm: Arm) -> tuple[str, ...]:
    summary = result.summaries[arm]
    found, failed = summary.figures, f" ({summary.errors} failed)" if summary.errors else ""
    return (
        arm.id,
        _interval(found["decode_tokens_per_second"], "{:.0f}"),
        _interval(result.gains.get(arm), "{:.2f}"),
        _estimate(summary.total_tokens_per_second if arm.concurrency > 1 else None, "{:.0f}"),
        _estimate(found["time_to_first_token"], "{:.1f}", 1000),
        _estimate(found["inter_token_p95"], "{:.1f}", 1000),
        _estimate(found["acceptance"], "{:.0%}"),
        _estimate(found["mean_accepted_length"], "{:.2f}"),
        f"{summary.requests}{failed}",
    )


def _interval(found: Interval | None, form: str) -> str:
    return NOTHING if found is None else f"{form} ({form}–{form})".format(found.estimate, found.low, found.high)


def _estimate(found: Interval | None, form: str, factor: float = 1) -> str:
    return NOTHING if found is None else form.format(found.estimate * factor)
