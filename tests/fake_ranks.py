"""Ranks without MLX in the test's process. They form a group over loopback, with real model files."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from draftd.engine.ranks.channel import RanksLost
from draftd.ranks.doctor import DiagnosticFormation, LinkFindings, RankFindings
from draftd.ranks.follower_channel import FollowerChannel
from draftd.ranks.form import Follower, GroupFormation, listen_for_followers
from draftd.ranks.join import FollowerPlace, GroupJoin, JoinedGroup
from draftd.ranks.leader_channel import LeaderChannel
from draftd.ranks.plan import GroupPlan, plan_group
from draftd.ranks.proof import OwnProof
from draftd.settings import DistributedSettings

T = TypeVar("T")
F = TypeVar("F", bound=GroupFormation)
TIMEOUT_SECONDS = 1.0


def local_plan(ranks: int = 2) -> GroupPlan:
    plan = plan_group(DistributedSettings(ranks=ranks), {})
    assert plan is not None
    return plan


def own(model: str | Path) -> OwnProof:
    return OwnProof(str(model))


KEY = b"the group's key"


@dataclass
class Begun:
    """A group of `plan` that is being formed: rank 0, and followers as they connect, on an event loop in a thread."""

    model: str
    plan: GroupPlan = field(default_factory=local_plan)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listener = listen_for_followers(self.plan)
        self.address = "{}:{}".format(*self.listener.getsockname()[:2])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._leading, self._calls = list[Future[list[Follower]]](), list[Future[JoinedGroup]]()

    def lead(self, proof: OwnProof | None = None) -> Future[list[Follower]]:
        self._leading.append(self._run(self._formation(GroupFormation, proof).form()))
        return self._leading[-1]

    def look(self) -> Future[tuple[list[RankFindings], list[LinkFindings]]]:
        return self._run(self._formation(DiagnosticFormation).look(lambda: iter(())))

    def call(
        self,
        rank: int,
        proof: OwnProof | None = None,
        address: str = "",
        *,
        ranks: int | None = None,
        patience: float = 2.0,
        key: bytes = KEY,
        nodes: Sequence[Sequence[str]] = (),
    ) -> Future[JoinedGroup]:
        place = FollowerPlace(address or self.address, rank, self.plan.size if ranks is None else ranks, patience)
        join = GroupJoin(place, proof or own(self.model), key=key, nodes=nodes, announce=self.lines.append)
        self._calls.append(self._run(join.run()))
        return self._calls[-1]

    def close(self) -> None:
        """Makes rank 0 give up; followers find its port closed."""
        for future in self._leading:
            future.cancel()
        wait(self._leading, 10)
        self.listener.close()
        _, waiting = wait(self._calls, 10)
        assert not waiting
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _formation(self, kind: type[F], proof: OwnProof | None = None) -> F:
        return kind(
            self.listener,
            self.plan,
            proof or own(self.model),
            key=KEY,
            group="g1",
            timeout_seconds=TIMEOUT_SECONDS,
            announce=self.lines.append,
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


class Channels:
    """The channels of a group of two or more ranks that has been formed."""

    def __init__(
        self, model: str, ranks: int = 2, address: Callable[[str, int], str] | None = None, **leader: Any
    ) -> None:
        """Forms the group. `address` maps rank 0's address to the one that a follower connects to."""
        begun = Begun(model, local_plan(ranks))
        leading = begun.lead()
        through = address or (lambda said, rank: said)
        calls = [begun.call(rank, address=through(begun.address, rank)) for rank in range(1, ranks)]
        self.lost: dict[int, RanksLost] = {}
        peers, joined = leading.result(20), [one.result(20) for one in calls]
        begun.close()
        bounds: dict[str, Any] = {"timeout_seconds": TIMEOUT_SECONDS, "start_seconds": 20.0, **leader}
        self.leader = LeaderChannel(peers, host="here", on_lost=lambda lost: self._note(0, lost), **bounds)
        self.followers = [self._follower(rank, one) for rank, one in enumerate(joined, 1)]

    def _follower(self, rank: int, joined: JoinedGroup) -> FollowerChannel:
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
    """Returns a listening socket on loopback, and its port."""
    held = socket.create_server(("127.0.0.1", 0))
    return held, int(held.getsockname()[1])
