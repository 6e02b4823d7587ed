"""Sockets that servers of the daemon listen on, and how they read a request."""

from __future__ import annotations

import asyncio
import hmac
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands that only look at a port do without it
    from aiohttp import web


class BodyTooLarge(Exception):
    """Of a request. The rest of it was not read."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Bound, and listening. Raises OSError; socket.gaierror where there is no such host."""
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Where a name is both, as localhost may be, clients are told of 127.0.0.1.
    family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # [::] takes what comes to 0.0.0.0 as well
    made = socket.create_server(address, family=family, backlog=256, dualstack_ipv6=both)
    made.setblocking(False)
    return made


def is_bearer(given: bytes, token: bytes) -> bool:
    """Whether an Authorization header's value has this token, compared in constant time."""
    scheme, _, found = given.strip().partition(b" ")
    return hmac.compare_digest(found.strip(), token) and scheme.lower() == b"bearer"


async def read_whole(request: web.BaseRequest, most: int, seconds: float) -> bytes:
    """A request's body of at most `most` bytes. Raises BodyTooLarge, TimeoutError, and what aiohttp raises where the
    body ends early."""
    if (request.content_length or 0) > most:
        raise BodyTooLarge
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    body = bytearray()
    async with asyncio.timeout(seconds):
        async for part in request.content.iter_any():
            body += part
            if len(body) > most:
                raise BodyTooLarge
    return bytes(body)
