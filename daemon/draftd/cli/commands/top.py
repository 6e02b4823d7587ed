"""`draftd top`: a running daemon on one screen, as it goes."""

from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftd.cli import options, output

_PICTURE = (112, 31)  # columns and lines, where there is no terminal that says


@options.with_options("draftd top", "draftd top --once --interval 5", "draftd top --json | jq .now.tokens_per_second")
def command(
    daemon: options.Daemon,
    once: Annotated[bool, typer.Option("--once", help="One screen, after one interval; then end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, max=60.0, help="Seconds between two looks.")
    ] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="One look as JSON instead.")] = False,
    save: Annotated[Path | None, typer.Option("--save", help="Keep the last screen as a picture (.svg).")] = None,
) -> None:
    """Watch a running daemon: throughput, acceptance, depth, level, queue, memory, heat. It needs no collector.

    [bold]Keys[/]  f turns the flag on or off, p pauses, q quits. Into a pipe it is --once.
    """
    from draftd.cli.top import once as one
    from draftd.cli.top.live import watch
    from draftd.cli.top.screen import screen

    out = output.stdout()
    live = out.is_terminal and not out.is_dumb_terminal
    if live and not once and not json:
        view = watch(daemon.connect, daemon.target, interval, out)
    else:
        with daemon.connect() as client:
            view = one.look(client.status, daemon.target, interval)
        now = datetime.now().astimezone()
        if json:
            print(one.as_json(view))
        elif live:
            height = max(out.height - 1, 1)  # the prompt comes back below it
            out.print(screen(view, out.width, height, now, keys=False), height=height)
        else:
            print("\n".join(one.lines(view, now)))
    if save is not None:
        width, height = out.size if live else _PICTURE
        paper = Console(
            file=io.StringIO(), record=True, width=width, height=height, force_terminal=True, color_system="truecolor"
        )
        paper.print(screen(view, width, height, datetime.now().astimezone()), height=height, end="")
        output.save_picture(save, paper.export_svg(title="draftd top"))
