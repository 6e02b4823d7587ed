"""`draftd depth`: what the daemon has learnt of drafting, and how deep it would draft."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from draftd.cli import options, terminal
from draftd.cli.figures import NOTHING, milliseconds, percent
from draftd.client.asking import connect

if TYPE_CHECKING:
    from draftd.v1 import control_pb2 as pb

_FEW = 0.5  # trials: what is told of a position that was hardly reached is a guess


def command(
    json: options.Json = False,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Show what drafting costs here and how often drafts stand, as the daemon has learnt it.

    The first table has a round's time by tokens drafted, over that of a round without drafts. The second has the share
    of drafted tokens that stood where all before them did, by place in the draft, and the depth that follows for a
    request of that kind alone: 0 is parked. Each request is also judged by its own text.

    [bold]Examples[/]

    [dim]$[/] draftd depth

    [dim]$[/] draftd depth --json | jq '.yields[] | {workload, depth}'
    """
    with connect(target, token, tls_ca) as client:
        found = client.depth()
    if json:
        from draftd.cli.plain import as_json

        print(as_json(found))
        return
    out = terminal.stdout()
    deepest = max((len(one.ratios) for one in found.costs), default=0)
    depths = [str(depth) for depth in range(1, deepest + 1)]
    out.print(terminal.table(out, ("a round's cost", "rows", "none", *depths), _costs(found)))
    if not found.yields:
        out.print("Nothing was drafted yet.")
        return
    out.print("")
    out.print(terminal.table(out, ("tokens that stand", "how", "depth", *depths), _yields(found)))


def _costs(found: pb.GetDepthResponse) -> Iterator[tuple[str, ...]]:
    from draftd.protocol import DRAFTERS

    for one in found.costs:
        plain = milliseconds(one.plain.ToNanoseconds() / 1e9)
        yield str(DRAFTERS.get(one.drafter)), str(one.batch), plain, *(f"{ratio:.2f}×" for ratio in one.ratios)


def _yields(found: pb.GetDepthResponse) -> Iterator[tuple[str, ...]]:
    from draftd.protocol import DRAFTERS, WORKLOADS

    for one in found.yields:
        how = "seeded" if one.seeded else "sampled" if one.sampled else "greedy"
        stood = (
            percent(rate) if tried >= _FEW else NOTHING for rate, tried in zip(one.acceptance, one.tried, strict=True)
        )
        yield f"{WORKLOADS.get(one.workload)} by {DRAFTERS.get(one.drafter)}", how, str(one.depth), *stood
