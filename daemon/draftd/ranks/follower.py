"""A follower's process: joins one group, executes rank 0's records until the group ends, and exits.

MLX cannot leave a group that has lost a rank, so a lost group ends the process, even if its other threads are
blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from draftd.engine.ranks.channel import RanksLost
from draftd.errors import DraftdError, in_one_line
from draftd.hardware.system import device
from draftd.ranks.follower_channel import FollowerChannel
from draftd.ranks.handshake import GroupRefused
from draftd.ranks.join import FollowerPlace, GroupJoin, JoinedGroup
from draftd.ranks.plan import check_trusted, launched_rank, plan_group
from draftd.ranks.proof import OwnProof
from draftd.settings import DistributedSettings

#: Exit codes: the group was lost and starts again, as may this process; rank 0 refused this follower.
LOST, REFUSED = 75, 76
#: What a follower writes to its standard output for the process that started it: a sign of life; and that it is
#: about to join, when MLX lets no thread run.
ALIVE, JOINS = b".", b"J"
_BEAT_SECONDS = 1.0

_log = logging.getLogger("draftd.daemon")


def run_follower(
    model: str,
    adapter: Path | None,
    settings: DistributedSettings,
    place: FollowerPlace,
    *,
    key: bytes,
    environ: Mapping[str, str],
    announce: Callable[[str], None],
) -> int:
    """Runs a follower and returns the exit code: 0 if rank 0 ended the group normally, LOST, or REFUSED. Raises
    ConfigError, ModelLoadError, and DraftdError if rank 0 cannot be reached."""
    check_trusted(settings, [place.address.rpartition(":")[0].strip("[]")])
    nodes: tuple[tuple[str, ...], ...] = ()
    if launched_rank(environ) is not None and (plan := plan_group(settings, environ)) is not None:
        nodes = plan.nodes
    announce(f"rank {place.rank}: looking at {model}")
    own = OwnProof(model, adapter, environ, progress=lambda line: announce(f"rank {place.rank}: {line}"))
    with contextlib.closing(own):
        join = GroupJoin(place, own, key=key, nodes=nodes, announce=announce)
        try:
            joined = asyncio.run(join.run())
            return _follow(model, adapter, place.rank, joined, announce)
        except (RanksLost, GroupRefused) as error:
            _log.error("rank %d: %s", place.rank, error.message)
            return REFUSED if isinstance(error, GroupRefused) else LOST


def _follow(model: str, adapter: Path | None, rank: int, joined: JoinedGroup, announce: Callable[[str], None]) -> int:
    from draftd.models.blas import load_blas

    environment = joined.environment
    announce(f"rank {rank}: joining {len(environment.beside)} ranks by {environment.backend}")
    os.write(1, JOINS)
    with environment.enter(rank):
        load_blas()
        from draftd.engine.ranks.follower import follow, load_follower
        from draftd.engine.ranks.group import join_group

        group = join_group(environment.backend)
    channel = FollowerChannel(joined, on_lost=lambda lost: _leave(rank, lost), limit_bytes=device().memory_bytes)
    try:
        loaded = load_follower(model, group, adapter=adapter, progress=lambda line: announce(f"rank {rank}: {line}"))
        follow(loaded, channel)
    except RanksLost:
        raise
    except Exception as error:
        channel.send_failure(error.message if isinstance(error, DraftdError) else in_one_line(error))
        raise
    channel.close()
    return 0


def _leave(rank: int, lost: RanksLost) -> None:
    """Exits the process: the executing thread may be blocked in a collective forever."""
    _log.error("rank %d: %s", rank, lost.message)
    os._exit(LOST)


def read_key() -> bytes:
    """Returns the group's key: the first line of the standard input, written by the process that started this one."""
    key = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        key += byte
    return key


def end_with_input(ended: Callable[[], None]) -> None:
    """Calls `ended` when the standard input ends, because the process that started this one closed it or has ended."""

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        ended()

    threading.Thread(target=read, name="draftd-input", daemon=True).start()


def beat() -> None:
    """Writes a sign of life once a second for the process that started this one; exits if that is gone."""

    def run() -> None:
        while True:
            try:
                os.write(1, ALIVE)
            except OSError:
                os._exit(LOST)
            time.sleep(_BEAT_SECONDS)

    threading.Thread(target=run, name="draftd-beat", daemon=True).start()
