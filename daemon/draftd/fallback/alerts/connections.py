"""The webhook's connections: HTTP of bounded size, so many at once, for so long, over TLS where it is configured."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from draftd.errors import ConfigError
from draftd.fallback.alerts.payload import Result
from draftd.settings import WebhookSettings

_ACCEPT_AGAIN_SECONDS = 0.1  # after an accept that failed: for want of descriptors, for one
_GRACE_SECONDS = 1.0


class HttpProtocol(web.RequestHandler):
    """HTTP for one connection. What is no HTTP is counted, and not logged one by one."""

    __slots__ = ("_bad", "counted")

    def __init__(self, server: web.Server, bad: Callable[[HttpProtocol], None], **arguments: Any) -> None:
        super().__init__(server, **arguments)
        self._bad = bad
        self.counted = False  # what became of it: once

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        self._bad(self)
        told = "no HTTP/1.1 with a Host, of at most 64 headers of 4096 bytes each"
        response = web.json_response({"error": told}, status=400, headers={"Server": "draftd"})
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        self._bad(self)


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    protocol: HttpProtocol
    handshake: asyncio.Task[None] | None = None
    transport: asyncio.BaseTransport | None = None
    deadline: asyncio.TimerHandle | None = None
    proven: bool = False

    def connected(self) -> None:
        """The handshake is over: the socket is the transport's to close, if there is one."""
        if self.transport is None:
            self.socket.close()


class _Server(web.Server):
    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        bad: Callable[[HttpProtocol], None],
        gone: Callable[[HttpProtocol], None],
    ) -> None:
        super().__init__(handler)
        self._bad, self._gone = bad, gone

    def __call__(self) -> HttpProtocol:
        return HttpProtocol(
            self,
            self._bad,
            loop=asyncio.get_running_loop(),
            access_log=None,
            max_line_size=2048,
            max_field_size=4096,
            max_headers=64,
            lingering_time=1.0,  # for what is still being sent when it is refused: else it would not get the answer
            auto_decompress=False,  # the signature is of what was sent, and a little can grow into a lot
        )

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        if isinstance(handler, HttpProtocol):
            self._gone(handler)


class Connections:
    """`handler` answers a request; `lost` hears of connections that are closed without one, and why. One loop."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        lost: Callable[[Result], None],
        *,
        tls: ssl.SSLContext | None = None,
        most: int = 64,
        seconds: float = 10.0,
    ) -> None:
        self._server = _Server(handler, lambda protocol: self._count(protocol, Result.BAD_HTTP), self._gone)
        self._lost = lost
        self._tls = tls
        self._most = most
        self._seconds = seconds
        self._open: dict[HttpProtocol, _Connection] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._open)

    def counted(self, request: web.BaseRequest) -> bool:
        """Whether what became of it has been counted before; it has been now."""
        assert isinstance(request.protocol, HttpProtocol)
        before, request.protocol.counted = request.protocol.counted, True
        return before

    def proven(self, request: web.BaseRequest) -> None:
        """Its sender is known: it is not closed to make room for another."""
        if isinstance(request.protocol, HttpProtocol) and (one := self._open.get(request.protocol)) is not None:
            one.proven = True

    async def serve(self, listening: socket.socket) -> None:
        """Until cancelled; then it takes no more, and lets what is in hand end for a while."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError:
                    await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
                    continue
                self._take(accepted)
        finally:
            listening.close()
            for one in [one for one in self._open.values() if not one.proven]:
                self._end(one, Result.CUT_SHORT)
            await self._server.shutdown(_GRACE_SECONDS)

    def _take(self, accepted: socket.socket) -> None:
        while len(self._open) >= self._most:
            oldest = next((one for one in self._open.values() if not one.proven), None)
            if oldest is None:  # the senders of all of them are known
                accepted.close()
                self._lost(Result.CROWDED_OUT)
                return
            self._end(oldest, Result.CROWDED_OUT)
        loop = asyncio.get_running_loop()
        protocol = self._server()
        one = _Connection(accepted, protocol)
        self._open[protocol] = one
        one.deadline = loop.call_later(self._seconds, self._late, one)
        one.handshake = loop.create_task(self._connect(protocol, one))
        one.handshake.add_done_callback(lambda _: one.connected())  # a task that is cancelled early runs not at all

    async def _connect(self, protocol: HttpProtocol, one: _Connection) -> None:
        loop = asyncio.get_running_loop()
        try:
            timeout = None if self._tls is None else self._seconds
            one.transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, one.socket, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except (OSError, asyncio.CancelledError):  # no TLS, or no time left for it
            self._gone(protocol)
            self._count(protocol, Result.BAD_HTTP)

    def _late(self, one: _Connection) -> None:
        if one.proven:  # it is being acted on, which has a deadline of its own
            return
        self._end(one, Result.SLOW)

    def _end(self, one: _Connection, why: Result) -> None:
        self._count(one.protocol, why)
        self._gone(one.protocol)
        if isinstance(one.transport, asyncio.Transport):
            one.transport.abort()
        elif one.handshake is not None:
            one.handshake.cancel()

    def _count(self, protocol: HttpProtocol, why: Result) -> None:
        if not protocol.counted:
            protocol.counted = True
            self._lost(why)

    def _gone(self, protocol: HttpProtocol) -> None:
        one = self._open.pop(protocol, None)
        if one is not None and one.deadline is not None:
            one.deadline.cancel()


def listening_socket(host: str, port: int) -> socket.socket:
    """Bound, and listening. Raises OSError; socket.gaierror where there is no such host."""
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Where a name is both, as localhost may be, senders are told of 127.0.0.1.
    family, kind, number, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    made = socket.socket(family, kind, number)
    try:
        with contextlib.suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what lingers of the daemon before this one
        made.bind(address)
        made.listen(128)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def server_context(settings: WebhookSettings) -> ssl.SSLContext | None:
    """None for plain HTTP. Raises ConfigError where the certificate cannot be had."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A key with a password would be asked for on the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: b"")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        said = str(error) or type(error).__name__
        allowed = f"a PEM file with a certificate, and webhook.tls_key with its key, readable ({said})"
        raise ConfigError("webhook.tls_cert", str(settings.tls_cert), allowed) from None
    return context
