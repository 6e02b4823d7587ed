"""`draftd level [get|hold|release]`: where the fallback ladder stands, and an operator's word on it."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from draftd.cli import ladder, options, terminal
from draftd.cli.figures import size
from draftd.cli.grafana import durations
from draftd.client.asking import connect
from draftd.core import FallbackLevel
from draftd.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

    from draftd.v1 import control_pb2 as pb

_ALLOWED = "a time such as 30s, 30m, 2h or 1d, at most 30d"
_INDENT = 12


class Level(enum.StrEnum):
    """What it can be held on: the daemon's levels, as it spells them."""

    FULL = FallbackLevel.FULL.label
    SHORT_BLOCK = FallbackLevel.SHORT_BLOCK.label
    LIGHT_DRAFT = FallbackLevel.LIGHT_DRAFT.label
    AUTOREGRESSIVE = FallbackLevel.AUTOREGRESSIVE.label


def build_app() -> typer.Typer:
    app = typer.Typer(rich_markup_mode="rich", invoke_without_command=True)
    app.callback()(_group)
    app.command("get")(get)
    app.command("hold")(hold)
    app.command("release")(release)
    return app


def _group(
    context: typer.Context,
    json: options.Json = False,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Show the fallback level and why it is what it is, hold it, or release it. Alone it is [bold]get[/].

    [bold]Examples[/]

    [dim]$[/] draftd level

    [dim]$[/] draftd level hold autoregressive --for 30m

    [dim]$[/] draftd level release
    """
    if context.invoked_subcommand is None:
        show(target, token, tls_ca, json=json)
        return
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            raise typer.BadParameter(f"give {option} after `{context.invoked_subcommand}`", param_hint=option)


def get(
    json: options.Json = False,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Show where the ladder stands, since when and why, what asks for another level, and what comes next.

    [bold]Examples[/]

    [dim]$[/] draftd level get

    [dim]$[/] draftd level get --json | jq .demands
    """
    show(target, token, tls_ca, json=json)


def hold(
    level: Annotated[Level, typer.Argument(metavar="LEVEL", help="full, short_block, light_draft or autoregressive.")],
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="30s, 30m, 2h, 1d … Unset: until it is released.")
    ] = None,
    json: options.Json = False,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Put the ladder on a level and keep it there, whatever asks for another one.

    It acts on the next request. Only the flag outranks a hold; it outlasts a restart of the daemon.

    [bold]Examples[/]

    [dim]$[/] draftd level hold autoregressive --for 30m

    [dim]$[/] draftd level hold full
    """
    seconds = None if for_ is None else lasting(for_)
    with connect(target, token, tls_ca) as client:
        state = client.hold_level(FallbackLevel[level.name], seconds)
    if json:
        _print_json(state)
        return
    rung = state.ladder[state.hold.rung]
    still = "" if state.rung == state.hold.rung else f"; {ladder.standing(state)} until its weights are there"
    print(f"{ladder.label(rung)}, held {ladder.held(state, _now())}{still}")
    if rung.level != level:
        terminal.complain(f"its ladder has no rung of {level}: this is the one nearest below")


def release(
    json: options.Json = False,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """End a hold. The ladder goes on from where it stands: down when something asks, up when its wait is over.

    [bold]Examples[/]

    [dim]$[/] draftd level release
    """
    with connect(target, token, tls_ca) as client:
        reply = client.release_level()
    if json:
        _print_json(reply.fallback)
        return
    print(f"{ladder.standing(reply.fallback)}, " + ("released" if reply.was_held else "nobody held it"))


def show(target: str, token: str | None, tls_ca: str | None, *, json: bool) -> None:
    with connect(target, token, tls_ca) as client:
        state = client.level()
    if json:
        _print_json(state)
        return
    out, now = terminal.stdout(), _now()
    for name, value in lines(state, now):
        out.print(f"[bold]{name:<{_INDENT - 1}}[/]", end=" ")
        out.print(value, markup=False, soft_wrap=True)
    _draw(out, state)


def lines(state: pb.FallbackState, now: datetime) -> list[tuple[str, str]]:
    """Name and value; a name that is empty belongs to the one above."""
    made = [("level", f"{ladder.standing(state)} ({ladder.place(state)})")]
    if state.cause:
        made.append(("since", f"{ladder.ago(ladder.moment(state.since), now)}: {state.cause}"))
    if held := ladder.held(state, now):
        made.append(("held", held))
    asked = [ladder.demand(one) for one in state.demands] or ["nothing"]
    made += [("asked" if not i else "", text) for i, text in enumerate(asked)]
    made += [("alerts" if not i else "", ladder.lease(one, now)) for i, one in enumerate(state.leases)]
    if outlook := ladder.outlook(state, now):
        made.append(("next", outlook))
    if state.relapses:
        made.append(("relapses", str(state.relapses)))
    absent = sorted(state.absent_drafters.items())
    made += [("absent" if not i else "", f"{drafter}: {why}") for i, (drafter, why) in enumerate(absent)]
    made.append(("in memory", f"{', '.join(state.loaded_drafters) or 'no drafter'} ({size(state.draft_weight_bytes)})"))
    made.append(("kept in", state.state_file or "nothing: a restart begins at the top"))
    return made


def lasting(text: str) -> float:
    """Seconds. Raises InvalidRequest where it is no time, or none at all."""
    try:
        seconds = durations.seconds(text.strip())
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 30 * 86_400:
        raise InvalidRequest("--for", text, _ALLOWED)
    return seconds


def _draw(out: Console, state: pb.FallbackState) -> None:
    """The ladder from the top, with a mark where it stands."""
    for number, rung in enumerate(state.ladder):
        here = number == state.rung
        name = "ladder" if not number else ""
        what = f"up to {rung.max_draft_tokens} from {rung.drafter}" if rung.drafter else "no drafts"
        out.print(f"[bold]{name:<{_INDENT - 1}}[/]", end=" ")
        out.print(f"{'▸' if here else ' '} {rung.level:<15} {what}", markup=False, style="bold" if here else "dim")


def _print_json(state: pb.FallbackState) -> None:
    from draftd.cli.plain import as_json

    print(as_json(state))


def _now() -> datetime:
    return datetime.now().astimezone()
