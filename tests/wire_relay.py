"""Observes the traffic between a client and a daemon: a relay that records when each message passed.

It uses neither draftd's client nor gRPC's library: it reads HTTP/2 frames (RFC 9113) and the messages in them (five
bytes before each: compressed or not, and its length). It supports one call at a time.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_PREFACE = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
_DATA = 0


@dataclass(frozen=True)
class Message:
    """A message. `at` is time.perf_counter() when its last byte arrived."""

    at: float
    content: bytes


@dataclass
class Relay:
    """A relay. `asked` are the client's messages, `answered` the daemon's."""

    target: str
    asked: list[Message] = field(default_factory=list)
    answered: list[Message] = field(default_factory=list)


@contextlib.contextmanager
def relaying(port: int) -> Iterator[Relay]:
    """Relays one connection after another to the daemon on `port`, until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    relay = Relay(f"127.0.0.1:{listener.getsockname()[1]}")
    sockets: list[socket.socket] = [listener]
    threads: list[threading.Thread] = []

    def begin(run: Callable[..., None], *arguments: object) -> None:
        threads.append(threading.Thread(target=run, args=arguments, daemon=True))
        threads[-1].start()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                daemon = socket.create_connection(("127.0.0.1", port))
                for one in (client, daemon):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    sockets.append(one)
                begin(_pass_on, client, daemon, _Frames(_PREFACE, relay.asked))
                begin(_pass_on, daemon, client, _Frames(0, relay.answered))

    begin(accept)
    try:
        yield relay
    finally:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in threads:
            thread.join(10)


def _pass_on(source: socket.socket, sink: socket.socket, frames: _Frames) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            frames.take(time.perf_counter(), data)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


class _Frames:
    """Splits the passing bytes into messages."""

    def __init__(self, skip: int, messages: list[Message]) -> None:
        self._skip, self._messages = skip, messages
        self._bytes, self._body = bytearray(), bytearray()

    def take(self, at: float, data: bytes) -> None:
        self._bytes += data
        if self._skip:
            cut = min(self._skip, len(self._bytes))
            del self._bytes[:cut]
            self._skip -= cut
        while len(self._bytes) >= 9 and len(self._bytes) >= 9 + (length := int.from_bytes(self._bytes[:3])):
            if self._bytes[3] == _DATA:
                self._body += self._bytes[9 : 9 + length]
            del self._bytes[: 9 + length]
        while len(self._body) >= 5 and len(self._body) >= 5 + (length := int.from_bytes(self._body[1:5])):
            assert self._body[0] == 0, "a compressed message"
            self._messages.append(Message(at, bytes(self._body[5 : 5 + length])))
            del self._body[: 5 + length]
