"""How a group begins, before any rank has MLX: followers connect to rank 0 and prove that they are like it; then all
see whether they reach each other.

    follower   HELLO: its rank, its host, what it is (proof.py)
    rank 0     WELCOME: how to join (joining.py) and the group's bounds, once all have said theirs and are alike
    both       hash their model's files, and say how far they are: HASHING; then the follower PROOF
    rank 0     MEET; each connects to its neighbour's addresses (ring_addresses.py), and the follower says MEET
    rank 0     GO

What is wrong is told in one line, to all: REFUSED by rank 0, FAILED by a follower.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftd.engine.ranks.channel import RanksLost
from draftd.errors import ConfigError, DraftdError, in_words
from draftd.group import Loss
from draftd.ranks.frames import BadFrame, Frame, FrameReader, Kind, Report, frame, json_frame
from draftd.ranks.hostfile import SETTING
from draftd.ranks.joining import Joining
from draftd.ranks.plan import GroupPlan, Start
from draftd.ranks.proof import OwnProof, Proof, difference, hash_difference
from draftd.ranks.ring_addresses import AddressError, RingAddresses, check_reached

_HELLO_SECONDS = 5.0  # for what connects to say that it is a follower
_MOST_CALLERS = 128  # connections at a time, of whoever
_MOST_BYTES = 1 << 20  # that one of them may say at a time
_BEAT_SECONDS = 1.0  # between signs of life
_SILENT_SECONDS = 30.0
_HANG_UP_SECONDS = 0.2
_TOLD_SECONDS = 5.0  # between lines about hashing
_CONNECT_SECONDS = {Start.LOCAL: 60.0, Start.SSH: 60.0, Start.LAUNCHER: 60.0, Start.BY_HAND: None}


class Refused(DraftdError, status="FAILED_PRECONDITION"):
    """There is no group: the ranks are unlike, or do not reach each other."""


class Hello(BaseModel):
    """`ranks`: as the follower was told; 0 where it was not."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    rank: int
    ranks: int = Field(ge=0)
    host: str = Field(max_length=255)
    proof: Proof


@dataclass
class Follower:
    """A follower, as rank 0 has it. `address`: where it called from."""

    sock: socket.socket
    address: str
    reader: FrameReader = field(default_factory=FrameReader)
    rank: int = 0  # while it has not said HELLO
    host: str = ""
    same: str = ""  # its proof's
    heard: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"

    def tell(self, received: bytes) -> None:
        """Of the handshake: few and small, so that they always fit."""
        with contextlib.suppress(OSError):
            self.sock.send(received)


class GroupFormation:
    """Rank 0's side, on one thread."""

    def __init__(
        self,
        listener: socket.socket,
        plan: GroupPlan,
        own: OwnProof,
        *,
        group: str,
        bounds: Mapping[str, float],
        announce: Callable[[str], None],
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`listener`: `listen_for_followers`. `group`: its id. `bounds`: `timeout_seconds` and such, told to followers.
        `alive` is called about ten times a second; what it raises ends this."""
        self._listener, self._plan, self._own, self._group = listener, plan, own, group
        self._bounds, self._announce, self._alive = dict(bounds), announce, alive
        self.joining = Joining.of(plan)
        self._peers, self._callers = dict[int, Follower](), dict[socket.socket, Follower]()
        self._selector = selectors.DefaultSelector()
        self._beat = self._told = 0.0

    def run(self) -> list[Follower]:
        """The followers by rank, with which it was agreed to go. Raises Refused with what keeps them from it, RanksLost
        where one has gone, and what `alive` raises; then none is left connected."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        with contextlib.ExitStack() as stack:
            stack.callback(self._selector.close)
            try:
                addresses = stack.enter_context(_addresses(self.joining.nodes, 0, self._group))
                self._connect()
                self._compare()
                self._meet()
                if addresses is not None:
                    addresses.close()
                for peer in self._peers.values():
                    peer.tell(frame(Kind.GO))
            except BaseException as error:
                self._drop(error)
                raise
            for caller in self._callers.values():
                if self._peers.get(caller.rank) is not caller:
                    caller.sock.close()
        return [self._peers[rank] for rank in sorted(self._peers)]

    def _connect(self) -> None:
        seconds, began = _CONNECT_SECONDS[self._plan.start], time.monotonic()
        where = "{}:{}".format(*self._listener.getsockname()[:2])
        if seconds is None:
            self._announce(f"waiting for {self._plan.size - 1} followers on {where}: `draftd follow --address {where}`")
        while missing := [rank for rank in range(1, self._plan.size) if rank not in self._peers]:
            if seconds is not None and time.monotonic() - began > seconds:
                host = self._plan.hosts[missing[0]].ssh
                raise Refused(f"rank {missing[0]} on {host} has not connected to {where} within {seconds:g} s")
            for _ in self._frames():
                pass
            for caller in [one for one in self._callers.values() if not one.rank]:
                if time.monotonic() - caller.heard > _HELLO_SECONDS:
                    self._forget(caller)

    def _compare(self) -> None:
        plan, local = self._plan, self._plan.start is Start.LOCAL
        alike = local and all(peer.same == self._own.proof.same for peer in self._peers.values())
        welcome = {"group": self._group, "joining": self.joining.told(), "hashes": not alike, **self._bounds}
        for peer in self._peers.values():
            peer.tell(json_frame(Kind.WELCOME, welcome))
        own: Future[dict[str, str]] | None = None if alike else self._own.hashes()
        found, self._told = dict[int, dict[str, Any]](), time.monotonic()
        while len(found) < plan.size - 1 or (own is not None and not own.done()):
            for peer, received in self._frames():
                if received.kind is Kind.PROOF:
                    found[peer.rank] = received.fields()
                elif received.kind is Kind.HASHING and self._may_tell():
                    self._announce(f"{peer.name}: {hash_progress(received.fields())}")
            self._check_silence()
            if own is not None and not own.done() and self._may_tell():
                self._announce(f"rank 0: {hash_progress(_progress(self._own))}")
        if own is not None:
            mine = own.result()
            for rank, fields in sorted(found.items()):
                if what := hash_difference(mine, fields, self._peers[rank].name):
                    raise Refused(what)

    def _meet(self) -> None:
        for peer in self._peers.values():
            peer.tell(frame(Kind.MEET))
        if nodes := self.joining.nodes:
            try:
                check_reached(nodes[1], self._group)
            except AddressError as error:
                raise Refused(f"rank 0 does not reach {self._peers[1].name}: {error}") from None
        met = set[int]()
        while len(met) < len(self._peers):
            met |= {peer.rank for peer, received in self._frames() if received.kind is Kind.MEET}
            self._check_silence()

    def _frames(self) -> Iterator[tuple[Follower, Frame]]:
        """What ranks say within a tenth of a second, once each has said what it is."""
        self._alive()
        if (now := time.monotonic()) - self._beat > _BEAT_SECONDS:
            self._beat = now
            for peer in self._peers.values():
                peer.tell(Report().ping())
        for key, _ in self._selector.select(0.1):
            if key.fileobj is self._listener:
                self._accept()
                continue
            peer = self._callers[key.fileobj]  # type: ignore[index]
            try:
                if not (data := peer.sock.recv(1 << 16)):
                    raise ConnectionResetError
                frames = list(peer.reader.feed(data))
                for received in frames:
                    if not peer.rank:
                        self._hello(peer, received)
                    elif received.kind is Kind.FAILED:
                        raise Refused(f"{peer.name}: {received.fields().get('text')}")
                    else:
                        peer.heard = time.monotonic()
                        yield peer, received
            except BlockingIOError:
                continue
            except (BadFrame, OSError) as error:
                self._forget(peer, error)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            sock, address = self._listener.accept()
            if len(self._callers) >= _MOST_CALLERS:
                sock.close()
                return
            prepare(sock)
            sock.setblocking(False)
            self._callers[sock] = Follower(sock, str(address[0]), FrameReader(_MOST_BYTES))
            self._selector.register(sock, selectors.EVENT_READ)

    def _hello(self, peer: Follower, received: Frame) -> None:
        """Raises Refused where it is unlike rank 0; BadFrame of a stranger. One that is not expected is refused by
        itself."""
        if received.kind is not Kind.HELLO:
            raise BadFrame("it does not say what it is")
        try:
            hello = Hello.model_validate(received.fields())
        except ValidationError:
            raise BadFrame("what it says is no HELLO of this version") from None
        size = self._plan.size
        if not 0 < hello.rank < size:
            why = f"there is no rank {hello.rank} among {size}: followers are 1 to {size - 1}"
        elif hello.ranks not in (0, size):
            why = f"it was told of {hello.ranks} ranks, rank 0 has {size}"
        elif hello.rank in self._peers:
            why = f"rank {hello.rank} is connected already, from {self._peers[hello.rank].host}"
        else:
            peer.rank, peer.host, peer.same = hello.rank, hello.host, hello.proof.same
            peer.heard = time.monotonic()
            self._peers[peer.rank] = peer
            if what := difference(self._own.proof, hello.proof, peer.name):
                raise Refused(what)
            return
        self._announce(f"a follower on {hello.host} is refused: {why}")
        peer.tell(json_frame(Kind.REFUSED, {"text": why}))
        raise BadFrame(why)

    def _forget(self, peer: Follower, error: Exception | None = None) -> None:
        """It has gone, or was none. Raises RanksLost for a rank that was told to join already."""
        self._selector.unregister(peer.sock)
        hang_up(self._callers.pop(peer.sock).sock)
        if peer.rank and self._peers.get(peer.rank) is peer:
            missing = len(self._peers) < self._plan.size - 1
            del self._peers[peer.rank]
            if not missing:
                how = f" ({error})" if isinstance(error, BadFrame) else ""
                raise RanksLost(Loss.DIED, f"{peer.name} ended while the group began{how}")

    def _check_silence(self) -> None:
        for peer in self._peers.values():
            if time.monotonic() - peer.heard > _SILENT_SECONDS:
                raise RanksLost(Loss.SILENT, f"{peer.name} has said nothing for {_SILENT_SECONDS:g} s")

    def _may_tell(self) -> bool:
        if (now := time.monotonic()) - self._told < _TOLD_SECONDS:
            return False
        self._told = now
        return True

    def _drop(self, error: BaseException) -> None:
        text = error.message if isinstance(error, DraftdError) else "rank 0 has failed"
        kind = Kind.REFUSED if isinstance(error, Refused) else Kind.FAILED
        for caller in self._callers.values():
            if caller.rank:
                caller.tell(json_frame(kind, {"text": text}))
            hang_up(caller.sock)


def listen_for_followers(plan: GroupPlan) -> socket.socket:
    """Where rank 0 is called. Kept by the daemon over all starts of the group, so that followers find someone there
    while it lives: they wait in its backlog. Raises ConfigError."""
    try:
        return socket.create_server((plan.address, plan.port), family=socket.AF_INET, backlog=_MOST_CALLERS)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            allowed = f"a port of {plan.address} that no other program listens on"
            raise ConfigError("distributed.port", plan.port, allowed) from None
        name = f"{SETTING}: hosts[0].ips[0]" if plan.start is not Start.LAUNCHER else "rank 0's address"
        allowed = f"an address of this machine, which is rank 0's ({in_words(error)})"
        raise ConfigError(name, plan.address, allowed) from None


@contextlib.contextmanager
def _addresses(nodes: list[list[str]], rank: int, group: str) -> Iterator[RingAddresses | None]:
    """Of the ring; None of other backends. Raises Refused."""
    if not nodes:
        yield None
        return
    try:
        addresses = RingAddresses(nodes[rank], group)
    except AddressError as error:
        raise Refused(f"rank {rank}: {error}") from None
    with contextlib.closing(addresses):
        yield addresses


def prepare(sock: socket.socket) -> None:
    """Frames are sent at once; a machine that is gone without a word is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": 10, "TCP_KEEPALIVE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}.items():
        if (option := getattr(socket, name, None)) is not None:  # Linux and macOS name them differently
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def hang_up(sock: socket.socket) -> None:
    """So that what was said last arrives: a connection that is closed with something unread is reset."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(_HANG_UP_SECONDS)
        while sock.recv(1 << 16):
            pass
    sock.close()


def _progress(own: OwnProof) -> dict[str, int]:
    return {"hashed": own.hashed_bytes, "bytes": own.bytes}


def hash_progress(fields: Mapping[str, Any]) -> str:
    """A line's part about how far a rank is."""
    done, of = (float(fields.get(name, 0)) / 1e9 for name in ("hashed", "bytes"))
    return f"hashing the model's files: {done:.1f} of {of:.1f} GB"
