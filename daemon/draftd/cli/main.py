"""The `draftd` command: puts the commands together, and turns what goes wrong into one line."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from draftd import __version__
from draftd.cli.commands import (
    accept,
    canary,
    compare,
    dashboards,
    demo,
    depth,
    doctor,
    draft,
    events,
    flag,
    freeze,
    gate,
    generate,
    level,
    probe,
    quality,
    report,
    serve,
    soak,
    status,
    sweep,
    top,
)
from draftd.cli.failures import explain
from draftd.cli.terminal import complain


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"draftd {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serves an MLX language model over gRPC with speculative or autoregressive decoding.

    Start with [bold]draftd demo[/], or with [bold]draftd serve[/] in one terminal and
    [bold]draftd generate "What is the capital of France?"[/] in another.
    """


def build_app() -> typer.Typer:
    """All commands. Those of the flag, the level, the canaries, the draft and the dashboards are groups."""
    app = typer.Typer(
        name="draftd",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, module in (
        ("serve", serve),
        ("generate", generate),
        ("compare", compare),
        ("status", status),
        ("top", top),
        ("depth", depth),
        ("events", events),
        ("probe", probe),
        ("doctor", doctor),
        ("demo", demo),
        ("freeze", freeze),
        ("accept", accept),
        ("sweep", sweep),
        ("soak", soak),
        ("quality", quality),
        ("gate", gate),
        ("report", report),
    ):
        app.command(name)(module.command)
    app.add_typer(flag.build_app(), name="flag")
    app.add_typer(level.build_app(), name="level")
    app.add_typer(canary.build_app(), name="canary")
    app.add_typer(draft.build_app(), name="draft")
    app.add_typer(dashboards.build_app(), name="dashboards")
    return app


def main() -> None:
    """Exit codes: 0 done; 1 it failed, or what was looked for is wrong; 2 it was asked wrongly; 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows another
    # gRPC's own chatter: what it says of failed connections, the error of the call says too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        build_app()()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        failure = explain(error)
        if failure is None:
            raise
        complain(failure.message)
        sys.exit(failure.code)


if __name__ == "__main__":
    main()
