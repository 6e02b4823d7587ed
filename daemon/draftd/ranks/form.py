"""Rank 0's side of the start of a group: gathers the followers of a plan, each served by a coroutine (handshake.py)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from pydantic import ValidationError

from draftd.engine.ranks.channel import Progress, RanksLost
from draftd.errors import ConfigError, DraftdError, in_words
from draftd.group import Loss
from draftd.ranks.environment import RankEnvironment
from draftd.ranks.frames import BadFrame, Frame, FrameKind, frame, json_frame, ping
from draftd.ranks.handshake import (
    PING_SECONDS,
    PROGRESS_SECONDS,
    SILENT_SECONDS,
    FrameStream,
    GroupRefused,
    Hello,
    WrongKey,
    accept,
    background,
    hang_up,
    hash_progress,
    new_challenge,
    signed_fields,
    signed_frame,
)
from draftd.ranks.hostfile import SETTING
from draftd.ranks.neighbours import AddressError, check_reached, ring_addresses
from draftd.ranks.plan import GroupPlan, Start
from draftd.ranks.proof import OwnProof, difference, hash_difference
from draftd.ranks.watchdog import Vitals, Watchdog

_HELLO_SECONDS = 5.0  # for a connection to identify itself as a follower
_MOST_CALLERS = 128  # simultaneous connections of any kind
_MOST_BYTES = 1 << 20  # bytes of a frame on such a connection
_CONNECT_SECONDS = {Start.LOCAL: 60.0, Start.SSH: 60.0, Start.LAUNCHER: 60.0, Start.BY_HAND: None}


@dataclass(eq=False)
class Follower:
    """Rank 0's state of a follower. `address`: it connected from there. `hello`: None until it has identified itself.
    `answers`: its frames that rank 0 waits for."""

    line: FrameStream
    address: str
    challenge: str = field(default_factory=new_challenge)
    hello: Hello | None = None
    answers: asyncio.Queue[Frame] = field(default_factory=asyncio.Queue)

    @property
    def sock(self) -> socket.socket:
        return self.line.sock

    @property
    def rank(self) -> int:
        return 0 if self.hello is None else self.hello.rank

    @property
    def host(self) -> str:
        return self.address if self.hello is None else self.hello.host

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"

    async def answer(self, kind: FrameKind) -> dict[str, Any]:
        received = await self.answers.get()
        if received.kind is not kind:
            raise GroupRefused(f"{self.name} sent {received.kind.name} instead of {kind.name}: it runs another version")
        return received.fields()


class GroupFormation:
    """One start of a group."""

    def __init__(
        self,
        listener: socket.socket,
        plan: GroupPlan,
        own: OwnProof,
        *,
        key: bytes,
        group: str,
        timeout_seconds: float,
        announce: Callable[[str], None],
    ) -> None:
        """`listener`: from `listen_for_followers`. `key`: the followers'. `group`: its id. `timeout_seconds`: the time
        limit for followers and rank 0."""
        self.listener, self.plan, self.own, self.key, self.group = listener, plan, own, key, group
        self.announce = announce
        self.environment = RankEnvironment.from_plan(plan)
        self.followers = dict[int, Follower]()
        self._timeout, self._callers = timeout_seconds, set[Follower]()
        self._changed = asyncio.Event()
        self.welcomed, self._progress_at = False, 0.0

    async def form(self) -> list[Follower]:
        """Returns the followers by rank once all have agreed to start. Raises GroupRefused with the reason, or
        RanksLost if one has left; then all connections are closed."""
        nodes = self.environment.nodes
        async with self.attend():
            try:
                async with ring_addresses(nodes[0] if nodes else (), self.group):
                    await self._connect()
                    await self._compare()
                    await self._meet()
            except AddressError as error:
                raise GroupRefused(f"rank 0: {error}") from None
            followers = [self.followers[rank] for rank in sorted(self.followers)]
            for follower in followers:
                follower.line.send_small(frame(FrameKind.GO))
                follower.line.release()
        for caller in self._callers.difference(followers):
            caller.line.close()
        return followers

    @contextlib.asynccontextmanager
    async def attend(self) -> AsyncIterator[None]:
        """Serves connections while the block runs. The first fault ends everything and is raised."""
        try:
            async with background() as start:
                start(self._accept(start))
                start(self._beat())
                yield
        except BaseException as error:
            self._drop(error)
            raise

    async def welcome(self, follower: Follower, **more: Any) -> None:
        """Sends WELCOME; from then on the follower must send signs of life."""
        assert follower.hello is not None
        follower.line.heard = time.monotonic()
        bounds = {"environment": asdict(self.environment), "timeout_seconds": self._timeout}
        fields = {"group": self.group, **bounds, **more}
        await follower.line.send(signed_frame(FrameKind.WELCOME, fields, self.key, follower.hello.challenge))

    def lose(self, follower: Follower, error: DraftdError) -> None:
        """Handles a follower that fails or leaves after all have connected."""
        raise error

    def check_alike(self, follower: Follower, hello: Hello) -> None:
        if text := difference(self.own.proof, hello.proof, follower.name):
            raise GroupRefused(text)

    async def _connect(self) -> None:
        seconds, where = _CONNECT_SECONDS[self.plan.start], "{}:{}".format(*self.listener.getsockname()[:2])
        if seconds is None:
            self.announce(f"waiting for {self.plan.size - 1} followers on {where}: `draftd follow --address {where}`")
        try:
            async with asyncio.timeout(seconds):
                while self.missing():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            rank = self.missing()[0]
            host = self.plan.hosts[rank].ssh
            raise GroupRefused(f"rank {rank} on {host} has not connected to {where} within {seconds:g} s") from None
        self.welcomed = True

    def missing(self) -> list[int]:
        return [rank for rank in range(1, self.plan.size) if rank not in self.followers]

    async def _compare(self) -> None:
        followers, own_files = self.followers.values(), self.own.proof.same
        same = all(follower.hello and follower.hello.proof.same == own_files for follower in followers)
        alike = same and self.plan.start is Start.LOCAL
        self._progress_at = time.monotonic()
        own_hashes = None if alike else asyncio.wrap_future(self.own.hashes())
        for follower in followers:
            await self.welcome(follower, hashes=not alike, look=False)
        proofs = {follower.name: await follower.answer(FrameKind.PROOF) for follower in followers}
        if own_hashes is not None:
            own = await own_hashes
            for name, proof in sorted(proofs.items()):
                if text := hash_difference(own, proof, name):
                    raise GroupRefused(text)

    async def _meet(self) -> None:
        for follower in self.followers.values():
            await follower.line.send(json_frame(FrameKind.MEET, {}))
        if nodes := self.environment.nodes:
            try:
                await check_reached(nodes[1], self.group)
            except AddressError as error:
                raise GroupRefused(f"rank 0 does not reach {self.followers[1].name}: {error}") from None
        for follower in self.followers.values():
            await follower.answer(FrameKind.MEET)

    # connections

    async def _accept(self, start: Callable[[Any], None]) -> None:
        async for sock, address in accept(self.listener):
            if len(self._callers) < _MOST_CALLERS:
                start(self._serve(sock, address))
            else:
                sock.close()

    async def _serve(self, sock: socket.socket, address: str) -> None:
        follower = Follower(FrameStream(sock, _MOST_BYTES), address)
        line = follower.line
        self._callers.add(follower)
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                await line.send(json_frame(FrameKind.CHALLENGE, {"challenge": follower.challenge}))
                hello = await line.receive()
            self._admit(follower, hello)
            while True:
                self._take(follower, await line.receive())
        except (BadFrame, OSError) as error:
            self._forget(follower, error)

    def _admit(self, follower: Follower, received: Frame) -> None:
        """Admits a follower. Raises GroupRefused, which ends the group's start, if the follower's files or versions
        differ from rank 0's. Raises BadFrame, which ends only this connection, for a stranger, and for a follower with
        a wrong key or rank."""
        if received.kind is not FrameKind.HELLO:
            raise BadFrame("it did not send a HELLO")
        try:
            hello = Hello.model_validate(signed_fields(received, self.key, follower.challenge))
        except WrongKey:
            self._refuse(follower, "it has another key than rank 0: distributed.token must be the same on all ranks")
        except ValidationError:
            raise BadFrame("the rank's HELLO has another protocol version") from None
        size = self.plan.size
        if not 0 < hello.rank < size:
            self._refuse(follower, f"there is no rank {hello.rank} among {size}: followers are 1 to {size - 1}")
        if hello.ranks not in (0, size):
            self._refuse(follower, f"it was told of {hello.ranks} ranks, rank 0 has {size}")
        if (other := self.followers.get(hello.rank)) is not None:
            self._refuse(follower, f"rank {hello.rank} is connected already, from {other.host}")
        follower.hello = hello
        self.followers[hello.rank] = follower
        self._changed.set()
        self.check_alike(follower, hello)

    def _refuse(self, follower: Follower, why: str) -> NoReturn:
        self.announce(f"a follower at {follower.address} is refused: {why}")
        follower.line.send_small(json_frame(FrameKind.REFUSED, {"text": why}))
        raise BadFrame(why)

    def _take(self, follower: Follower, received: Frame) -> None:
        if received.kind is FrameKind.FAILED:
            self.lose(follower, GroupRefused(f"{follower.name}: {received.fields().get('text')}"))
        elif received.kind is FrameKind.HASHING:
            self._announce_progress(follower.name, received.fields())
        elif received.kind is not FrameKind.PING:
            follower.answers.put_nowait(received)

    def _forget(self, follower: Follower, error: Exception) -> None:
        """Removes a connection that has ended or was no follower. A welcomed follower counts as lost."""
        self._callers.discard(follower)
        follower.line.release()
        if isinstance(error, BadFrame):  # let a refusal arrive
            hang_up(follower.sock)
        follower.sock.close()
        if self.followers.get(follower.rank) is follower:
            if not self.welcomed:
                del self.followers[follower.rank]
            self._changed.set()
            if self.welcomed:
                how = f" ({error})" if isinstance(error, BadFrame) else ""
                self.lose(follower, RanksLost(Loss.DIED, f"{follower.name} ended while the group began{how}"))

    async def _beat(self) -> None:
        """Sends signs of life, and watches for those of welcomed followers."""
        watchdog, alive = Watchdog(SILENT_SECONDS), ping(Progress())
        while True:
            for follower in list(self.followers.values()):
                follower.line.send_small(alive)
            for follower in list(self.followers.values()) if self.welcomed else ():
                vitals = Vitals(follower.name, follower.line.heard)
                if (loss := watchdog.find_loss([vitals], time.monotonic())) is not None:
                    self.lose(follower, RanksLost(*loss))
            if self.own.hashing:
                self._announce_progress("rank 0", self.own.progress)
            await asyncio.sleep(PING_SECONDS)

    def _announce_progress(self, name: str, fields: Mapping[str, Any]) -> None:
        if (now := time.monotonic()) - self._progress_at > PROGRESS_SECONDS:
            self._progress_at = now
            self.announce(f"{name}: {hash_progress(fields)}")

    def _drop(self, error: BaseException) -> None:
        text = error.message if isinstance(error, DraftdError) else "rank 0 has failed"
        kind = FrameKind.REFUSED if isinstance(error, GroupRefused) else FrameKind.FAILED
        for caller in self._callers:
            if caller.hello is not None:
                caller.line.send_small(json_frame(kind, {"text": text}))
                caller.line.release()
                hang_up(caller.sock)
            caller.line.close()


def listen_for_followers(plan: GroupPlan) -> socket.socket:
    """Returns the socket that followers connect to. The daemon keeps it over all starts of the group, so followers can
    wait in its backlog. Raises ConfigError."""
    try:
        return socket.create_server((plan.address, plan.port), family=socket.AF_INET, backlog=_MOST_CALLERS)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            allowed = f"a port of {plan.address} that no other program listens on"
            raise ConfigError("distributed.port", plan.port, allowed) from None
        name = f"{SETTING}: hosts[0].ips[0]" if plan.start is not Start.LAUNCHER else "rank 0's address"
        allowed = f"an address of this machine, which is rank 0's ({in_words(error)})"
        raise ConfigError(name, plan.address, allowed) from None
