"""`draftd level`, `draftd events`, `draftd probe`, `draftd canary run`: the fallback ladder of a running daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated, Literal

import typer
from rich.text import Text

from draftd.cli import ladder, options, output
from draftd.cli.figures import NOTHING, UNKNOWN, in_local_time, percent, seconds_of, size, times
from draftd.client.client import CallError, DraftdClient
from draftd.core import FallbackLevel
from draftd.errors import InvalidRequest
from draftd.strategies import RemoteLevel
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2 as inference

_ALLOWED = "a time such as 30s, 30m, 2h or 1d, at most 30d"
_LONGEST_HOLD = 30 * 86_400
_NAME = 11  # columns


@options.with_options("draftd level", "draftd level hold autoregressive --for 30m", "draftd level release")
def _level(context: typer.Context, daemon: options.DaemonOptions, json: options.Json = False) -> None:
    """Show the fallback level and its cause, hold a level, or release it. Without a subcommand, [bold]get[/] runs."""
    if context.invoked_subcommand is None:
        _show(daemon, json)
        return
    for name in context.params:
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            raise typer.BadParameter(f"give {option} after `{context.invoked_subcommand}`", param_hint=option)


def _show(daemon: options.DaemonOptions, json: options.Json = False) -> None:
    """Show the fallback level, since when and why it applies, which signals ask for another level, and what comes
    next."""
    with daemon.connect() as client:
        state = client.level()
        if json:
            output.print_json(state)
            return
        model = client.status().model
    output.print_fields(lines(state, _now(), model), _NAME)


get = options.with_options("draftd level get", "draftd level get --json | jq .demands")(_show)


@options.with_options("draftd level hold autoregressive --for 30m", "draftd level hold full")
def hold(
    daemon: options.DaemonOptions,
    level: Annotated[
        Literal["full", "short_block", "light_draft", "autoregressive", "speculative", "streaming", "local"],
        typer.Argument(
            metavar="LEVEL",
            help="Level of drafting: full, short_block, light_draft or autoregressive. Or level of the remote: "
            "speculative, streaming or local.",
        ),
    ],
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="How long to hold the level: 30s, 30m, 2h, 1d, at most 30d. Unset: until it is released.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Set the level and keep it, whatever the signals ask for.

    At its levels, the remote verifies drafts (speculative), decodes by itself (streaming), or is not used (local).

    A hold acts on the next request and survives a restart of the daemon. Only the flag speculative-decoding outranks
    it.
    """
    seconds = None if for_ is None else parse_hold_time(for_)
    of_remote = level.upper() in RemoteLevel.__members__
    wanted = RemoteLevel[level.upper()] if of_remote else FallbackLevel[level.upper()]
    with daemon.connect() as client:
        whole = client.hold_level(wanted, seconds)
    if json:
        output.print_json(whole)
        return
    state = whole.remote if of_remote else whole
    position = state.ladder[state.hold.position]
    there = state.position == state.hold.position
    meanwhile = "" if there else f"; {ladder.current(state)} until its weights are loaded"
    print(f"{ladder.label(position)}, held {ladder.hold_end(state, _now())}{meanwhile}")
    if whole.unsaved:
        output.complain(f"a restart would not know: {whole.unsaved}")
    if position.level != level:
        output.complain(f"the daemon's ladder has no {level}: this is the nearest level below it")


@options.with_options("draftd level release")
def release(daemon: options.DaemonOptions, json: options.Json = False) -> None:
    """End the hold of the level of drafting, and the hold of the remote's level. If the hold had lowered the level, the
    level from before the hold returns at once, unless a signal asks for a lower one."""
    with daemon.connect() as client:
        reply = client.release_level()
    if json:
        output.print_json(reply.fallback)
        return
    then = ladder.what_next(reply.fallback, _now())
    print(
        f"{'released' if reply.was_held else 'no level was held'}: the level is {ladder.current(reply.fallback)}"
        + (f"; {then}" if then else "")
    )


def lines(state: pb.FallbackState, now: datetime, model: inference.GetModelResponse) -> list[tuple[str, str | Text]]:
    """Returns names and values; an empty name continues the line above. `model` is empty while none is loaded."""
    rows: list[tuple[str, str | Text]] = [*ladder.fields(state, now, whole=True)]
    rows += [("relapses", str(state.relapses))] * bool(state.relapses)
    absent = sorted(state.absent_drafters.items())
    rows += [("absent" if not i else "", f"{drafter}: {why}") for i, (drafter, why) in enumerate(absent)]
    drafts = f"{', '.join(state.loaded_drafters)} ({size(state.draft_weight_bytes)})"
    in_memory = drafts if state.loaded_drafters else "no draft"
    rows.append(("in memory", UNKNOWN if state.loading else in_memory))
    kept = state.state_file or "nothing: a restart begins at the top"
    rows.append(("kept in", f"nothing for now: {state.unsaved}" if state.unsaved else kept))
    width = max((len(ladder.label(level)) for level in state.ladder), default=0)
    for number, level in enumerate(state.ladder):  # from the top, with a mark at the current level
        here = number == state.position
        what = f"{ladder.label(level):<{width}} {ladder.drafting(level, model)}"
        line = Text(f"{'▸' if here else ' '} {what}", "bold" if here else "dim")
        rows.append(("" if number else "ladder", line))
    return rows


def parse_hold_time(text: str) -> float:
    """Returns seconds. Raises InvalidRequest unless the text is a time above 0 and of at most 30 days."""
    try:
        seconds = seconds_of(text.strip())
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_HOLD:
        raise InvalidRequest("--for", text, _ALLOWED)
    return seconds


@options.with_options(
    "draftd events",
    "draftd events --follow --since 41",
    """draftd events --limit 100 --json | jq 'select(.subject == "level")'""",
)
def events(
    daemon: options.DaemonOptions,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new events until Ctrl-C.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="How many of the latest events to show.")
    ] = 20,
    since: Annotated[
        int, typer.Option("--since", metavar="NUMBER", min=0, help="Show only events after the one with this number.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per event.")] = False,
) -> None:
    """Show changes of the feature flag, the fallback level and the link to the remote, oldest first: when, from which
    value to which, and why."""
    show: Callable[[pb.Transition], None] = output.print_json if json else _print_event
    with daemon.connect() as client:
        last = since
        for entry in client.transitions(limit, after=since):
            show(entry)
            last = entry.number
        if follow:
            for entry in follow_transitions(client, last):
                show(entry)
        elif not last and not json:
            output.stderr().print("nothing has changed yet", style="dim")


def follow_transitions(client: DraftdClient, last: int) -> Iterator[pb.Transition]:
    """Yields transitions after the number `last`, and reconnects when the daemon drops this client for falling
    behind."""
    while True:
        try:
            for entry in client.watch(last):
                yield entry
                last = entry.number
        except CallError as error:
            if error.code.name != "ABORTED":
                raise


def _print_event(entry: pb.Transition) -> None:
    """Prints a transition on one line."""
    why = entry.cause
    if entry.evidence and entry.evidence not in entry.cause:
        why = f"{why} ({entry.evidence})" if why else entry.evidence
    why = in_local_time(why)
    line = Text.assemble(
        (f"{entry.number:>4}", "dim"),
        f"  {ladder.clock(ladder.moment(entry.at), _now())}  ",
        (f"{entry.subject:<6}", "dim"),
        "  " if entry.previous == entry.current else f"  {entry.previous or NOTHING} → ",  # some events move nothing
        (entry.current or NOTHING, "bold"),
        f"  {why}" if why else "",
    )
    output.stdout().print(line, soft_wrap=True)


@options.with_options("draftd probe", "draftd probe --json | jq .speedup")
def probe(
    daemon: options.DaemonOptions, json: options.Json = False, timeout: options.Patience = options.PATIENCE
) -> None:
    """Decode a few prompts at a higher level, and say whether the daemon may step up to it.

    The daemon also probes by itself before each step up. A probe tests the next level up, but skips levels whose
    drafter failed a probe since the last step. If the drafters of all higher levels have failed, it tests the next
    level up again. Exit code 1 unless the verdict is good.
    """
    with daemon.connect() as client:
        reply = client.probe(timeout=timeout)
    good = reply.verdict == "good"
    if json:
        output.print_json(reply)
    else:
        verdict = Text(reply.verdict.replace("_", " "), "green" if good else "bold red")
        rows: list[tuple[str, str | Text]] = [
            ("tried", ladder.label(reply.level)),
            ("verdict", verdict),
            ("because", reply.reason),
            ("acceptance", percent(reply.acceptance if reply.HasField("acceptance") else None)),
            ("speed-up", times(reply.speedup if reply.HasField("speedup") else None)),
            ("took", f"{reply.took.ToTimedelta().total_seconds():.1f} s"),
        ]
        output.print_fields(rows, _NAME)
    if not good:
        raise typer.Exit(1)


@options.with_options("draftd canary run", "draftd canary run --json | jq '.results[] | select(.diverged)'")
def run_canaries(
    daemon: options.DaemonOptions, json: options.Json = False, timeout: options.Patience = options.PATIENCE
) -> None:
    """Run the quality canaries now: each prompt autoregressively and speculatively, each text checked and compared.

    The daemon also runs them on a schedule, and stops drafting after a bad run. Exit code 1 unless the verdict is good.
    """
    with daemon.connect() as client:
        reply = client.canaries(timeout=timeout)
    good = reply.verdict == "good"
    if json:
        output.print_json(reply)
    else:
        if reply.results:
            columns = ("canary", "autoregressive", "speculative", "texts")
            output.print_table(columns, map(_canary_cells, reply.results), words=True)
        for result in reply.results:
            if result.complaint:
                output.say(f"{result.id}: {result.complaint}")
        output.stdout().print(reply.verdict, style="green" if good else "bold red", end="")
        output.say(f": {_canary_summary(reply)}")
    if not good:
        raise typer.Exit(1)


def _canary_cells(result: pb.CanaryResult) -> tuple[str, str, str, str]:
    texts = "identical"
    if result.diverged:
        gap = f", gap {result.logit_gap:.3g}" if result.HasField("logit_gap") else ""
        texts = f"differ at {result.diverged_at}{gap}" if result.HasField("diverged_at") else "differ"
    passed = ("passed" if one else "failed" for one in (result.passed_autoregressive, result.passed_speculative))
    return (result.id, *passed, texts)  # type: ignore[return-value]


def _canary_summary(reply: pb.RunCanariesResponse) -> str:
    took = f"{reply.took.ToTimedelta().total_seconds():.1f} s"
    if not reply.results:
        return f"{reply.reason} ({took})"
    scores = f"{percent(reply.score_autoregressive)} autoregressive, {percent(reply.score_speculative)} speculative"
    differ = sum(result.diverged for result in reply.results)
    return f"{reply.reason} ({len(reply.results)} canaries, {scores}, {differ} differ, {took})"


def _now() -> datetime:
    return datetime.now().astimezone()


LEVEL = {"": _level, "get": get, "hold": hold, "release": release}
CANARY = {"run": run_canaries}
