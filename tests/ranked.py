"""Ranks without MLX in the test's own process: how a group begins, over loopback, with real files of a model."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftd.engine.ranks.channel import RanksLost
from draftd.ranks.calling import Caller, Joined
from draftd.ranks.follower_channel import FollowerChannel
from draftd.ranks.handshake import Follower, GroupFormation, listen_for_followers
from draftd.ranks.leader_channel import LeaderChannel
from draftd.ranks.plan import GroupPlan, plan_group
from draftd.ranks.proof import OwnProof
from draftd.settings import DistributedSettings

BOUNDS = {"timeout_seconds": 1.0, "start_seconds": 20.0}


def local_plan(ranks: int = 2) -> GroupPlan:
    plan = plan_group(DistributedSettings(ranks=ranks), {})
    assert plan is not None
    return plan


def own(model: str | Path) -> OwnProof:
    return OwnProof(str(model))


@dataclass
class Begun:
    """How a group begins, of `plan`: rank 0 on a thread, and followers as they are called."""

    model: str
    plan: GroupPlan = field(default_factory=local_plan)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listener = listen_for_followers(self.plan)
        self.address = "{}:{}".format(*self.listener.getsockname()[:2])
        self._pool, self._closed = ThreadPoolExecutor(8), False

    def lead(self, proof: OwnProof | None = None) -> Future[list[Follower]]:
        told = {"group": "g1", "bounds": BOUNDS, "announce": self.lines.append, "alive": self._alive}
        formation = GroupFormation(self.listener, self.plan, proof or own(self.model), **told)  # type: ignore[arg-type]
        return self._pool.submit(formation.run)

    def call(self, rank: int, proof: OwnProof | None = None, address: str = "", **given: Any) -> Future[Joined]:
        given = {"ranks": self.plan.size, "patience": 2.0, "announce": self.lines.append, **given}
        caller = Caller(address or self.address, rank, own=proof or own(self.model), **given)
        return self._pool.submit(caller.run)

    def close(self) -> None:
        self._closed = True
        self.listener.close()
        self._pool.shutdown()

    def _alive(self) -> None:
        if self._closed:
            raise RuntimeError("the test is over")


class Channels:
    """Of a group of two or more that has begun."""

    def __init__(
        self, model: str, ranks: int = 2, address: Callable[[str, int], str] | None = None, **leader: Any
    ) -> None:
        """`address` makes that which a follower calls, of rank 0's."""
        begun = Begun(model, local_plan(ranks))
        leading = begun.lead()
        through = address or (lambda said, rank: said)
        calls = [begun.call(rank, address=through(begun.address, rank)) for rank in range(1, ranks)]
        self.lost: dict[int, RanksLost] = {}
        peers, joined = leading.result(20), [one.result(20) for one in calls]
        begun.close()
        bounds = BOUNDS | leader
        self.leader = LeaderChannel(peers, host="here", on_lost=lambda lost: self._note(0, lost), **bounds)  # type: ignore[arg-type]
        self.followers = [self._follower(rank, one) for rank, one in enumerate(joined, 1)]

    def _follower(self, rank: int, joined: Joined) -> FollowerChannel:
        return FollowerChannel(joined, on_lost=lambda lost: self._note(rank, lost))

    def _note(self, rank: int, lost: RanksLost) -> None:
        assert rank not in self.lost, "it is told once"
        self.lost[rank] = lost

    def close(self, which: Sequence[int] | None = None) -> None:
        self.leader.close()
        for rank, one in enumerate(self.followers, 1):
            if which is None or rank in which:
                one.close()


def taken_port() -> tuple[socket.socket, int]:
    """A program that listens on loopback."""
    held = socket.create_server(("127.0.0.1", 0))
    return held, int(held.getsockname()[1])
