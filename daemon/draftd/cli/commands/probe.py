"""`draftd probe`: tries the rung above the present one out, now."""

from __future__ import annotations

import typer

from draftd.cli import ladder, options, terminal
from draftd.cli.figures import percent, times
from draftd.client.asking import connect


def command(
    json: options.Json = False,
    timeout: options.Patience = options.PATIENCE,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Decode a few prompts as the rung above would, and say whether the daemon may step up to it.

    The daemon does so by itself before each step up. A rung whose drafter was found wanting is passed over for one
    further up. Exit code 1 unless the verdict is good.

    [bold]Examples[/]

    [dim]$[/] draftd probe

    [dim]$[/] draftd probe --json | jq .speedup
    """
    with connect(target, token, tls_ca) as client:
        reply = client.probe(timeout=timeout)
    if json:
        from draftd.cli.plain import as_json

        print(as_json(reply))
    else:
        out = terminal.stdout()
        good = reply.verdict == "good"
        rows = [
            ("tried", ladder.label(reply.rung), ""),
            ("verdict", reply.verdict.replace("_", " "), "green" if good else "bold red"),
            ("because", reply.reason, ""),
            ("acceptance", percent(reply.acceptance if reply.HasField("acceptance") else None), ""),
            ("speed-up", times(reply.speedup if reply.HasField("speedup") else None), ""),
            ("took", f"{reply.took.ToTimedelta().total_seconds():.1f} s", ""),
        ]
        for name, value, style in rows:
            out.print(f"[bold]{name:<11}[/]", end=" ")
            out.print(value, markup=False, soft_wrap=True, style=style)
    if reply.verdict != "good":
        raise typer.Exit(1)
