"""A minimal channel for records: a TCP connection to each follower, with frames of a length and bytes. An empty frame
ends a model; the follower's result for it then comes back."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from draftd.engine.ranks.channel import Progress, RanksLost
from draftd.group import Loss

_LENGTH = struct.Struct("<I")


class Leader:
    """A `RecordSender`."""

    def __init__(self, port: int, followers: int, seconds: float = 60.0) -> None:
        self.executed_last: Progress | None = None
        self.record_bytes = 0  # of one model
        with socket.create_server(("127.0.0.1", port)) as server:
            server.settimeout(seconds)
            self._followers = [server.accept()[0] for _ in range(followers)]
        for one in self._followers:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.settimeout(seconds)

    def send(self, record: bytes) -> None:
        self.record_bytes += len(record)
        frame = _LENGTH.pack(len(record)) + record
        try:
            for one in self._followers:
                one.sendall(frame)
        except OSError as error:
            raise RanksLost(Loss.DIED, f"a follower is gone: {error}") from error

    def report_progress(self, progress: Progress) -> None:
        self.executed_last = progress

    def end(self) -> list[Any]:
        """Ends the model. Returns each follower's result."""
        self.send(b"")
        self.record_bytes = 0
        return [json.loads(_received(one)) for one in self._followers]


class FollowerEnd:
    """A `RecordReceiver`."""

    def __init__(self, port: int, seconds: float = 60.0) -> None:
        self.executed_last: Progress | None = None
        self._socket = _connected(port, time.monotonic() + seconds)
        self._socket.settimeout(None)

    def ready(self, seconds: float) -> bool:
        return bool(select.select([self._socket], [], [], seconds)[0])

    def receive(self) -> bytes | None:
        return _received(self._socket) or None

    def report_progress(self, progress: Progress) -> None:
        self.executed_last = progress

    def say(self, what: Any) -> None:
        said = json.dumps(what).encode()
        self._socket.sendall(_LENGTH.pack(len(said)) + said)


def _connected(port: int, ends: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.02)


def _received(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection.recv, _LENGTH.size))
    return _exactly(connection.recv, length)


def _exactly(recv: Callable[[int], bytes], length: int) -> bytes:
    parts, left = list[bytes](), length
    while left:
        if not (part := recv(left)):
            raise RanksLost(Loss.DIED, "the connection to rank 0 has ended")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
