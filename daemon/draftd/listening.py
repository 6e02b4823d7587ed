"""Listening sockets of the daemon's servers, and checks that they share."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # not needed by commands that only check a port
    from aiohttp import web


class BodyTooLarge(Exception):
    """The error for a request's body over the limit. The rest was not read."""


_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)  # for example no IPv6 on this machine
_PICKS = 8  # tries to pick a port that is free at several addresses


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Returns a bound, listening socket for each address of the host on this machine, IPv4 first, all on one port.
    `localhost` is 127.0.0.1 and ::1. Raises OSError; socket.gaierror for an unknown host."""
    name = host.strip("[]")
    resolved = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = dict.fromkeys((family, address) for family, _, _, _, address in resolved)
    if name == "localhost":  # some machines' hosts files lack one of them
        addresses |= dict.fromkeys([(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET6, ("::1", port, 0, 0))])
    ordered = sorted(addresses, key=lambda entry: entry[0] != socket.AF_INET)
    for tries_left in reversed(range(_PICKS)):
        try:
            return _bound(ordered, port)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE or not tries_left:
                raise
    raise AssertionError


_OPTIONS = {"server.port": " (--port)", "server.http_port": " (--http-port)"}


def free_port(setting: str, host: str) -> str:
    """Returns the text for the allowed values in an error about a port in use."""
    return f"a port that is free on {host}; {other_port(setting)}"


def other_port(setting: str) -> str:
    """Returns advice for an error about a port in use."""
    option = _OPTIONS.get(setting, "")
    return f"a daemon may already run there (see draftd status), otherwise set {setting}{option}: 0 picks a free one"


def try_listening(host: str, port: int) -> None:
    """Raises the errors of `listening_sockets`."""
    for listener in listening_sockets(host, port):
        listener.close()


def _bound(addresses: Sequence[tuple[socket.AddressFamily, tuple[Any, ...]]], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as undo:
        absent: OSError | None = None
        for family, (host, _, *more) in addresses:
            dual = host == "::" and socket.has_dualstack_ipv6()  # it also receives connections to 0.0.0.0
            try:
                listener = socket.create_server((host, port, *more), family=family, backlog=256, dualstack_ipv6=dual)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error
                continue
            undo.callback(listener.close)
            listener.setblocking(False)
            sockets.append(listener)
            port = listener.getsockname()[1]
        if not sockets and absent is not None:
            raise absent
        undo.pop_all()
    return sockets


def matching_secret(sent: bytes, secrets: Iterable[bytes]) -> bytes:
    """Returns the one of `secrets` that was sent, compared in constant time with all of them; empty if none was."""
    return b"".join([secret for secret in secrets if hmac.compare_digest(sent, secret)][:1])


def matching_bearer(credentials: bytes, tokens: Iterable[bytes]) -> bytes:
    """Returns the one of `tokens` that an Authorization header's value has, compared in constant time; empty if it has
    none."""
    scheme, _, token = credentials.strip().partition(b" ")
    secret = matching_secret(token.strip(), tokens)
    return secret if scheme.lower() == b"bearer" else b""


async def read_whole(request: web.BaseRequest, most: int, seconds: float) -> bytes:
    """Reads a request's body of at most `most` bytes. Raises BodyTooLarge, TimeoutError, and aiohttp's errors if the
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
