"""Checks that neighbours in MLX's ring reach each other, before MLX tries: MLX would wait for a neighbour forever, use
a port that another program listens on, or report only a system error number.

Each rank listens on its own addresses for a while, and connects to its neighbour's. Both speak frames (frames.py): a
HELLO with the group's id, then an ECHO in answer to each ECHO, which times the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from draftd.errors import in_words
from draftd.ranks.frames import BadFrame, FrameKind, frame, json_frame
from draftd.ranks.handshake import FrameStream, accept, background, prepare

_CONNECT_SECONDS = 3.0
_PINGS, _PING_BYTES = 100, 64
_BLOCK_BYTES, _BLOCKS_AT_ONCE = 1 << 18, 4
_STREAM_SECONDS = 0.4


class AddressError(Exception):
    """An unusable address, in one line without the rank."""


@contextlib.asynccontextmanager
async def ring_addresses(nodes: Sequence[str], group: str) -> AsyncIterator[None]:
    """Listens on a rank's "HOST:PORT" while the block runs; afterwards the ports are free. Raises AddressError."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(_listen(node)) for node in nodes]
        async with background() as start:
            for listener in listeners:
                start(_serve(listener, group, start))
            yield


async def check_reached(nodes: Sequence[str], group: str) -> None:
    """Connects to another rank's addresses. Raises AddressError."""
    for node in nodes:
        (await _connect(node, group)).close()


async def measure_link(nodes: Sequence[str], group: str) -> dict[str, float]:
    """Connects to another rank's addresses, and returns what `measure` finds on the first connection. Raises
    AddressError."""
    await check_reached(nodes[1:], group)
    line = await _connect(nodes[0], group)
    try:
        return await measure(line.send, line.receive)
    except (BadFrame, OSError) as error:
        raise AddressError(f"the link to {nodes[0]} cannot be measured: {error}") from None
    finally:
        line.close()


async def measure(
    send: Callable[[bytes], Coroutine[Any, Any, None]], receive: Callable[[], Coroutine[Any, Any, Any]]
) -> dict[str, float]:
    """Measures a connection whose other side echoes. Returns "round_trip_seconds", the median of small frames, and
    "bytes_per_second" in each direction while large frames flow both ways."""
    trips, ping = list[float](), frame(FrameKind.ECHO, 0, bytes(_PING_BYTES))
    for _ in range(_PINGS):
        began = time.perf_counter()
        await send(ping)
        await receive()
        trips.append(time.perf_counter() - began)
    block, count, began = frame(FrameKind.ECHO, 0, bytes(_BLOCK_BYTES)), 0, time.perf_counter()
    for _ in range(_BLOCKS_AT_ONCE):
        await send(block)
    while time.perf_counter() - began < _STREAM_SECONDS:
        await receive()
        await send(block)
        count += 1
    for _ in range(_BLOCKS_AT_ONCE):
        await receive()
        count += 1
    rate = count * _BLOCK_BYTES / (time.perf_counter() - began)
    return {"round_trip_seconds": statistics.median(trips), "bytes_per_second": rate}


async def _connect(node: str, group: str) -> FrameStream:
    host, _, port = node.rpartition(":")
    try:
        sock = await asyncio.to_thread(socket.create_connection, (host, int(port)), _CONNECT_SECONDS)
    except OSError as error:
        raise AddressError(f"{node} cannot be reached: {in_words(error)}") from None
    prepare(sock)
    line = FrameStream(sock)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            hello = await line.receive()
        if hello.fields().get("group") != group:
            raise BadFrame("of another group")
        return line
    except (BadFrame, OSError):
        line.close()
        raise AddressError(f"{node} answers, but not as a rank of this group") from None


async def _serve(listener: socket.socket, group: str, start: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async for sock, _ in accept(listener):
        start(_answer(sock, group))


async def _answer(sock: socket.socket, group: str) -> None:
    line = FrameStream(sock)
    with contextlib.closing(line), contextlib.suppress(BadFrame, OSError):
        await line.send(json_frame(FrameKind.HELLO, {"group": group}))
        while (received := await line.receive()).kind is FrameKind.ECHO:
            await line.send(frame(FrameKind.ECHO, 0, received.body))


def _listen(node: str) -> socket.socket:
    host, _, port = node.rpartition(":")
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET)
    except socket.gaierror as error:
        raise AddressError(f"{host} is no address: {in_words(error)}") from None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise AddressError(f"{host} is not an address of this machine: correct the hostfile") from None
        if error.errno == errno.EADDRINUSE:
            raise AddressError(f"port {port} of {host} is taken by another program") from None
        raise AddressError(f"cannot listen on {node}: {in_words(error)}") from None
