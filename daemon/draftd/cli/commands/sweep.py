"""`draftd sweep`: every way of decoding on the same prompts in turn, and how long a block pays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from draftd.acceptance.asked import OptionError
from draftd.acceptance.sweep.options import SweepOptions
from draftd.acceptance.ticks import Stage
from draftd.cli import measuring, options, runs, terminal
from draftd.client.prompts import from_file
from draftd.core import DrafterKind

_WHAT = "What to measure"
_HOW = "How to measure"
_T = TypeVar("_T")


def _option(name: str, metavar: str, text: str, panel: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel, show_default=False)


def command(
    blocks: Annotated[
        str | None, _option("--blocks", "LIST", "Tokens drafted a round; 0,2,3,4,6 if not given.", _WHAT)
    ] = None,
    base: Annotated[
        int | None, _option("--base", "TOKENS", "Block length while other knobs are turned; 4 if not given.", _WHAT)
    ] = None,
    drafters: Annotated[
        str | None, _option("--drafters", "LIST", "The first is swept; all that there are if not given.", _WHAT)
    ] = None,
    temperatures: Annotated[
        str | None, _option("--temperatures", "LIST", "Besides 0; 0.8 if not given. none: no other.", _WHAT)
    ] = None,
    concurrency: Annotated[
        str | None, _option("--concurrency", "LIST", "Requests at a time besides 1; 2,4 if not given.", _WHAT)
    ] = None,
    groups: Annotated[
        str | None,
        _option("--groups", "LIST", "Of the package's prompts; all if not given. none: only those of --file.", _WHAT),
    ] = None,
    each: Annotated[
        int | None, _option("--each", "COUNT", "Prompts of each workload class; 4 if not given.", _WHAT)
    ] = None,
    file: Annotated[
        list[Path] | None, _option("--file", "FILE", "Prompts of your own besides: .jsonl, or one a line.", _WHAT)
    ] = None,
    repeat: Annotated[int | None, _option("--repeat", "COUNT", "Times each is asked; 3 if not given.", _HOW)] = None,
    max_tokens: Annotated[
        int | None, _option("--max-tokens", "TOKENS", "Longest answer; each prompt's own if not given.", _HOW)
    ] = None,
    cool_down: Annotated[
        float | None, _option("--cool-down", "SECONDS", "Pause between requests; 0.1 if not given.", _HOW)
    ] = None,
    heat: Annotated[
        float | None, _option("--heat", "SECONDS", "Longest wait for a hot machine; 300 if not given.", _HOW)
    ] = None,
    seed: Annotated[int | None, _option("--seed", "NUMBER", "Of orders and sampled answers; 0 if not given.", _HOW)] = (
        None
    ),
    run: runs.Run = None,
    json: options.Json = False,
    target: measuring.Target = None,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
    model: measuring.Model = None,
    draft_model: measuring.DraftModel = None,
    config: options.Config = None,
    assignments: options.Assignments = None,
) -> None:
    """Decode the same prompts in every way, in turn: block lengths, drafters, temperatures, requests at a time.

    One knob is turned at a time. Ctrl-C loses nothing that was measured: the same run is gone on with, and what is not
    given is then as it was. Exits 1 where requests have failed and are still missing.

    Figures are medians with 95 % intervals, × AR is over autoregressive decoding on the same prompts, together the
    tokens a second of all requests at a time, p95 is between tokens, length the tokens that a draft yields.

    [bold]Examples[/]

    [dim]$[/] draftd sweep

    [dim]$[/] draftd sweep --target 127.0.0.1:50551 --groups short_control,code --repeat 5

    [dim]$[/] draftd sweep --run draftd-runs/mine --json | jq .knee.block_length
    """
    from draftd.cli import sweeping  # what measures and derives is heavy, and no other command needs it

    given: dict[str, Any] = {
        "block_lengths": listed("--blocks", blocks, int, "whole numbers"),
        "block_length": base,
        "drafters": listed("--drafters", drafters, DrafterKind, ", ".join(DrafterKind)),
        "temperatures": listed("--temperatures", temperatures, float, "numbers"),
        "concurrency": listed("--concurrency", concurrency, int, "whole numbers"),
        "groups": listed("--groups", groups, str, "names"),
        "each": each,
        "prompts": tuple(prompt for path in file for prompt in from_file(path)) if file else None,
        "repetitions": repeat,
        "max_tokens": max_tokens,
        "cool_down": cool_down,
        "heat_seconds": heat,
        "seed": seed,
    }
    SweepOptions.resumed(None, **given)  # what is asked wrongly leaves no folder behind
    which = measuring.Which(target, token, tls_ca, model, draft_model, config, tuple(assignments or ()))
    folder, which = runs.open_run(run, which)
    chosen = SweepOptions.resumed(folder.plan(Stage.SWEEP), **given)
    sweeping.measure(folder, which, chosen)
    result = sweeping.sweep_result(folder)
    assert result is not None
    if json:
        print(sweeping.to_json(folder, result))
    else:
        sweeping.show(folder, result)
    if result.missing:
        terminal.complain(f"{result.missing} requests are missing; go on with draftd sweep --run {folder.path}")
        raise typer.Exit(1)


def listed(name: str, text: str | None, kind: Callable[[str], _T], allowed: str) -> tuple[_T, ...] | None:
    """A list with commas; `none` is an empty one. Raises OptionError."""
    if text is None:
        return None
    if text.strip() in ("", "none"):
        return ()
    try:
        return tuple(kind(part.strip()) for part in text.split(","))
    except ValueError:
        raise OptionError(name, text, f"{allowed}, with commas between; or none") from None
