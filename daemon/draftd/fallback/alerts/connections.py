"""The event loop and connections of the webhook and the poller: a loop on its own thread, and HTTP connections limited
in size, number and time, over TLS if configured."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from aiohttp import web

from draftd.fallback.alerts.payload import NotificationResult
from draftd.http_listener import BoundedConnection
from draftd.rate_limited_log import OutageLog
from draftd.settings import WebhookSettings
from draftd.settings.certificates import load_certificates, server_context, webhook_certificates
from draftd.threads import restarting_thread

log = logging.getLogger(__name__)

_ACCEPT_AGAIN_SECONDS = 0.1  # after a failed accept, for example without free descriptors
_GRACE_SECONDS = 1.0


class LoopThread:
    """Runs `main` until it ends or is cancelled; `main` cleans up in its `finally`. After an exception it is run
    again."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = threading.Event()
        self._thread = restarting_thread(name, self._run, self._closing)

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Returns True if the thread has ended within `seconds`. May be called repeatedly, and before `start`."""
        self._closing.set()
        if self._thread.ident is None:
            return True
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has already ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._hold())

    async def _hold(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if not self._closing.is_set():  # closed before it was run again
            await self._main()


class AlertConnection(BoundedConnection):
    """One connection of a sender of alerts. Input that is not HTTP is counted."""

    __slots__ = ("connections", "counted", "deadline", "ended", "proven")

    def __init__(self, connections: AlertConnections, server: web.Server, deadline: asyncio.Timeout) -> None:
        super().__init__(server, line_bytes=2048, field_bytes=4096, headers=64)
        self.connections, self.deadline = connections, deadline
        self.ended = asyncio.Event()
        self.counted = False  # whether its outcome was counted
        self.proven = False  # whether its sender is authenticated

    def prove(self) -> None:
        """Marks the sender as authenticated: the connection is not closed to make room, and its request has its own
        deadline."""
        self.proven = True
        with contextlib.suppress(RuntimeError):  # closed already: the sender did not wait for the answer
            self.deadline.reschedule(None)

    def refusal(self) -> Mapping[str, Any]:
        self.connections.count(self, NotificationResult.BAD_HTTP)
        return {"error": "no HTTP/1.1 with a Host, of at most 64 headers of 4096 bytes each"}

    def log_exception(self, *args: Any, **kw: Any) -> None:
        self.connections.count(self, NotificationResult.BAD_HTTP)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.ended.set()


def connection_of(request: web.BaseRequest) -> AlertConnection:
    assert isinstance(request.protocol, AlertConnection)
    return request.protocol


class AlertConnections:
    """The connections of one loop. `handler` answers a request; `lost` is called with connections closed without one,
    and why. `tls`: for new connections."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        lost: Callable[[NotificationResult], None],
        *,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        most: int = 64,
        seconds: float = 10.0,
    ) -> None:
        self._server = web.Server(handler)
        self._lost, self._tls, self._most, self._seconds = lost, tls, most, seconds
        self._open: dict[AlertConnection, asyncio.Task[None]] = {}  # open connections, the oldest first
        self._outage = OutageLog(log)

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, listening: Sequence[socket.socket]) -> None:
        """Serves until cancelled; then it accepts no more and lets running requests end for a while. `listening` stay
        open and may be served again."""
        try:
            async with asyncio.TaskGroup() as accepting:
                for listener in listening:
                    accepting.create_task(self._accept(listener))
        finally:
            for connection in [connection for connection in self._open if not connection.proven]:
                self._end(connection, NotificationResult.CUT_SHORT)
            await self._server.shutdown(_GRACE_SECONDS)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
                try:
                    self._take(accepted)
                except BaseException:
                    accepted.close()  # otherwise its sender would wait for an answer
                    raise
            except Exception as error:  # for example without free descriptors: continues once there are some
                self._outage.report("no connection can be accepted for now", type(error).__name__, error=error)
                await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
            else:
                self._outage.clear("connections are accepted again")
                await asyncio.sleep(0)  # a task cancelled before it starts would not close its socket

    def count(self, connection: AlertConnection, why: NotificationResult) -> None:
        """Counts a connection that ends without a notification."""
        if not connection.counted:
            connection.counted = True
            self._lost(why)

    def _take(self, accepted: socket.socket) -> None:
        while len(self._open) >= self._most:
            oldest = next((connection for connection in self._open if not connection.proven), None)
            if oldest is None:  # all senders are authenticated
                accepted.close()
                self._lost(NotificationResult.CROWDED_OUT)
                return
            self._end(oldest, NotificationResult.CROWDED_OUT)
        connection = AlertConnection(self, self._server, asyncio.timeout(self._seconds))
        self._open[connection] = asyncio.create_task(self._hold(connection, accepted))

    async def _hold(self, connection: AlertConnection, accepted: socket.socket) -> None:
        """Serves a connection until it is closed or cancelled. Its deadline includes the TLS handshake."""
        loop = asyncio.get_running_loop()
        try:
            async with connection.deadline:
                await loop.connect_accepted_socket(lambda: connection, accepted, ssl=self._tls())
                await connection.ended.wait()
        except TimeoutError:
            self.count(connection, NotificationResult.SLOW)
        except OSError:  # the TLS handshake failed
            self.count(connection, NotificationResult.BAD_HTTP)
        finally:
            self._open.pop(connection, None)
            if isinstance(connection.transport, asyncio.Transport):
                connection.transport.abort()
            else:
                accepted.close()

    def _end(self, connection: AlertConnection, why: NotificationResult) -> None:
        self.count(connection, why)
        self._open.pop(connection).cancel()


def tls(settings: WebhookSettings) -> ssl.SSLContext | None:
    """Returns the TLS context; None for plain HTTP. Raises ConfigError."""
    own = load_certificates(tuple(webhook_certificates(settings))).get("webhook.tls_cert")
    return None if own is None else server_context(own)
