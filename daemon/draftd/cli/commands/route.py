"""`draftd route`: which way a request would go now, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from draftd.cli import options, output
from draftd.cli.figures import NOTHING, rate
from draftd.client.client import Ask
from draftd.core import WorkloadClass
from draftd.planning.prices import money
from draftd.protocol import plain

_COLUMNS = ("way", "class", "seconds", "load", "queue", "prefill", "decode", "trips", "tokens/s", "cost", "", "why")


@options.with_options(
    'draftd route "What is the capital of France?"',
    'draftd route "Prove that there are infinitely many primes." --quality professional --explain',
    'draftd route "Write a sorting function." -w code --max-seconds 5 --max-cost 0.001 --json',
)
def command(
    daemon: options.DaemonOptions,
    routing: options.RouteOptions,
    prompt: Annotated[list[str], typer.Argument(help="Prompt. Several words are joined.")],
    max_tokens: options.MaxTokens = None,
    workload: options.Workload = WorkloadClass.UNSPECIFIED,
    caller: options.Caller = "",
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show the estimated time and cost of each strategy.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show where a request would be decoded (locally, remotely or by both together), and why. Nothing is decoded.

    Seconds are an estimate for the complete answer. * marks a throughput measured with recent answers; others are
    computed from the costs of steps. Exits 1 if the request would be refused.
    """
    text = " ".join(prompt)
    with daemon.connect() as client:
        chat = client.model().chat_template
        ask = Ask(
            messages=(("user", text),) if chat else None,
            prompt=None if chat else text,
            max_tokens=max_tokens,
            workload=workload,
            caller=caller,
            **routing.ask_arguments(),
        )
        route = plain(client.route(ask.message()))
    if json:
        output.print_json(route)
    else:
        if explain:
            tokens = f"{route['prompt_tokens']} tokens of prompt, about {route['expected_tokens']} of answer"
            output.say(f"{tokens}; {route['quality']} or better")
            output.print_table(_COLUMNS, [_row(row, route["currency"]) for row in route["rows"]])
        output.say(f"refused: {route['refusal']}" if route["refusal"] else route["reason"])
    if route["refusal"]:
        raise typer.Exit(1)


def _row(row: Mapping[str, Any], currency: str) -> tuple[str, ...]:
    seconds = (row[name] for name in ("total", "load", "queue", "prefill", "decode", "round_trips"))
    measured = "*" if row["measured"] else ""
    return (
        row["strategy"],
        row["quality"],
        *(NOTHING if value is None else f"{value:.3g}" for value in seconds),
        NOTHING if row["total"] is None else f"{rate(row['tokens_per_second'])}{measured}",
        NOTHING if row["cost"] is None else money(currency, row["cost"]),
        "✓" if row["chosen"] else "",
        row["why"],
    )
