"""`draftd quality`: JSON and tool calls with and without drafts, judged by checkers that are checked themselves."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from draftd.acceptance.ticks import Stage
from draftd.cli import measuring, options, runs, terminal

_WHAT = "What to measure"


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=_WHAT, show_default=False)


def command(
    block: Annotated[
        int | None, _option("--block", "TOKENS", "Drafted a round; the daemon's own if not given.")
    ] = None,
    temperature: Annotated[
        float | None, _option("--temperature", "NUMBER", "Sampled answers besides the greedy ones; none if not given.")
    ] = None,
    repeat: Annotated[
        int | None, _option("--repeat", "COUNT", "Sampled answers to each prompt; 3 if not given.")
    ] = None,
    seed: Annotated[int | None, _option("--seed", "NUMBER", "Of orders and sampled answers; 0 if not given.")] = None,
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
    """Ask the frozen JSON and tool-call prompts with and without drafts: is the task done as often?

    Exits 1 where fewer pass with drafts than without, by more than 0.5 %; where an answer is missing; where none
    passes; and where a checker is broken: each is first held to answers that are right and to answers that are spoilt.

    What was said is kept in the run, and checked anew whenever it is looked at.

    [bold]Examples[/]

    [dim]$[/] draftd quality

    [dim]$[/] draftd quality --target 127.0.0.1:50551 --temperature 0.8 --repeat 5

    [dim]$[/] draftd quality --run draftd-runs/mine --json | jq .difference
    """
    from draftd.acceptance.quality.options import QualityOptions
    from draftd.acceptance.quality.result import quality_result
    from draftd.cli import examining  # what measures and derives is heavy, and no other command needs it

    given: dict[str, Any] = {"block_length": block, "temperature": temperature, "repeats": repeat, "seed": seed}
    QualityOptions.resumed(None, **given)  # what is asked wrongly leaves no folder behind
    which = measuring.Which(target, token, tls_ca, model, draft_model, config, tuple(assignments or ()))
    folder, which = runs.open_run(run, which)
    examining.measure(folder, which, QualityOptions.resumed(folder.plan(Stage.QUALITY), **given))
    result = quality_result(folder)
    assert result is not None
    if json:
        print(examining.to_json(folder, result))
    else:
        examining.show(folder, result)
    for complaint in result.complaints:
        terminal.complain(complaint)
    if result.complaints:
        raise typer.Exit(1)
