"""`draftd top`: shows a running daemon live on one screen."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from draftd.cli import figures, options, output
from draftd.cli.top import rows
from draftd.cli.top.rates import StatusHistory, StatusSnapshot
from draftd.client.client import DraftdClient
from draftd.protocol import plain

_PICTURE = (112, 36)  # columns and lines of a picture that is taken without a screen


@options.with_options("draftd top", "draftd top --once --interval 5", "draftd top --json | jq .now.tokens_per_second")
def command(
    daemon: options.DaemonOptions,
    once: Annotated[
        bool, typer.Option("--once", help="Print one reading as text after one interval, and exit.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, max=60.0, help="Seconds between two readings.")
    ] = 1.0,
    json: Annotated[
        bool, typer.Option("--json", help="Print one reading as JSON after one interval, and exit.")
    ] = False,
    save: options.Picture = None,
) -> None:
    """Watch a running daemon: throughput, acceptance, depth, level, queue, memory, heat. No collector is needed.

    [bold]Keys[/] f turns speculative decoding on or off, after y confirms; p pauses, q quits, ↑ and ↓ scroll. In a pipe
    the command works as with --once.
    """
    out = output.stdout()
    screen = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)) and not out.is_dumb_terminal
    if screen and not once and not json:
        picture = _watch(daemon, interval)
    else:
        with daemon.connect() as client:
            seen = StatusHistory(daemon.target, take_snapshot(client))
            time.sleep(interval)
            seen.add(take_snapshot(client))
        if json:
            output.print_json(document(seen))
        else:
            out.print(rows.state(seen), soft_wrap=True)
            output.print_fields(fields(seen, datetime.now().astimezone()), 16)
        picture = _drawn(seen, interval) if save is not None else ""
    if save is not None:
        output.save_picture(save, picture)


def take_snapshot(client: DraftdClient) -> StatusSnapshot:
    began = time.monotonic()
    status = client.status()
    return StatusSnapshot((began + time.monotonic()) / 2, status)


def document(seen: StatusHistory) -> dict[str, Any]:
    """Returns the JSON document. `now`: rates between the two snapshots, null if the daemon restarted; `whole`: since
    it started."""
    return {
        "target": seen.target,
        "now": dataclasses.asdict(seen.now) if seen.now is not None else None,
        "whole": dataclasses.asdict(seen.whole),
        "status": plain(seen.status),
    }


def fields(seen: StatusHistory, now: datetime) -> Iterator[tuple[str, str | Text]]:
    """Yields the screen's contents as names and values."""
    rate = seen.now.tokens_per_second if seen.now is not None else None
    yield "tokens/s", f"{figures.rate(rate)} over {rows.period(seen)}"
    yield from (rows.comparison_row(seen, one) for one in rows.speculation(seen))
    yield from ((f"accepted at {one.name}", rows.comparison_row(seen, one)[1]) for one in rows.positions(seen))
    yield from (*rows.serving(seen, now), *rows.ranks(seen), *rows.remote(seen))
    yield from (*rows.machine(seen), *rows.transitions(seen, now))


def _watch(daemon: options.DaemonOptions, interval: float) -> str:
    """Shows the screen until it is quit; returns the last one as SVG. Raises the error of the first status request."""
    from draftd.cli.top.app import TopApp  # imports Textual, which --once does not need

    with daemon.connect() as client:
        app = TopApp(client, StatusHistory(daemon.target, take_snapshot(client)), interval)
        app.run()
    if app.return_code:
        raise typer.Exit(app.return_code)
    return app.picture


def _drawn(seen: StatusHistory, interval: float) -> str:
    """Draws the screen without a terminal; returns it as SVG."""
    from textual.pilot import Pilot

    from draftd.cli.top.app import TopApp

    app = TopApp(None, seen, interval)

    async def take(pilot: Pilot[object]) -> None:
        await pilot.pause()
        await app.action_quit()

    app.run(headless=True, size=_PICTURE, auto_pilot=take)
    return app.picture
