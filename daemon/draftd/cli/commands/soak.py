"""`draftd soak`: continuous decoding, and what becomes of memory, acceptance and errors."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from draftd.acceptance.ticks import Stage
from draftd.cli import measuring, options, runs, terminal

_WHAT = "What to measure"


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=_WHAT, show_default=False)


def command(
    duration: Annotated[float | None, _option("--duration", "SECONDS", "For how long; 600 if not given.")] = None,
    streams: Annotated[
        int | None,
        _option("--streams", "COUNT", "Requests at a time; 4 if not given, or as many as it decodes together."),
    ] = None,
    block: Annotated[
        int | None, _option("--block", "TOKENS", "Drafted a round; the daemon's own if not given, 0: none.")
    ] = None,
    max_tokens: Annotated[
        int | None, _option("--max-tokens", "TOKENS", "Longest answer; lengths are mixed, from an eighth of it.")
    ] = None,
    window: Annotated[float | None, _option("--window", "SECONDS", "Of acceptance and speed; 60 if not given.")] = None,
    every: Annotated[
        float | None, _option("--every", "SECONDS", "Between two readings of the machine; 1 if not given.")
    ] = (None),
    seed: Annotated[int | None, _option("--seed", "NUMBER", "Of the order of prompts; 0 if not given.")] = None,
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
    """Decode without a pause, several requests at a time: does memory grow without bound, does acceptance hold?

    Exits 1 where memory grows so surely and so fast that it is exhausted within a week, where a request failed, or
    where it was stopped before its time. Ctrl-C loses nothing: the run is gone on with, and what was soaked counts.

    Growth is told with a 95 % interval after the first quarter of each session, in which caches fill; a window's
    accepted share counts from 50 drafts on.

    [bold]Examples[/]

    [dim]$[/] draftd soak

    [dim]$[/] draftd soak --target 127.0.0.1:50551 --duration 3600 --streams 8

    [dim]$[/] draftd soak --run draftd-runs/mine --json | jq .resident.slope
    """
    from draftd.acceptance.soak.options import SoakOptions
    from draftd.acceptance.soak.result import soak_result
    from draftd.cli import soaking  # what measures and derives is heavy, and no other command needs it

    given: dict[str, Any] = {
        "duration": duration,
        "streams": streams,
        "block_length": block,
        "max_tokens": max_tokens,
        "window_seconds": window,
        "sample_seconds": every,
        "seed": seed,
    }
    SoakOptions.resumed(None, **given)  # what is asked wrongly leaves no folder behind
    which = measuring.Which(target, token, tls_ca, model, draft_model, config, tuple(assignments or ()))
    folder, which = runs.open_run(run, which)
    soaking.measure(folder, which, SoakOptions.resumed(folder.plan(Stage.SOAK), **given))
    result = soak_result(folder)
    assert result is not None
    if json:
        print(soaking.to_json(folder, result))
    else:
        soaking.show(folder, result)
    for complaint in result.complaints if json else ():
        terminal.complain(complaint)
    if not result.complete:
        terminal.complain(f"soaked for {result.seconds:.0f} s; go on with draftd soak --run {folder.path}")
    if result.complaints or not result.complete:
        raise typer.Exit(1)
