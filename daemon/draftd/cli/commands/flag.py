"""`draftd flag get|set`: the feature flag that turns speculation on and off while the daemon runs."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from draftd.cli import options, terminal
from draftd.client.asking import connect
from draftd.core import WorkloadClass


class Variant(enum.StrEnum):
    """What the flag can be set to."""

    ON = "on"
    OFF = "off"


def build_app() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        help="Read or set the feature flag [bold]speculative-decoding[/]. It acts on the next request.",
    )
    app.command("get")(get)
    app.command("set")(set_)
    return app


def get(
    workload: Annotated[
        WorkloadClass, typer.Option("--workload", "-w", help="Evaluate for this workload class.")
    ] = WorkloadClass.UNSPECIFIED,
    caller: Annotated[str, typer.Option("--caller", help="Evaluate for this caller.")] = "",
    json: options.Json = False,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Show the flag, and what it says for a given workload and caller.

    [bold]Examples[/]

    [dim]$[/] draftd flag get

    [dim]$[/] draftd flag get --workload prose --caller nightly-batch
    """
    with connect(target, token, tls_ca) as client:
        reply = client.get_flag(workload=workload, caller=caller)
    if json:
        from draftd.cli.plain import as_json

        print(as_json(reply))
        return
    out = terminal.stdout()
    state = reply.flag
    default = state.default_variant or "decided by the provider"
    rows = [
        ("flag", state.key),
        ("says", f"{reply.evaluation.variant} ({reply.evaluation.reason.lower().replace('_', ' ')})"),
        ("default", default),
        ("variants", ", ".join(state.variants)),
        ("provider", f"{state.provider}: {state.source}" + ("" if state.writable else " (read-only)")),
    ]
    for name, value in rows:
        out.print(f"[bold]{name:<9}[/]", end=" ")
        out.print(value, markup=False, soft_wrap=True)


def set_(
    variant: Annotated[Variant, typer.Argument(help="on or off.")],
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Set the flag's default variant. Targeting rules in its file still win over it.

    [bold]Examples[/]

    [dim]$[/] draftd flag set off

    [dim]$[/] draftd flag set on
    """
    with connect(target, token, tls_ca) as client:
        reply = client.set_flag(variant.value)
    now, before = reply.flag.default_variant, reply.previous_variant
    print(f"{reply.flag.key}: {now} (was {before})" if now != before else f"{reply.flag.key}: {now} already")
