"""The handshake that starts a group, before any rank has MLX: messages between rank 0 (form.py) and a follower
(join.py).

    rank 0     CHALLENGE: a random number
    follower   HELLO: its rank, its host, its versions and files (proof.py), signed with the group's key
    rank 0     WELCOME: how to join (environment.py) and the group's time limit, signed, once all are there and alike
    follower   HASHING: its progress with its model's files, if they must be hashed; then PROOF
    rank 0     MEET; each connects to its neighbour in the ring (neighbours.py), and the follower answers MEET
    rank 0     GO

Any fault is sent to all in one line: REFUSED by rank 0, FAILED by a follower. `draftd doctor --hostfile` forms a group
in the same way, and says in WELCOME that it only checks. Then PROOF and MEET report findings, right or wrong, ECHO
frames time the connection, and rank 0 sends END instead of GO.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from draftd.errors import DraftdError
from draftd.ranks.frames import MOST_BYTES, BadFrame, Frame, FrameKind, FrameReader, frame
from draftd.ranks.proof import Proof

PING_SECONDS, SILENT_SECONDS = 1.0, 30.0  # between signs of life; the longest without one
PROGRESS_SECONDS = 5.0  # between lines about hashing
_HANG_UP_SECONDS = 0.2
_ACCEPT_PAUSE_SECONDS = 0.1
_SIGNATURE_BYTES = 32
_AT_ONCE = 1 << 18


class GroupRefused(DraftdError, status="FAILED_PRECONDITION"):
    """The group cannot start: the ranks differ, or cannot reach each other."""


class WrongKey(BadFrame):
    """The sender does not have the group's key."""


class Hello(BaseModel):
    """A follower's HELLO. `ranks`: the group's size; 0 if the follower does not know it. `challenge`: for rank 0 to
    sign."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    rank: int
    ranks: int = Field(ge=0)
    host: str = Field(max_length=255)
    proof: Proof
    challenge: str = Field(max_length=64)


def new_challenge() -> str:
    return secrets.token_hex(16)


def signed_frame(kind: FrameKind, fields: Mapping[str, Any], key: bytes, challenge: str) -> bytes:
    """Returns a JSON frame preceded by an HMAC-SHA256 of it and of the other side's challenge."""
    body = json.dumps(fields).encode()
    return frame(kind, 0, _sign(kind, body, key, challenge) + body)


def signed_fields(received: Frame, key: bytes, challenge: str) -> dict[str, Any]:
    """Returns a signed frame's fields. Raises WrongKey, and BadFrame for a body that is not a JSON object."""
    signature, body = received.body[:_SIGNATURE_BYTES], received.body[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _sign(received.kind, body, key, challenge)):
        raise WrongKey("the sender's distributed.token differs from this rank's")
    return received._replace(body=body).fields()


def _sign(kind: FrameKind, body: bytes, key: bytes, challenge: str) -> bytes:
    return hmac.digest(key, bytes([kind]) + challenge.encode() + b"\0" + body, "sha256")


class FrameStream:
    """Frames over a connected socket, on the running event loop. After `release` the socket and `reader` continue where
    it stopped, without losing data."""

    def __init__(self, sock: socket.socket, most_bytes: int = MOST_BYTES) -> None:
        self.sock, self.reader = sock, FrameReader(most_bytes)
        self.heard = time.monotonic()
        self._frames: asyncio.Queue[Frame | Exception] = asyncio.Queue()
        self._loop, self._sending = asyncio.get_running_loop(), asyncio.Lock()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._read)

    async def receive(self) -> Frame:
        """Waits for a frame. Raises BadFrame, and OSError once the other side is gone."""
        item = await self._frames.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def send(self, data: bytes) -> None:
        async with self._sending:
            await self._loop.sock_sendall(self.sock, data)

    def send_small(self, data: bytes) -> None:
        """Sends a frame that always fits and may be lost; does nothing while another is being sent."""
        if not self._sending.locked():
            with contextlib.suppress(OSError):
                self.sock.send(data)

    def release(self) -> None:
        if self.sock.fileno() >= 0:
            self._loop.remove_reader(self.sock)

    def close(self) -> None:
        self.release()
        self.sock.close()

    def _read(self) -> None:
        try:
            if not (data := self.sock.recv(_AT_ONCE)):
                raise ConnectionResetError("it hung up")
            self.heard = time.monotonic()
            for received in self.reader.feed(data):
                self._frames.put_nowait(received)
        except BlockingIOError:
            pass
        except (BadFrame, OSError) as error:
            self.release()
            self._frames.put_nowait(error)


@contextlib.asynccontextmanager
async def background() -> AsyncIterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """Runs coroutines beside the block, and cancels them at its end. The first error of any of them ends all and is
    raised."""
    running = set[asyncio.Task[None]]()
    try:
        async with asyncio.TaskGroup() as tasks:

            def start(work: Coroutine[Any, Any, None]) -> None:
                running.add(task := tasks.create_task(work))
                task.add_done_callback(running.discard)

            yield start
            for task in running:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def accept(listener: socket.socket) -> AsyncIterator[tuple[socket.socket, str]]:
    """Yields each connection with the address that it comes from."""
    listener.setblocking(False)
    while True:
        try:
            sock, address = await asyncio.get_running_loop().sock_accept(listener)
            prepare(sock)
        except OSError:
            await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)  # the connection is gone again, or no file descriptor is free
            continue
        yield sock, str(address[0])


def prepare(sock: socket.socket) -> None:
    """Sets socket options: frames are sent at once, and a machine that disappears is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": 10, "TCP_KEEPALIVE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}.items():
        if (option := getattr(socket, name, None)) is not None:  # Linux and macOS name them differently
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def hang_up(sock: socket.socket) -> None:
    """Closes a connection so that the last frame arrives: closing one with unread data would reset it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(_HANG_UP_SECONDS)
        while sock.recv(1 << 16):
            pass
    sock.close()


def hash_progress(fields: Mapping[str, Any]) -> str:
    """Describes a rank's progress with its files."""
    done, whole = (float(fields.get(name, 0)) / 1e9 for name in ("hashed", "bytes"))
    return f"hashing the model's files: {done:.1f} of {whole:.1f} GB"
