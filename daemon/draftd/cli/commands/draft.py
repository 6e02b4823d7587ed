"""`draftd draft reload`: the draft's weights anew, while the daemon serves."""

from __future__ import annotations

import typer

from draftd.cli import options
from draftd.cli.asking import connect
from draftd.cli.figures import size


def build_app() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="The draft model of a running daemon.")
    app.callback()(lambda: None)  # without it one command alone would take the group's place
    app.command("reload")(reload)
    return app


def reload(
    json: options.Json = False,
    timeout: options.Patience = options.PATIENCE,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Read the draft's weights anew from where they were loaded, without a gap in service.

    Weights that cannot be read are refused with the reason, and the ones in use stay.

    [bold]Examples[/]

    [dim]$[/] draftd draft reload
    """
    with connect(target, token, tls_ca) as client:
        reply = client.reload_draft(timeout=timeout)
    if json:
        from draftd.cli.plain import as_json

        print(as_json(reply))
        return
    print(f"{reply.draft_model}: read anew ({size(reply.draft_weight_bytes)})")
