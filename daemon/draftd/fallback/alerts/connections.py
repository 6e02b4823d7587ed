"""The event loop and connections of the webhook and the poller: a loop on a thread of its own, and HTTP connections of
bounded size, so many at once, for so long, over TLS where it is configured."""

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
from draftd.threads import lasting

log = logging.getLogger(__name__)

_ACCEPT_AGAIN_SECONDS = 0.1  # after an accept that failed: for want of descriptors, for one
_GRACE_SECONDS = 1.0


class LoopThread:
    """Runs `main` until it ends or is told to: it is cancelled, and cleans up in its `finally`. Where it raises it is
    run again."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = threading.Event()
        self._thread = lasting(name, self._run, self._closing)

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """True when the thread has ended within `seconds`. Harmless again, and before `start`."""
        self._closing.set()
        if self._thread.ident is None:
            return True
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._hold())

    async def _hold(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if not self._closing.is_set():  # told to end before it had begun again
            await self._main()


class AlertConnection(BoundedConnection):
    """One connection of a sender of alerts. What is no HTTP is counted."""

    __slots__ = ("connections", "counted", "deadline", "ended", "proven")

    def __init__(self, connections: AlertConnections, server: web.Server, deadline: asyncio.Timeout) -> None:
        super().__init__(server, line_bytes=2048, field_bytes=4096, headers=64)
        self.connections, self.deadline = connections, deadline
        self.ended = asyncio.Event()
        self.counted = False  # what became of it: once
        self.proven = False  # its sender is known

    def prove(self) -> None:
        """Its sender is known: it is not closed to make room, and what it sent is acted on with a deadline of its
        own."""
        self.proven = True
        with contextlib.suppress(RuntimeError):  # it is closed already: its sender did not wait for the answer
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
    """`handler` answers a request; `lost` hears of connections that are closed without one, and why. `tls`: for the
    next connection. One loop."""

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
        self._open: dict[AlertConnection, asyncio.Task[None]] = {}  # the oldest first
        self._outage = OutageLog(log)

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, listening: Sequence[socket.socket]) -> None:
        """Until cancelled; then it takes no more, and lets what is in hand end for a while. `listening` stay open: they
        may be served again."""
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
                    accepted.close()  # or its sender would wait for an answer
                    raise
            except Exception as error:  # no more descriptors, for one: it goes on when there are some again
                self._outage.report("no connection can be accepted for now", type(error).__name__, error=error)
                await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
            else:
                self._outage.clear("connections are accepted again")
                await asyncio.sleep(0)  # a task that is cancelled before it has begun would close no socket

    def count(self, connection: AlertConnection, why: NotificationResult) -> None:
        """It ends without a notification."""
        if not connection.counted:
            connection.counted = True
            self._lost(why)

    def _take(self, accepted: socket.socket) -> None:
        while len(self._open) >= self._most:
            oldest = next((connection for connection in self._open if not connection.proven), None)
            if oldest is None:  # the senders of all of them are known
                accepted.close()
                self._lost(NotificationResult.CROWDED_OUT)
                return
            self._end(oldest, NotificationResult.CROWDED_OUT)
        connection = AlertConnection(self, self._server, asyncio.timeout(self._seconds))
        self._open[connection] = asyncio.create_task(self._hold(connection, accepted))

    async def _hold(self, connection: AlertConnection, accepted: socket.socket) -> None:
        """Until it is closed, or cancelled. Its deadline includes the handshake."""
        loop = asyncio.get_running_loop()
        try:
            async with connection.deadline:
                await loop.connect_accepted_socket(lambda: connection, accepted, ssl=self._tls())
                await connection.ended.wait()
        except TimeoutError:
            self.count(connection, NotificationResult.SLOW)
        except OSError:  # no TLS
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
    """None for plain HTTP. Raises ConfigError."""
    own = load_certificates(tuple(webhook_certificates(settings))).get("webhook.tls_cert")
    return None if own is None else server_context(own)
