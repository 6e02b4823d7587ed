"""Rank 0's side of how a group begins, from the first follower's call to the group that MLX has."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from draftd.engine.ranks.channel import RanksLost
from draftd.hardware.system import device
from draftd.ranks.handshake import Gathering
from draftd.ranks.leader_channel import LeaderChannel
from draftd.ranks.plan import GroupPlan
from draftd.ranks.proof import OwnProof

if TYPE_CHECKING:
    from draftd.engine.ranks.group import RankGroup


def begin_group(
    listener: socket.socket,
    plan: GroupPlan,
    model: str,
    adapter: Path | None,
    *,
    group: str,
    timeout_seconds: float,
    start_seconds: float,
    announce: Callable[[str], None],
    on_lost: Callable[[RanksLost], None],
    alive: Callable[[], None] = lambda: None,
) -> tuple[RankGroup, LeaderChannel]:
    """On the thread that will have MLX. `group`: its id. `alive` is called some ten times a second until all ranks are
    there, and ends this by what it raises. `on_lost`: LeaderChannel's. Raises ModelLoadError, Refused with what keeps
    the ranks apart, and RanksLost. Where MLX does not join the ranks in time, SIGALRM ends the process."""
    from draftd.models.blas import load_blas

    with contextlib.closing(OwnProof(model, adapter, os.environ, progress=announce)) as own:
        bounds = {"timeout_seconds": timeout_seconds, "start_seconds": start_seconds}
        gathering = Gathering(listener, plan, own, group=group, bounds=bounds, announce=announce, alive=alive)
        peers = gathering.run()
    announce(f"joining {plan.size} ranks by {plan.backend}")
    with gathering.joining.entered(0):
        load_blas()
        from draftd.engine.ranks.group import join_group

        made = join_group(plan.backend)
    channel = LeaderChannel(
        peers,
        host=socket.gethostname(),
        timeout_seconds=timeout_seconds,
        start_seconds=start_seconds,
        on_lost=on_lost,
        limit_bytes=device().memory_bytes,
    )
    return made, channel
