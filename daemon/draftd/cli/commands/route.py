"""`draftd route`: which way a request would go now, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from draftd.cli import options, output
from draftd.cli.figures import NOTHING, rate
from draftd.client.client import Ask, message_of
from draftd.core import WorkloadClass
from draftd.planning.prices import money
from draftd.protocol import enum_name
from draftd.v1 import inference_pb2 as pb

_COLUMNS = ("way", "class", "seconds", "load", "queue", "prefill", "decode", "trips", "tokens/s", "cost", "", "why")


@options.with_options(
    'draftd route "What is the capital of France?"',
    'draftd route "Prove that there are infinitely many primes." --quality professional --explain',
    'draftd route "Write a sorting function." -w code --max-seconds 5 --max-cost 0.001 --json',
)
def command(
    daemon: options.Daemon,
    routing: options.Routing,
    prompt: Annotated[list[str], typer.Argument(help="The prompt.")],
    max_tokens: options.MaxTokens = None,
    workload: options.Workload = WorkloadClass.UNSPECIFIED,
    caller: options.Caller = "",
    explain: Annotated[bool, typer.Option("--explain", help="Show what each way would take and cost.")] = False,
    json: options.Json = False,
) -> None:
    """Say which way a request would go, local, remote or both together, and why. Nothing is decoded.

    Seconds are estimated to the complete answer, from live measurements; * marks a throughput that was measured
    recently.
    Exits 1 if the request would be refused.
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
            **routing.asked(),
        )
        found = client.route(message_of(**vars(ask)))
    if json:
        output.print_json(found)
    else:
        if explain:
            tokens = f"{found.prompt_tokens} tokens of prompt, about {found.expected_tokens} of answer"
            output.say(f"{tokens}; {_name(pb.QualityClass, found.quality)} or better")
            output.print_table(_COLUMNS, [_row(row, found.currency) for row in found.rows])
        output.say(f"refused: {found.refusal}" if found.refusal else found.reason)
    if found.refusal:
        raise typer.Exit(1)


def _row(row: pb.RouteRow, currency: str) -> tuple[str, ...]:
    def seconds(name: str) -> str:
        return f"{getattr(row, name).ToNanoseconds() / 1e9:.3g}" if row.HasField(name) else NOTHING

    had = row.HasField("total")
    return (
        _name(pb.Strategy, row.strategy),
        _name(pb.QualityClass, row.quality),
        *map(seconds, ("total", "load", "queue", "prefill", "decode", "round_trips")),
        f"{rate(row.tokens_per_second)}{'*' if row.measured else ''}" if had else NOTHING,
        money(currency, row.cost) if row.HasField("cost") else NOTHING,
        "✓" if row.chosen else "",
        row.why,
    )


def _name(kind: type, number: int) -> str:
    return str(enum_name(kind.DESCRIPTOR, number))  # type: ignore[attr-defined]
