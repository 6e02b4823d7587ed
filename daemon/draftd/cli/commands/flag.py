"""`draftd flag get|set`: the feature flag that turns speculation on and off while the daemon runs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from draftd.cli import options, output
from draftd.core import WorkloadClass


@options.with_options("draftd flag get", "draftd flag get --workload prose --caller nightly-batch")
def get(
    daemon: options.Daemon,
    workload: options.Workload = WorkloadClass.UNSPECIFIED,
    caller: options.Caller = "",
    json: options.Json = False,
) -> None:
    """Show the flag, and its value for a given workload and caller."""
    with daemon.connect() as client:
        reply = client.get_flag(workload=workload, caller=caller)
    if json:
        output.print_json(reply)
        return
    state = reply.flag
    rows = [
        ("flag", state.key),
        ("value", f"{reply.evaluation.variant} ({reply.evaluation.reason.lower().replace('_', ' ')})"),
        ("default", state.default_variant or "decided by the provider"),
        ("variants", ", ".join(state.variants)),
        ("provider", f"{state.provider}: {state.source}" + ("" if state.writable else " (read-only)")),
    ]
    output.print_fields(rows, 9)


@options.with_options("draftd flag set off", "draftd flag set on")
def set_(daemon: options.Daemon, variant: Annotated[Literal["on", "off"], typer.Argument(help="on or off.")]) -> None:
    """Set the flag's default variant. Targeting rules in its file still win over it."""
    with daemon.connect() as client:
        reply = client.set_flag(variant)
    now, before = reply.flag.default_variant, reply.previous_variant
    print(f"{reply.flag.key}: {now} (was {before})" if now != before else f"{reply.flag.key}: {now} already")


GROUP = {"get": get, "set": set_}
