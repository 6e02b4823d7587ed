"""`draftd draft reload`, `draftd depth`: the drafts of a running daemon, and what it has learnt of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from draftd.cli import options, output
from draftd.cli.figures import NOTHING, milliseconds, percent, size
from draftd.core import WorkloadClass
from draftd.model_info import drafter_in_words
from draftd.protocol import WORKLOADS
from draftd.v1 import control_pb2 as pb

_FEW = 0.5  # trials: with fewer, a position's acceptance is a guess


@options.with_options("draftd draft reload", "draftd draft reload --new")
def reload(
    daemon: options.DaemonOptions,
    new: Annotated[
        bool, typer.Option("--new", help="The files hold another draft model: forget what was learnt from the old one.")
    ] = False,
    json: options.Json = False,
    timeout: options.Patience = options.PATIENCE,
) -> None:
    """Read the draft model's weights again from the same files, without interrupting service.

    If the new weights cannot be read, the command says why, and the weights in use stay.

    Acceptance with the new weights is compared with the baseline learnt before. With --new the learnt baselines are
    discarded first; baselines from the file fallback.baseline stay.
    """
    with daemon.connect() as client:
        reply = client.reload_draft(forget=new, timeout=timeout)
    if json:
        output.print_json(reply)
        return
    forgotten = "; what was learnt from the old one is forgotten" if new else ""
    print(f"{reply.draft_model}: read again ({size(reply.draft_weight_bytes)}){forgotten}")


@options.with_options("draftd depth", "draftd depth --json | jq '.yields[] | {workload, depth}'")
def depth(daemon: options.DaemonOptions, json: options.Json = False) -> None:
    """Show what drafting costs on this machine, and how often drafted tokens are accepted, as the daemon has learnt it.

    The first table shows, by number of drafted tokens, the time of a speculative step over that of a step without
    drafts: `measured` by this process, `learnt` from requests since, or `guessed` from an earlier process or other
    depths. The second shows, by position, how often a drafted token was accepted if all before it were; `depth` follows
    for one such request alone, 0 if it does not pay (parked). Each request is also judged by its own text.
    """
    with daemon.connect() as client:
        reply = client.depth()
    if json:
        output.print_json(reply)
        return
    deepest = max((len(cost.ratios) for cost in reply.costs), default=0)
    depths = [str(depth) for depth in range(1, deepest + 1)]
    print("Time of a step without drafts, and of one that drafts so many tokens over that:")
    drafted = [f"{depth} drafted" for depth in depths]
    output.print_table(("drafter", "sequences", "cost is", "no drafts", *drafted), _costs(reply))
    if not reply.yields:
        print("No acceptance is learnt yet: nothing was drafted, or only at fixed depths.")
        return
    print("\nShare of drafted tokens accepted, by position, if all before were; depth is what follows for one request:")
    output.print_table(("text", "how", "depth", *(f"token {depth}" for depth in depths)), _yields(reply))


def _costs(reply: pb.GetDepthResponse) -> Iterator[tuple[str, ...]]:
    for cost in reply.costs:
        plain = milliseconds(cost.plain.ToNanoseconds() / 1e9 if cost.HasField("plain") else None)
        ratios = (f"{ratio:.2f}×" for ratio in cost.ratios)
        yield drafter_in_words(cost.drafter), str(cost.batch), cost.source, plain, *ratios


def _yields(reply: pb.GetDepthResponse) -> Iterator[tuple[str, ...]]:
    for entry in reply.yields:
        how = "seeded" if entry.seeded else "sampled" if entry.sampled else "greedy"
        rates = (
            percent(rate) if tried >= _FEW else NOTHING
            for rate, tried in zip(entry.acceptance, entry.tried, strict=True)
        )
        kind = WORKLOADS.get(entry.workload, WorkloadClass.UNSPECIFIED)
        text = "unlabelled" if kind is WorkloadClass.UNSPECIFIED else kind
        yield f"{text} by {drafter_in_words(entry.drafter)}", how, str(entry.depth), *rates


GROUP = {"reload": reload}
