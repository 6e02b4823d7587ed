"""Checks a group by forming it without serving (`draftd doctor --hostfile`): with the ports, key and handshake of
serving, and followers started in the same way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from draftd.errors import DraftdError, in_words
from draftd.hardware.state import advance
from draftd.hardware.system import system_probe
from draftd.models.blas import load_blas
from draftd.ranks.followers import FollowerExit, Followers
from draftd.ranks.form import Follower, GroupFormation
from draftd.ranks.frames import BadFrame, Frame, FrameKind, frame, json_frame
from draftd.ranks.handshake import Hello, hang_up
from draftd.ranks.neighbours import AddressError, measure, measure_link, ring_addresses
from draftd.ranks.plan import GroupPlan, Start
from draftd.ranks.proof import OwnProof, Proof, difference, hash_difference
from draftd.settings import Settings

_CONNECT_SECONDS = {Start.SSH: 45.0, Start.BY_HAND: 10.0}  # SSH, the interpreter, a look at the model
_LOOK_SECONDS = 0.1
_MEASURE_SECONDS = 20.0


@dataclass
class RankFindings:
    """The findings on a rank. `error`: why it is absent or stopped. `proof`: None if it is absent. `difference`: from
    rank 0. `hashed`: whether its files were compared by hashes. `backends`, `memory`: MLX's, and the free bytes, if
    known."""

    rank: int
    host: str = ""
    error: str = ""
    proof: Proof | None = None
    difference: str = ""
    hashed: bool = False
    backends: list[str] = field(default_factory=list)
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class LinkFindings:
    """The findings on a connection from one rank to another. `listening`: why the other does not listen at `address`;
    `error`: why it cannot be reached; otherwise `figures`, from `measure`."""

    source: int
    target: int
    address: str
    listening: str = ""
    error: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def describe_machine() -> dict[str, Any]:
    """The backends and the free memory of this machine."""
    load_blas()  # before MLX is imported
    from draftd.engine.ranks.group import backends

    state = advance(None, system_probe().sample(), 0.0, None)
    return {"backends": backends(), "memory": state.available}


def look_at_group(
    settings: Settings, plan: GroupPlan, environ: Mapping[str, str], own: OwnProof
) -> tuple[list[RankFindings], list[LinkFindings]]:
    """Checks a group, and leaves nothing running. Raises ConfigError if rank 0 cannot listen, OSError if followers
    cannot be started."""
    offline = {**environ, "HF_HUB_OFFLINE": "1"}  # a check downloads nothing
    followers = Followers(settings, plan, offline, "look", out=lambda line: None)
    formation = DiagnosticFormation(
        followers.listener,
        plan,
        own,
        key=followers.key,
        group="look",
        timeout_seconds=0.0,
        announce=lambda line: None,
    )
    try:
        followers.start()
        return asyncio.run(formation.look(followers.exits))
    finally:
        followers.stop()
        followers.close()


class DiagnosticFormation(GroupFormation):
    """A formation that continues despite faults, and notes them."""

    def lose(self, follower: Follower, error: DraftdError) -> None:
        self._findings[follower.rank].error = self._findings[follower.rank].error or error.message
        follower.answers.put_nowait(Frame(FrameKind.FAILED, 0, b"{}"))  # ends the wait for an answer

    def check_alike(self, follower: Follower, hello: Hello) -> None:
        """Does not refuse anything: `_prove` notes differences."""

    async def look(self, exits: Callable[[], Iterator[FollowerExit]]) -> tuple[list[RankFindings], list[LinkFindings]]:
        self._findings = [RankFindings(rank) for rank in range(self.plan.size)]
        self._meetings = dict[int, dict[str, Any]]()
        async with self.attend(), contextlib.AsyncExitStack() as stack:
            nodes, own = self.environment.nodes, dict[str, Any]()
            try:
                await stack.enter_async_context(ring_addresses(nodes[0] if nodes else (), self.group))
            except AddressError as error:
                own["listening"] = str(error)
            await self._wait(exits)
            self.welcomed = True
            await self._prove()
            await self._reach(own)
            links = [link for link in [self._ring_link(rank) for rank in range(self.plan.size)] if link is not None]
            links += [await self._measure(follower) for follower in self._present() if self._reaches_0_apart(follower)]
            for follower in self.followers.values():
                follower.line.send_small(frame(FrameKind.END))
                follower.line.release()
                hang_up(follower.sock)
        return self._findings, links

    async def _wait(self, exits: Callable[[], Iterator[FollowerExit]]) -> None:
        """Returns when each follower has connected or exited, or at the deadline."""
        where = "{}:{}".format(*self.listener.getsockname()[:2])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_SECONDS[self.plan.start]):
                while any(not self._findings[rank].error for rank in self.missing()):
                    for ended in exits():
                        self._findings[ended.rank].error = ended.why
                    await asyncio.sleep(_LOOK_SECONDS)
        for rank in self.missing():
            self._findings[rank].error = self._findings[rank].error or f"it has not connected to {where}"

    def _present(self) -> list[Follower]:
        return [self.followers[rank] for rank in sorted(self.followers) if not self._findings[rank].error]

    async def _prove(self) -> None:
        """Compares versions and files, and collects what each machine reports."""
        own, mine = self.own.proof, self._findings[0]
        mine.proof, mine.host = own, socket.gethostname()
        for follower in self._present():
            assert follower.hello is not None
            findings, proof = self._findings[follower.rank], follower.hello.proof
            findings.proof, findings.host = proof, follower.host
            findings.difference = difference(own, proof, f"rank {follower.rank}")
            same = self.plan.here(follower.rank) and proof.same == own.same
            findings.hashed = not findings.difference and not same
            await self.welcome(follower, hashes=findings.hashed, look=True)
        machine = await asyncio.to_thread(describe_machine)
        mine.backends, mine.memory = machine["backends"], machine["memory"]
        hashes = dict[str, str]()
        if any(findings.hashed for findings in self._findings):
            try:
                hashes = await asyncio.wrap_future(self.own.hashes())
            except DraftdError as error:
                mine.error = error.message
        for follower in self._present():
            findings, answer = self._findings[follower.rank], await self._answer(follower, FrameKind.PROOF)
            findings.backends, findings.memory = answer.get("backends", []), answer.get("memory")
            findings.error = findings.error or answer.get("error", "")
            if findings.hashed and not (findings.error or mine.error):
                findings.difference = hash_difference(hashes, answer["hashes"], f"rank {follower.rank}")

    async def _reach(self, own: dict[str, Any]) -> None:
        """Makes one rank after another connect to the next rank in the ring, and times that."""
        nodes, there = self.environment.nodes, {0, *(follower.rank for follower in self._present())}
        for follower in self._present():
            reach = bool(nodes) and (follower.rank + 1) % self.plan.size in there
            await follower.line.send(json_frame(FrameKind.MEET, {"reach": reach}))
            self._meetings[follower.rank] = await self._answer(follower, FrameKind.MEET)
        if nodes and 1 in self._meetings:
            try:
                own["figures"] = await measure_link(nodes[1], self.group)
            except AddressError as error:
                own["error"] = str(error)
        self._meetings[0] = own

    def _ring_link(self, rank: int) -> LinkFindings | None:
        """Returns the link to the next rank in the ring. None if there is no ring or one of the two ranks is
        missing."""
        right = (rank + 1) % self.plan.size
        if not self.environment.nodes or rank not in self._meetings or right not in self._meetings:
            return None
        meeting, address = self._meetings[rank], self.environment.nodes[right][0]
        listening, error = self._meetings[right].get("listening", ""), meeting.get("error", "")
        return LinkFindings(rank, right, address, listening, error, meeting.get("figures", {}))

    def _reaches_0_apart(self, follower: Follower) -> bool:
        """Whether the follower's link to rank 0 is not part of the ring."""
        return not self.environment.nodes or follower.rank != self.plan.size - 1

    async def _measure(self, follower: Follower) -> LinkFindings:
        """Times the connection that the follower opened."""
        link = LinkFindings(follower.rank, 0, "{}:{}".format(*self.listener.getsockname()[:2]))
        try:
            async with asyncio.timeout(_MEASURE_SECONDS):
                return replace(link, figures=await measure(follower.line.send, follower.answers.get))
        except (BadFrame, OSError) as error:
            return replace(link, error=in_words(error) if isinstance(error, OSError) else str(error))

    async def _answer(self, follower: Follower, kind: FrameKind) -> dict[str, Any]:
        try:
            return await follower.answer(kind)
        except DraftdError as error:
            self.lose(follower, error)
            return {}
