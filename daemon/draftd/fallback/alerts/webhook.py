"""The webhook: POST /v1/alerts, for Grafana's and Alertmanager's notifications.

On a thread of its own. Whoever sends is asked who it is before anything it says is looked at, and what it says can only
ask for a level at or below the present one. The answers are JSON. 4xx is final: to send the same again will not help;
503 says that it will, and when. Alertmanager and Grafana tell what they could not deliver again with their next
notification of that group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from draftd.errors import ConfigError, InvalidRequest, NotServing, QueueFull
from draftd.fallback.alerts.authentication import Authentication, Seen, Signed
from draftd.fallback.alerts.payload import (
    KNOWN_ALERTS,
    BadLevel,
    Ignored,
    Malformed,
    Refused,
    Result,
    asked,
    parse_notification,
)
from draftd.fallback.leases import Applied, Notice
from draftd.fallback.seams import ControlTelemetry
from draftd.settings import WebhookSettings

_ACCEPT_AGAIN_SECONDS = 0.1  # after an accept that failed: for want of descriptors, for one


_GRACE_SECONDS = 1.0


class Protocol(web.RequestHandler):
    """HTTP for one connection. What is no HTTP is counted, and not logged one by one."""

    __slots__ = ("_bad", "counted")

    def __init__(self, server: web.Server, bad: Callable[[Protocol], None], **arguments: Any) -> None:
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
    protocol: Protocol
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
        bad: Callable[[Protocol], None],
        gone: Callable[[Protocol], None],
    ) -> None:
        super().__init__(handler)
        self._bad, self._gone = bad, gone

    def __call__(self) -> Protocol:
        return Protocol(
            self,
            self._bad,
            loop=asyncio.get_running_loop(),
            access_log=None,
            max_line_size=2048,
            max_field_size=4096,
            max_headers=64,
            lingering_time=1.0,  # for what is still being sent when it is refused: else it would not hear the answer
            auto_decompress=False,  # the signature is of what was sent, and a little can grow into a lot
        )

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        if isinstance(handler, Protocol):
            self._gone(handler)


class Connections:
    """`handler` answers a request; `lost` is told of connections that are closed without one, and why. One loop."""

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
        self._open: dict[Protocol, _Connection] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._open)

    def counted(self, request: web.BaseRequest) -> bool:
        """Whether what became of it has been counted before; it has been now."""
        assert isinstance(request.protocol, Protocol)
        before, request.protocol.counted = request.protocol.counted, True
        return before

    def proven(self, request: web.BaseRequest) -> None:
        """Its sender is known: it is not the one that makes room."""
        if isinstance(request.protocol, Protocol) and (one := self._open.get(request.protocol)) is not None:
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
            if oldest is None:  # all of them are true senders
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

    async def _connect(self, protocol: Protocol, one: _Connection) -> None:
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

    def _count(self, protocol: Protocol, why: Result) -> None:
        if not protocol.counted:
            protocol.counted = True
            self._lost(why)

    def _gone(self, protocol: Protocol) -> None:
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


log = logging.getLogger(__name__)


class LoopThread:
    """Runs `main` until it ends or is told to: it is cancelled, and cleans up in its `finally`."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._begun.wait()

    def close(self, seconds: float) -> bool:
        """True when the thread has ended within `seconds`. Harmless again, and before `start`."""
        if not self._begun.is_set():
            return True
        deadline = time.monotonic() + seconds
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself
                loop.call_soon_threadsafe(task.cancel)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                asyncio.run(self._hold())
            except Exception:
                log.exception("%s ended by itself", self._thread.name)
            finally:
                self._begun.set()

    async def _hold(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        await self._main()


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


class Rate:
    """Lets `per_second` through, and as much at once as a second brings, one at least. One thread."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second)
        self._clock = clock
        self._left = self._most
        self._at = clock()

    def wait(self) -> float:
        """Seconds until one more may pass: 0 now."""
        now = self._clock()
        self._left = min(self._most, self._left + max(0.0, now - self._at) * self._per_second)
        self._at = now
        return 0.0 if self._left >= 1.0 else (1.0 - self._left) / self._per_second

    def take(self) -> float:
        """Passes one, if one may; what `wait` says otherwise."""
        if not (wait := self.wait()):
            self._left -= 1.0
        return wait


class Saying:
    """Any thread. `reason` is one of a few: each is remembered for good."""

    def __init__(self, log: logging.Logger, seconds: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def say(self, level: int, reason: str, text: str, *, error: BaseException | None = None) -> None:
        """Says it, and how much like it was left unsaid before; or leaves it unsaid itself."""
        now = self._clock()
        with self._lock:
            if reason in self._said and now - self._said[reason] < self._seconds:
                self._unsaid[reason] = self._unsaid.get(reason, 0) + 1
                return
            self._said[reason] = now
            unsaid = self._unsaid.pop(reason, 0)
        more = f" ({unsaid} more of {reason} since this was last said)" if unsaid else ""
        self._log.log(level, "%s%s", text, more, exc_info=error)


PATH = "/v1/alerts"


_BODY_SECONDS = 5.0


_TAKE_SECONDS = 5.0  # longer than the controller lets anyone wait


_RETRY_SECONDS = 5.0


_MOST_SHOWN = 20  # alerts that an answer lists


Notices = Callable[[Sequence[Notice]], list[Applied]]


class Listener:
    """`notices` is where alerts go: it raises QueueFull or NotServing when it cannot take them soon.

    `instance` is what alerts name this daemon by, empty while unknown; `known` are the alerts that may ask for a level.
    """

    def __init__(
        self,
        settings: WebhookSettings,
        notices: Notices,
        telemetry: ControlTelemetry,
        instance: Callable[[], str],
        known: Set[str] = KNOWN_ALERTS,
        *,
        wall: Callable[[], float] = time.time,
        body_seconds: float = _BODY_SECONDS,
        request_seconds: float = 2 * _BODY_SECONDS,
    ) -> None:
        self._settings = settings
        self._notices = notices
        self._telemetry = telemetry
        self._instance = instance
        self._known = known
        self._wall = wall
        self._body_seconds = body_seconds
        self._request_seconds = request_seconds
        token, secret = (None if one is None else one.get_secret_value() for one in (settings.token, settings.secret))
        self._authentication = Authentication(token, secret, settings.timestamp_header, settings.replay_seconds)
        self._seen = Seen(2 * settings.replay_seconds)
        self._proven, self._unproven = Rate(settings.max_per_second), Rate(settings.max_per_second)
        self._saying = Saying(log)
        # One at a time, so that the order in which they came is the order in which they act.
        self._acting = ThreadPoolExecutor(1, thread_name_prefix="draftd-webhook-acting")
        self._connections: Connections | None = None
        self._thread: LoopThread | None = None

    def start(self) -> int:
        """Listens; the port. Raises ConfigError where it cannot."""
        tls, listening = server_context(self._settings), self._bind()
        self._thread = LoopThread("draftd-webhook", lambda: self._serve(listening, tls))
        self._thread.start()
        return int(listening.getsockname()[1])

    def close(self, seconds: float) -> bool:
        """True when nothing of it is left within `seconds`."""
        deadline = time.monotonic() + seconds
        ended = self._thread is None or self._thread.close(seconds)
        try:
            with contextlib.suppress(RuntimeError):  # closed before
                self._acting.submit(int).result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            ended = False
        self._acting.shutdown(wait=False, cancel_futures=True)
        return ended

    def _bind(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        try:
            return listening_socket(host, port)
        except socket.gaierror as error:
            raise ConfigError("webhook.host", host, f"an address of this machine ({error.strerror})") from None
        except OSError as error:
            allowed = f"a port that is free on {host}; 0 picks one ({error.strerror})"
            raise ConfigError("webhook.port", port, allowed) from None

    async def _serve(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        self._connections = Connections(self._handle, self._lost, tls=tls, seconds=self._request_seconds)
        await self._connections.serve(listening)

    def _lost(self, result: Result) -> None:
        self._telemetry.notification(result)
        self._saying.say(logging.WARNING, result, f"webhook: a connection without a notification: {result}")

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._connections is not None
        try:
            result, told = await self._notified(request)
            response = web.json_response(told)
        except Refused as refused:
            result, response = refused.result, self._refusal(refused)
        except Exception as error:
            result = Result.FAILED
            response = web.json_response({"error": "the daemon failed; its log says how"}, status=500)
            self._saying.say(logging.ERROR, result, "webhook: a notification failed", error=error)
        if not self._connections.counted(request):
            self._telemetry.notification(result)
        response.headers["Server"] = "draftd"
        response.force_close()
        return response

    def _refusal(self, refused: Refused) -> web.Response:
        self._saying.say(logging.WARNING, refused.result, f"webhook: {refused.status}: {refused.message}")
        response = web.json_response({"error": refused.message}, status=refused.status)
        if refused.retry_after is not None:
            response.headers["Retry-After"] = str(math.ceil(refused.retry_after))
        if refused.status == 401 and self._settings.token is not None:
            response.headers["WWW-Authenticate"] = "Bearer"
        if refused.result is Result.BAD_METHOD:
            response.headers["Allow"] = "POST"
        return response

    async def _notified(self, request: web.BaseRequest) -> tuple[Result, dict[str, object]]:
        if request.path != PATH:
            raise Refused(404, Result.BAD_PATH, f"path: allowed: {PATH}")
        if request.method != "POST":
            raise Refused(405, Result.BAD_METHOD, "method: allowed: POST, of a notification")
        try:
            body, claim = await self._authenticated(request)
        except Refused as refused:
            raise self._slowed(refused) from None
        try:
            return await self._act(body)
        except Refused as refused:
            if claim is not None and refused.status >= 500:
                self._seen.discard(claim.signature)  # its sender is to try again, within the same second it may be
            raise

    def _slowed(self, refused: Refused) -> Refused:
        """Who is not known has an allowance of its own, so that it uses up nobody else's."""
        if refused.status != 401 or not (wait := self._unproven.take()):
            return refused
        return Refused(429, refused.result, "too many without credentials", retry_after=wait)

    async def _authenticated(self, request: web.BaseRequest) -> tuple[bytes, Signed | None]:
        """The body of a sender that is known, and within its rate. What the headers tell is told before any of the
        body is read; a signature can only be judged with all of it."""
        claim = self._authentication.claim(request.headers, self._wall())
        if claim is None:
            self._known_sender(request)
        elif wait := self._proven.wait():  # there is nothing left to be had by being true
            raise _too_many(wait)
        body = await self._body(request)
        if claim is not None:
            self._authentication.prove(claim, body)
            if claim.signature in self._seen:
                raise Refused(
                    401, Result.REPLAYED, "the signature has been used: what was heard once cannot be said again"
                )
            if wait := self._seen.wait():
                raise Refused(503, Result.BUSY, "too many signatures to remember", retry_after=wait)
            self._known_sender(request)
            self._seen.add(claim.signature)
        return body, claim

    def _known_sender(self, request: web.BaseRequest) -> None:
        assert self._connections is not None
        if wait := self._proven.take():
            raise _too_many(wait)
        self._connections.proven(request)

    async def _body(self, request: web.BaseRequest) -> bytes:
        most = self._settings.max_body_bytes
        too_large = Refused(413, Result.TOO_LARGE, f"body: allowed: at most {most} bytes (webhook.max_body_bytes)")
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refused(415, Result.BAD_ENCODING, "Content-Encoding: allowed: none; the body as it is")
        if (request.content_length or 0) > most:
            raise too_large
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_seconds):
                async for part in request.content.iter_any():
                    body += part
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise Refused(408, Result.SLOW, f"body: allowed: all of it within {self._body_seconds:g} s") from None
        except (OSError, web.RequestPayloadError):
            raise Refused(400, Result.CUT_SHORT, "body: it ended early, or its chunks are none") from None
        return bytes(body)

    async def _act(self, body: bytes) -> tuple[Result, dict[str, object]]:
        notices, ignored = self._understood(body)
        if not notices:
            return self._nothing_asked(ignored)
        applied = await self._take(notices)
        counts = Counter(applied)
        if counts[Applied.ACCEPTED] + counts[Applied.RENEWED] + counts[Applied.RESOLVED]:
            result = Result.ACCEPTED
        elif counts[Applied.FULL]:
            result = Result.FULL
        else:
            result = Result.DUPLICATE if counts[Applied.DUPLICATE] else Result.OUT_OF_ORDER
        said = ", ".join(
            f"{one.name} {'fires' if one.firing else 'is over'}: {became}"
            for one, became in zip(notices[:_MOST_SHOWN], applied, strict=False)
        )
        self._saying.say(logging.WARNING if result is Result.FULL else logging.INFO, result, f"webhook: {said}")
        return result, {"result": result, "applied": dict(counts), **_listed(ignored)}

    def _understood(self, body: bytes) -> tuple[list[Notice], list[Ignored]]:
        """Raises Refused where it is no notification, or asks for what there is not."""
        try:
            alerts = parse_notification(body)
        except Malformed as error:
            raise Refused(400, Result.MALFORMED, error.message) from None
        except InvalidRequest as error:
            raise Refused(422, Result.INVALID, error.message) from None
        instance, now = self._instance(), self._wall()
        try:
            found = [asked(alert, self._known, instance, now) for alert in alerts]
        except InvalidRequest as error:
            result = Result.BAD_LEVEL if isinstance(error, BadLevel) else Result.INVALID
            raise Refused(422, result, error.message) from None
        notices = [one for one in found if isinstance(one, Notice)]
        return notices, [one for one in found if isinstance(one, Ignored)]

    def _nothing_asked(self, ignored: list[Ignored]) -> tuple[Result, dict[str, object]]:
        results = {one.result for one in ignored}
        if results == {Result.UNKNOWN_ALERT}:
            known = ", ".join(sorted(self._known))
            raise Refused(422, Result.UNKNOWN_ALERT, f"{ignored[0]}; allowed: {known}")
        result = Result.NO_LEVEL if Result.NO_LEVEL in results else Result.OTHER_INSTANCE
        return result, {"result": result, **_listed(ignored)}

    async def _take(self, notices: list[Notice]) -> list[Applied]:
        try:
            taking = asyncio.get_running_loop().run_in_executor(self._acting, self._notices, notices)
        except RuntimeError:  # it is being closed
            raise _not_now() from None
        try:
            async with asyncio.timeout(_TAKE_SECONDS):
                return await taking
        except (QueueFull, NotServing) as error:
            raise _not_now(f": {error.message}", error.retry_after) from None
        except TimeoutError:
            raise _not_now() from None


def _listed(ignored: list[Ignored]) -> dict[str, object]:
    """Which alerts were ignored, and why; the first of them."""
    return {"ignored": [str(one) for one in ignored[:_MOST_SHOWN]]} if ignored else {}


def _not_now(why: str = "", wait: float | None = None) -> Refused:
    return Refused(503, Result.BUSY, f"not now{why}", retry_after=wait or _RETRY_SECONDS)


def _too_many(wait: float) -> Refused:
    return Refused(429, Result.RATE_LIMITED, "too many notifications (webhook.max_per_second)", retry_after=wait)
