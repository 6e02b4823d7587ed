"""`draftd draft reload`: the draft's weights anew, while the daemon serves."""

from __future__ import annotations

from typing import Annotated

import typer

from draftd.cli import options
from draftd.cli.figures import size
from draftd.client.asking import connect


def build_app() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="The draft model of a running daemon.")
    app.callback()(lambda: None)  # without it one command alone would take the group's place
    app.command("reload")(reload)
    return app


def reload(
    new: Annotated[
        bool, typer.Option("--new", help="This is another draft: what was learnt of the old one is forgotten.")
    ] = False,
    json: options.Json = False,
    timeout: options.Patience = options.PATIENCE,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Read the draft's weights anew from where they were loaded, without a gap in service.

    Weights that cannot be read are refused with the reason, and the ones in use stay.

    A draft that was mended must be as good as it was: acceptance is compared with what was learnt before. One that is
    another on purpose is not, with --new; baselines that a file froze stay.

    [bold]Examples[/]

    [dim]$[/] draftd draft reload
    [dim]$[/] draftd draft reload --new
    """
    with connect(target, token, tls_ca) as client:
        reply = client.reload_draft(forget=new, timeout=timeout)
    if json:
        from draftd.cli.plain import as_json

        print(as_json(reply))
        return
    forgotten = "; what was learnt of the old one is forgotten" if new else ""
    print(f"{reply.draft_model}: read anew ({size(reply.draft_weight_bytes)}){forgotten}")
