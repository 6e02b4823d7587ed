"""HTTP connections: limits their number and their size, and drops clients that send no request."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from draftd.errors import ConfigError
from draftd.hardware.descriptors import most_connections
from draftd.http_listener import BoundedConnection
from draftd.listening import free_port, listening_sockets
from draftd.settings import ServerSettings
from draftd.settings.certificates import load_certificates, server_certificates, server_context

log = logging.getLogger(__name__)

REQUEST_SECONDS = 20.0  # until the headers of the first request have arrived
_GONE_SECONDS = 0.2  # until the client's machine reports that the client has left


class HttpConnection(BoundedConnection):
    """One connection of a client of the API."""

    __slots__ = ("connections", "has_request", "late", "say_something")

    def __init__(self, connections: HttpConnections, server: web.Server) -> None:
        super().__init__(server, line_bytes=8190, field_bytes=16384, headers=100)
        self.connections = connections
        self.late: asyncio.TimerHandle | None = None
        self.has_request = False  # its first request has arrived
        self.say_something: Callable[[], None] | None = None  # sends a keep-alive on the open stream

    @property
    def idle(self) -> bool:
        return self._current_request is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.late = asyncio.get_running_loop().call_later(self.connections.request_seconds, self._hang_up)
        self.connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.late is not None:
            self.late.cancel()
        self.connections.remove(self)
        super().connection_lost(exc)

    def eof_received(self) -> bool | None:  # type: ignore[override]  # asyncio's may be either
        """Finds out whether a client that closed its side still waits for its answer: bytes sent to a client that has
        left break the connection. An open stream sends a keep-alive. Before the answer begins, an interim response is
        sent, which HTTP/1.1 clients skip."""
        request, transport = self._current_request, self.transport
        waits = self._waiter is not None and not self._waiter.done()  # for a request
        if waits or transport is None or transport.get_extra_info("sslcontext"):
            return None
        if request is not None and (request.version < (1, 1) or not request.content.is_eof()):
            return None
        self.close()  # after this answer
        for seconds in (0.0, _GONE_SECONDS):
            asyncio.get_running_loop().call_later(seconds, self._ask_whether_it_waits)
        return True

    def _ask_whether_it_waits(self) -> None:
        request, transport = self._current_request, self.transport
        if self.say_something is not None:
            self.say_something()
        elif request is not None and transport is not None and not request.writer.output_size:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def refusal(self) -> Mapping[str, Any]:
        message = "no HTTP/1.1 that this server reads: a line of at most 8 KB, 100 headers of at most 16 KB each"
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}

    def log_exception(self, *args: object, **kw: object) -> None:
        log.debug(*args)

    def _hang_up(self) -> None:
        if not self.has_request:
            self.force_close()


class HttpConnections:
    """At most `most` open connections. One more replaces the connection that has been idle for longest, if any is
    idle."""

    def __init__(self, most: int, request_seconds: float) -> None:
        self._most, self.request_seconds = most, request_seconds
        self._open: dict[HttpConnection, None] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: HttpConnection) -> None:
        if len(self._open) >= self._most:
            idle = next((connection for connection in self._open if connection.idle), None)
            if idle is None:
                connection.force_close()
                return
            self._open.pop(idle)
            idle.force_close()
        self._open[connection] = None

    def mark_used(self, connection: HttpConnection) -> None:
        """Notes a request on the connection, which makes it the most recently used."""
        connection.has_request = True
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def remove(self, connection: HttpConnection) -> None:
        self._open.pop(connection, None)


def listening(settings: ServerSettings) -> list[socket.socket]:
    """Opens the listening sockets, all on one port. Raises ConfigError."""
    assert settings.http is not None
    try:
        return listening_sockets(settings.host, settings.http)
    except OSError:
        allowed = free_port("server.http_port", settings.host)
        raise ConfigError("server.http_port", settings.http, allowed) from None


def tls(settings: ServerSettings) -> ssl.SSLContext | None:
    """The TLS context, or None for plain HTTP. Checks client certificates if their authority is set, as gRPC does.
    Raises ConfigError."""
    certificates = load_certificates(tuple(server_certificates(settings)))
    own = certificates.get("server.tls_cert")
    return None if own is None else server_context(own, certificates.get("server.tls_client_ca"))


class HttpListeners:
    """The server's listening sockets, and the connections that they accept. Create and use it on the service's event
    loop."""

    def __init__(
        self,
        settings: ServerSettings,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        request_seconds: float,
    ) -> None:
        """`request_seconds`: for the headers of a connection's first request. Raises ConfigError."""
        self._tls = tls(settings)
        self._sockets = listening(settings)
        self._handlers = web.Server(handle, handler_cancellation=True)
        self._servers: list[asyncio.Server] = []
        self.connections = HttpConnections(min(settings.http_connections, most_connections()), request_seconds)

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            server = await loop.create_server(
                lambda: HttpConnection(self.connections, self._handlers), sock=sock.dup(), ssl=self._tls
            )
            self._servers.append(server)

    async def reload(self, context: ssl.SSLContext | None) -> None:
        """Uses this TLS context for new connections."""
        self._tls = context
        before, self._servers = self._servers, []
        if before:
            await self.start()  # on the same sockets: connections that wait to be accepted are not lost
        for server in before:
            server.close()  # its connections stay open

    async def stop(self, grace: float) -> None:
        """Closes the sockets, and cancels the requests that last longer than `grace` seconds."""
        for sock in self._sockets:
            sock.close()
        if not self._servers:
            return
        for server in self._servers:
            server.close()
        self._handlers.pre_shutdown()  # closes idle connections
        await self._handlers.shutdown(grace)
