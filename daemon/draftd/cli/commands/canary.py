"""`draftd canary run`: the quality canaries, both ways, now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from draftd.cli import options, terminal
from draftd.cli.figures import percent
from draftd.client.asking import connect

if TYPE_CHECKING:
    from draftd.v1 import control_pb2 as pb


def build_app() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        help="Quality canaries: a frozen set of prompts with checks, decoded both ways.",
    )
    app.callback()(lambda: None)  # without it one command alone would take the group's place
    app.command("run")(run)
    return app


def run(
    json: options.Json = False,
    timeout: options.Patience = options.PATIENCE,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Run the quality canaries now: each prompt autoregressively and speculatively, each text checked and compared.

    The daemon does so on a schedule too; a bad run steps it down. Exit code 1 unless the verdict is good.

    [bold]Examples[/]

    [dim]$[/] draftd canary run

    [dim]$[/] draftd canary run --json | jq '.results[] | select(.diverged)'
    """
    with connect(target, token, tls_ca) as client:
        reply = client.canaries(timeout=timeout)
    if json:
        from draftd.cli.plain import as_json

        print(as_json(reply))
    else:
        out = terminal.stdout()
        if reply.results:
            drawn = terminal.table(out, ("canary", "autoregressive", "speculative", "texts"), map(row, reply.results))
            for column in drawn.columns:
                column.justify, column.no_wrap = "left", True  # words, all of them
            out.print(drawn)
        for result in reply.results:
            if result.complaint:
                out.print(f"{result.id}: {result.complaint}", markup=False, soft_wrap=True)
        good = reply.verdict == "good"
        out.print(reply.verdict, style="green" if good else "bold red", end="")
        out.print(f": {summary(reply)}", markup=False, soft_wrap=True)
    if reply.verdict != "good":
        raise typer.Exit(1)


def row(result: pb.CanaryResult) -> tuple[str, str, str, str]:
    texts = "identical"
    if result.diverged:
        gap = f", gap {result.logit_gap:.3g}" if result.HasField("logit_gap") else ""
        texts = f"differ at {result.diverged_at}{gap}" if result.HasField("diverged_at") else "differ"
    return (result.id, _mark(result.passed_autoregressive), _mark(result.passed_speculative), texts)


def summary(reply: pb.RunCanariesResponse) -> str:
    took = f"{reply.took.ToTimedelta().total_seconds():.1f} s"
    if not reply.results:
        return f"{reply.reason} ({took})"
    scores = f"{percent(reply.score_autoregressive)} autoregressive, {percent(reply.score_speculative)} speculative"
    differ = sum(result.diverged for result in reply.results)
    return f"{reply.reason} ({len(reply.results)} canaries, {scores}, {differ} differ, {took})"


def _mark(passed: bool) -> str:
    return "passed" if passed else "failed"
