"""`draftd flag get|set`: the feature flags that turn speculation on and off, and choose where requests are decoded,
while the daemon runs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from draftd.cli import options, output
from draftd.core import WorkloadClass
from draftd.planning.flag_file import FlagResolution
from draftd.protocol import plain
from draftd.v1 import control_pb2

_STRATEGY = "decoding-strategy"


@options.with_options(
    "draftd flag get",
    "draftd flag get --workload prose --caller nightly-batch",
    "draftd flag get decoding-strategy --prompt-tokens 12000",
)
def get(
    daemon: options.DaemonOptions,
    key: Annotated[
        Literal["speculative-decoding", "decoding-strategy"] | None, typer.Argument(help="Flag to show. Unset: both.")
    ] = None,
    workload: options.Workload = WorkloadClass.UNSPECIFIED,
    caller: options.Caller = "",
    prompt_tokens: Annotated[
        int,
        options.decoding(
            "--prompt-tokens",
            min=0,
            max=2**31 - 1,
            help="Length of the prompt in tokens, for the rules of decoding-strategy.",
        ),
    ] = 0,
    json: options.Json = False,
) -> None:
    """Show the flags, and the values that a request with this workload, caller and prompt length would get."""
    with daemon.connect() as client:
        replies = [
            client.get_flag(workload=workload, caller=caller, key=name, prompt_tokens=prompt_tokens)
            for name in ([key] if key else ["speculative-decoding", _STRATEGY])
        ]
    if json:
        first, *others = map(plain, replies)
        output.print_json(first | ({_STRATEGY: others[0]} if others else {}))
        return
    for reply in replies:
        _show(reply)


def _show(reply: control_pb2.GetFlagResponse) -> None:
    state, evaluated = reply.flag, reply.evaluation
    rows = [
        ("flag", state.key),
        ("value", str(FlagResolution(evaluated.variant, evaluated.variant, evaluated.reason))),
        ("default", state.default_variant or "decided by the provider"),
        ("variants", ", ".join(state.variants)),
        (
            "provider",
            f"{state.provider}: {state.source}"
            + ("" if state.writable else f" (cannot be set here{state.error and ': '}{state.error})"),
        ),
        ("acts on", _followers(state)),
    ]
    output.print_fields(rows, 9)


@options.with_options(
    "draftd flag set off              # no drafts from the next request on",
    "draftd flag set on",
    "draftd flag set speculative      # draft here, verify on the remote daemon: the flag decoding-strategy",
)
def set_(
    daemon: options.DaemonOptions,
    variant: Annotated[
        Literal["on", "off", "local", "remote", "speculative", "auto"],
        typer.Argument(
            help="on or off for speculative-decoding; local, remote, speculative or auto for decoding-strategy."
        ),
    ],
) -> None:
    """Set the default variant of a flag. Targeting rules in the flag's file outrank the default."""
    with daemon.connect() as client:
        reply = client.set_flag(variant, key="" if variant in ("on", "off") else _STRATEGY)
    now, before = reply.flag.default_variant, reply.previous_variant
    changed = f"(was {before})" if now != before else "already"
    whom = f", for {_followers(reply.flag)}" if reply.flag.shared else ""
    print(f"{reply.flag.key}: {now} {changed}{whom}")


def _followers(flag: control_pb2.FlagState) -> str:
    if not flag.shared:
        return "this daemon alone"
    return f"every daemon whose flag.file is {flag.source}" if flag.writable else "every daemon with this source"


GROUP = {"get": get, "set": set_}
