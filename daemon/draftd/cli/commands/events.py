"""`draftd events`: what changed of flag and level, when, and why; those before a restart included."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from draftd.cli import ladder, options, terminal
from draftd.cli.figures import NOTHING
from draftd.client.asking import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from draftd.client.client import DraftdClient
    from draftd.v1 import control_pb2 as pb


def command(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="The latest so many.")] = 20,
    since: Annotated[
        int, typer.Option("--since", metavar="NUMBER", min=0, help="Only those after the event of this number.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON for each instead.")] = False,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Show what changed of the feature flag and the fallback level, oldest first: when, from what to what, and why.

    [bold]Examples[/]

    [dim]$[/] draftd events

    [dim]$[/] draftd events --follow --since 41

    [dim]$[/] draftd events --limit 100 --json | jq 'select(.subject == "level")'
    """
    show = _json if json else _lines()
    with connect(target, token, tls_ca) as client:
        last = since
        for one in client.transitions(limit, after=since):
            show(one)
            last = one.number
        if follow:
            for one in _following(client, last):
                show(one)
        elif not last and not json:
            terminal.stderr().print("nothing has changed yet", style="dim")


def line(one: pb.Transition, now: datetime) -> Text:
    """One event for people, on one line."""
    at = ladder.clock(ladder.moment(one.at), now)
    why = one.cause
    if one.evidence and one.evidence not in one.cause:
        why = f"{why} ({one.evidence})" if why else one.evidence
    return Text.assemble(
        (f"{one.number:>4}", "dim"),
        f"  {at}  ",
        (f"{one.subject:<5}", "dim"),
        "  " if one.previous == one.current else f"  {one.previous or NOTHING} → ",  # a word on it moved nothing
        (one.current or NOTHING, "bold"),
        f"  {why}" if why else "",
    )


def _following(client: DraftdClient, last: int) -> Iterator[pb.Transition]:
    """What happens after the number `last`. A terminal that was stopped and fell behind goes on where it was."""
    from draftd.client.client import CallError

    while True:
        try:
            for one in client.watch(last):
                yield one
                last = one.number
        except CallError as error:
            if error.code.name != "ABORTED":
                raise


def _lines() -> Callable[[pb.Transition], None]:
    out = terminal.stdout()
    return lambda one: out.print(line(one, datetime.now().astimezone()), soft_wrap=True)


def _json(one: pb.Transition) -> None:
    from draftd.cli.plain import as_json

    print(as_json(one), flush=True)
