"""`draftd top`: a running daemon on one screen, as it goes."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from draftd.cli import options, terminal
from draftd.client.asking import connect

_PICTURE = (112, 31)  # columns and lines, where there is no terminal that says


def command(
    once: Annotated[bool, typer.Option("--once", help="One screen, after one interval; then end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, max=60.0, help="Seconds between two looks.")
    ] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="One look as JSON instead.")] = False,
    save: Annotated[Path | None, typer.Option("--save", help="Keep the last screen as a picture (.svg).")] = None,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Watch a running daemon: throughput, acceptance, depth, level, queue, memory, heat. It needs no collector.

    [bold]Keys[/]  f turns the flag on or off, p pauses, q quits. Into a pipe it is --once.

    [bold]Examples[/]

    [dim]$[/] draftd top

    [dim]$[/] draftd top --once --interval 5

    [dim]$[/] draftd top --json | jq .now.tokens_per_second
    """
    from draftd.cli.top import once as one
    from draftd.cli.top.live import watch
    from draftd.cli.top.screen import screen

    out = terminal.stdout()
    live = out.is_terminal and not out.is_dumb_terminal
    if live and not once and not json:
        view = watch(lambda: connect(target, token, tls_ca), target, interval, out)
    else:
        with connect(target, token, tls_ca) as client:
            view = one.look(client.status, target, interval)
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
        paper = terminal.recording(width, height)
        paper.print(screen(view, width, height, datetime.now().astimezone()), height=height, end="")
        terminal.save_picture(paper, save, "draftd top")
