"""`draftd follow`: a follower of a target that several machines serve together."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from draftd.cli import options
from draftd.cli.commands.serve import announcer, exit_logged

_group = partial(typer.Option, rich_help_panel="Which group")


@options.with_options(
    "draftd follow --address 10.0.0.1:7490 --rank 1 --ranks 2 --model ./Qwen3-32B-4bit",
)
def command(
    address: Annotated[
        str, _group("--address", metavar="HOST:PORT", help="Address and port on which rank 0 waits for followers.")
    ],
    rank: Annotated[int, _group("--rank", min=1, max=63, help="Number of this rank. Rank 0 is the daemon.")],
    ranks: Annotated[
        int, _group("--ranks", min=0, max=64, help="Number of ranks in the group. 0: as rank 0 says.")
    ] = 0,
    model: Annotated[
        str | None,
        options.models("--model", help="Model of rank 0: folder or hub id. Unset: model.path, or the embedded target."),
    ] = None,
    adapter_path: options.AdapterPath = None,
    config: options.Config = None,
    assignments: options.Assignments = None,
    patience: Annotated[
        float | None, _group("--patience", min=0, help="Seconds for which rank 0 may be unreachable. Unset: no limit.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", hidden=True)] = False,
    with_input: Annotated[bool, typer.Option("--with-input", hidden=True)] = False,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="Lowest severity to log: debug, info, warning or error.")
    ] = None,
) -> None:
    """Run a follower: one rank of a target that several machines serve together.

    The follower executes the records of rank 0 until rank 0 ends the group. If the group is lost, the follower joins
    again.

    `draftd serve --hostfile` starts followers by itself, unless distributed.start is off.
    """
    overrides = {"model.adapter_path": adapter_path, "log.level": log_level}
    served = options.ServeOptions(model=model, config=config, assignments=assignments)
    settings = served.settings(overrides)

    from draftd.cli.follow import run, run_once
    from draftd.ranks.join import FollowerPlace

    place = FollowerPlace(address, rank, ranks, patience)
    joined = partial(run_once if once else run, settings, place, with_input=with_input, announce=announcer())
    exit_logged(joined, f"rank {rank}: ")
