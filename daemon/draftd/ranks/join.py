"""A follower's side of the start of a group: connects to rank 0, identifies itself, and learns how to join
(handshake.py)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftd.engine.ranks.channel import Progress, RanksLost
from draftd.errors import ConfigError, DraftdError, in_words
from draftd.group import Loss
from draftd.ranks.doctor import describe_machine
from draftd.ranks.environment import RankEnvironment
from draftd.ranks.frames import BadFrame, Frame, FrameKind, FrameReader, frame, json_frame, ping
from draftd.ranks.handshake import (
    PING_SECONDS,
    PROGRESS_SECONDS,
    SILENT_SECONDS,
    FrameStream,
    GroupRefused,
    Hello,
    WrongKey,
    background,
    hash_progress,
    new_challenge,
    prepare,
    signed_fields,
    signed_frame,
)
from draftd.ranks.neighbours import AddressError, check_reached, measure_link, ring_addresses
from draftd.ranks.proof import OwnProof
from draftd.ranks.watchdog import Vitals, Watchdog

_CONNECT_SECONDS = 3.0  # for one attempt
_PAUSE_SECONDS = 0.25, 5.0  # between attempts: the first pause, the longest


@dataclass(frozen=True, slots=True)
class JoinedGroup:
    """The connection to rank 0 of a group that is about to start, and rank 0's answers."""

    sock: socket.socket
    reader: FrameReader
    environment: RankEnvironment
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class FollowerPlace:
    """A follower's place in its group. `address`: rank 0's HOST:PORT. `ranks`: 0 if only rank 0 knows. `patience`:
    seconds for which rank 0 may be unreachable; None: no limit."""

    address: str
    rank: int
    ranks: int = 0
    patience: float | None = None


class GroupJoin:
    """One follower that joins a group."""

    def __init__(
        self,
        place: FollowerPlace,
        own: OwnProof,
        *,
        key: bytes,
        nodes: Sequence[Sequence[str]] = (),
        announce: Callable[[str], None],
    ) -> None:
        """`key`: the group's. `nodes`: the ring's, if a launcher has set them. Raises ConfigError."""
        host, _, port = place.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
            raise ConfigError("--address", place.address, "rank 0's HOST:PORT")
        self._place, self._own, self._key, self._announce = place, own, key, announce
        self._target = host.strip("[]"), int(port)
        self._nodes = [list(node) for node in nodes]
        self._welcomed = False  # whether rank 0 has sent WELCOME on the present connection

    async def run(self) -> JoinedGroup:
        """Joins the group. Raises GroupRefused if rank 0 refuses this rank or the group cannot start, RanksLost if rank
        0 leaves after its WELCOME, DraftdError if it is unreachable."""
        while True:
            line = FrameStream(await self._connect())
            self._welcomed = False
            try:
                if (joined := await self._join(line)) is not None:
                    line.release()
                    line.sock.settimeout(None)
                    return joined
                line.close()
            except BaseException as error:
                line.close()
                if isinstance(error, WrongKey):
                    text = f"rank 0 at {self._place.address} does not have this rank's key"
                    raise GroupRefused(f"{text}: distributed.token must be the same on all ranks") from None
                if isinstance(error, BadFrame):
                    text = "what answers at rank 0's address is not a rank, or runs another version"
                    raise GroupRefused(f"{text}: {error}") from None
                if not isinstance(error, OSError):
                    raise
                if self._welcomed:
                    raise RanksLost(Loss.DIED, f"rank 0 has ended: {in_words(error)}") from None
            # Rank 0 only checked; or its process has ended, and another will take its place.
            await asyncio.sleep(_PAUSE_SECONDS[0])

    async def _connect(self) -> socket.socket:
        began, pause, announced = time.monotonic(), _PAUSE_SECONDS[0], False
        while True:
            try:
                sock = await asyncio.to_thread(socket.create_connection, self._target, _CONNECT_SECONDS)
                prepare(sock)
                return sock
            except socket.gaierror as error:
                raise ConfigError("--address", self._place.address, f"rank 0's HOST:PORT ({in_words(error)})") from None
            except OSError as error:
                text = f"rank 0 cannot be reached at {self._place.address}: {in_words(error)}"
                if self._place.patience is not None and time.monotonic() - began + pause > self._place.patience:
                    raise DraftdError(f"{text}; check the address and the firewall") from None
                if not announced:
                    self._announce(f"{text}; it is tried again until it is there")
                announced = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS[1])

    async def _join(self, line: FrameStream) -> JoinedGroup | None:
        """Completes the handshake. Returns None if rank 0 only checked."""
        challenge = (await _expect(line, FrameKind.CHALLENGE)).fields()["challenge"]
        hello = Hello(
            rank=self._place.rank,
            ranks=self._place.ranks,
            host=socket.gethostname(),
            proof=self._own.proof,
            challenge=new_challenge(),
        )
        await line.send(signed_frame(FrameKind.HELLO, hello.model_dump(), self._key, challenge))
        # Rank 0 may be waiting for other ranks or restarting; keepalive notices if its machine is gone.
        welcome = signed_fields(await _expect(line, FrameKind.WELCOME), self._key, hello.challenge)
        self._welcomed, environment = True, RankEnvironment(**welcome["environment"])
        async with background() as start:
            start(self._beat(line))
            if welcome["look"]:
                await self._answer_look(line, welcome, environment.nodes)
                return None
            await self._agree(line, welcome, self._nodes or environment.nodes)
        return JoinedGroup(line.sock, line.reader, environment, float(welcome["timeout_seconds"]))

    async def _agree(self, line: FrameStream, welcome: dict[str, Any], nodes: list[list[str]]) -> None:
        group = str(welcome["group"])
        try:
            async with ring_addresses(nodes[self._place.rank] if nodes else (), group):
                await line.send(json_frame(FrameKind.PROOF, await self._hash(welcome)))
                await _expect(line, FrameKind.MEET)
                if nodes:
                    right = (self._place.rank + 1) % len(nodes)
                    try:
                        await check_reached(nodes[right], group)
                    except AddressError as error:
                        raise AddressError(f"it does not reach rank {right}: {error}") from None
                await line.send(json_frame(FrameKind.MEET, {}))
                await _expect(line, FrameKind.GO)
        except (AddressError, DraftdError) as error:
            if not isinstance(error, GroupRefused | RanksLost):
                line.send_small(json_frame(FrameKind.FAILED, {"text": str(error)}))
            if isinstance(error, AddressError):
                raise GroupRefused(str(error)) from None
            raise

    async def _answer_look(self, line: FrameStream, welcome: dict[str, Any], nodes: list[list[str]]) -> None:
        """Reports all findings on this machine, faults included, to a rank 0 that only checks."""
        group, meeting = str(welcome["group"]), dict[str, Any]()
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(ring_addresses(nodes[self._place.rank] if nodes else (), group))
            except AddressError as error:
                meeting["listening"] = str(error)
            proof = await asyncio.to_thread(describe_machine)
            try:
                proof["hashes"] = await self._hash(welcome)
            except DraftdError as error:
                proof["error"] = error.message
            await line.send(json_frame(FrameKind.PROOF, proof))
            if (await _expect(line, FrameKind.MEET)).fields()["reach"]:
                try:
                    meeting["figures"] = await measure_link(nodes[(self._place.rank + 1) % len(nodes)], group)
                except AddressError as error:
                    meeting["error"] = str(error)
            await line.send(json_frame(FrameKind.MEET, meeting))
            while (received := await _expect(line, FrameKind.ECHO, FrameKind.END)).kind is FrameKind.ECHO:
                await line.send(frame(FrameKind.ECHO, 0, received.body))

    async def _hash(self, welcome: dict[str, Any]) -> dict[str, str]:
        return await asyncio.wrap_future(self._own.hashes()) if welcome["hashes"] else {}

    async def _beat(self, line: FrameStream) -> None:
        """Sends signs of life, and watches for rank 0's."""
        watchdog, announced_at = Watchdog(SILENT_SECONDS), time.monotonic()
        while True:
            progress, now = self._own.progress, time.monotonic()
            line.send_small(json_frame(FrameKind.HASHING, progress) if self._own.hashing else ping(Progress()))
            if self._own.hashing and now - announced_at > PROGRESS_SECONDS:
                announced_at = now
                self._announce(hash_progress(progress))
            if (loss := watchdog.find_loss([Vitals("rank 0", line.heard)], now)) is not None:
                raise RanksLost(*loss)
            await asyncio.sleep(PING_SECONDS)


async def _expect(line: FrameStream, *kinds: FrameKind) -> Frame:
    """Returns the next frame, which must be of one of these kinds. Raises GroupRefused if rank 0 refuses the group,
    RanksLost if it has failed."""
    while (received := await line.receive()).kind is FrameKind.PING:
        pass
    if received.kind in (FrameKind.REFUSED, FrameKind.FAILED):
        text = str(received.fields().get("text"))
        raise GroupRefused(text) if received.kind is FrameKind.REFUSED else RanksLost(Loss.FAILED, text)
    if received.kind not in kinds:
        raise GroupRefused(f"rank 0 sent {received.kind.name} instead of {kinds[0].name}: it runs another version")
    return received
