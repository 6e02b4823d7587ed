"""A simulated network: a TCP proxy before one server, with delay, jitter, limited bandwidth, and faults.

Bytes keep their order, whatever the jitter. Settings apply from the next byte on, for open connections too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

_PIECE = 16_384  # bytes at a time
_QUEUE = 256  # pieces on their way, each direction of a connection


@dataclass
class Network:
    """Settings of the network. `delay` is seconds in each direction; `jitter` is the share of it that varies at random,
    either way. `bandwidth` is bytes per second in each direction, for all connections together; 0 is unlimited."""

    delay: float = 0.0
    jitter: float = 0.0
    bandwidth: float = 0.0


class Proxy:
    """Listens on 127.0.0.1 at `port` as soon as it is created, on a thread of its own. Any thread may call its
    methods."""

    def __init__(self, host: str, port: int, *, seed: int = 0) -> None:
        self.network = Network()
        self._to, self._dice = (host, port), random.Random(seed)
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refuses, self._swallows = False, False
        self._free = [0.0, 0.0]  # when the bandwidth of each direction is free again
        self.connections = 0  # that were taken, ever
        self.passed = [0, 0]  # bytes to the server, and from it
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server: asyncio.Server | None = None
        self.port = 0
        self._do(self._listen)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def point(self, host: str, port: int) -> None:
        """Sends new connections to another server."""
        self._to = host, port

    def cut(self) -> None:
        """Resets every connection, and refuses new ones until `restore`."""
        self._do(self._cut, True)

    def reset(self) -> None:
        """Resets every connection; new ones are accepted."""
        self._do(self._cut, self._refuses)

    def swallow(self) -> None:
        """Accepts connections but forwards nothing, until `restore` resets them."""
        self._swallows = True

    def restore(self) -> None:
        """Ends all faults. Swallowed bytes are lost, so their connections are reset."""
        swallowed, self._swallows, self._refuses = self._swallows, False, False
        if swallowed:
            self._do(self._cut, False)

    def close(self) -> None:
        self._do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, what: Callable[..., Coroutine[Any, Any, None]], *given: object) -> None:
        asyncio.run_coroutine_threadsafe(what(*given), self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._cut(True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cut(self, refuses: bool) -> None:
        self._refuses = refuses
        for writer in list(self._open):
            _reset(writer)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            _reset(writer)
            return
        self.connections += 1
        self._open.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            if self._swallows:
                while await reader.read(_PIECE):
                    pass
                return
            far_reader, far = await asyncio.open_connection(*self._to)
            self._open.add(far)
            ways = [self._way(0, reader, far), self._way(1, far_reader, writer)]
            tasks = [asyncio.create_task(way) for way in ways]
            self._tasks.update(tasks)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.difference_update(tasks)
        except OSError:
            _reset(writer)
        finally:
            for one in (writer, far):
                if one is not None:
                    self._open.discard(one)
                    with contextlib.suppress(Exception):
                        one.close()

    async def _way(self, way: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one direction to its end."""
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE)
        sending = asyncio.create_task(self._sent(way, pieces, writer))
        self._tasks.add(sending)
        try:
            last = 0.0
            while True:
                data = await reader.read(_PIECE)
                last = max(last, self._arrival(way, len(data)))
                await pieces.put((last, data))
                if not data:
                    await sending
                    return
        finally:
            sending.cancel()
            self._tasks.discard(sending)

    def _arrival(self, way: int, size: int) -> float:
        now, network = time.monotonic(), self.network
        if network.bandwidth:
            self._free[way] = max(self._free[way], now) + size / network.bandwidth
            now = self._free[way]
        return now + network.delay * (1 + network.jitter * self._dice.uniform(-1, 1))

    async def _sent(self, way: int, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            arrival, data = await pieces.get()
            if (wait := arrival - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            if self._swallows:
                if not data:
                    return
                continue
            if not data:
                return
            self.passed[way] += len(data)
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection with a RST."""
    with contextlib.suppress(OSError):
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.contextmanager
def proxied(port: int, *, host: str = "127.0.0.1", seed: int = 0) -> Iterator[Proxy]:
    proxy = Proxy(host, port, seed=seed)
    try:
        yield proxy
    finally:
        proxy.close()
