"""The webhook, POST /v1/alerts, for notifications from Grafana and Alertmanager.

It runs on its own thread. A sender is authenticated before its body is parsed, and a notification can only ask for a
level at or below the present one. Answers are JSON. 4xx is final: sending the same again will not help. 503 says when
to try again. Alertmanager and Grafana repeat undelivered alerts with their next notification of the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import NamedTuple

from aiohttp import web

from draftd.errors import ConfigError, InvalidRequest, NotServing, QueueFull
from draftd.fallback.alerts.authentication import Authentication, ReplayGuard, UnprovenSignature
from draftd.fallback.alerts.connections import (
    AlertConnections,
    LoopThread,
    connection_of,
    tls,
)
from draftd.fallback.alerts.payload import (
    ACCEPTED_ALERTS,
    BadLevel,
    IgnoredAlert,
    Malformed,
    NotificationRefused,
    NotificationResult,
    notice_of,
    parse_notification,
)
from draftd.fallback.leases import Applied, Notice
from draftd.fallback.seams import FallbackTelemetry
from draftd.listening import BodyTooLarge, listening_sockets, read_whole
from draftd.rate_limited_log import RateLimitedLog
from draftd.settings import WebhookSettings, secrets_of
from draftd.token_bucket import TokenBucket

log = logging.getLogger(__name__)

PATH = "/v1/alerts"
_BODY_SECONDS = 5.0
_TAKE_SECONDS = 5.0  # longer than the controller makes a caller wait
_RETRY_SECONDS = 5.0
_MOST_SHOWN = 20  # the most alerts that an answer lists

Notices = Callable[[Sequence[Notice]], list[Applied]]


class _Deadlines(NamedTuple):
    """Seconds in which a body must have arrived, and a request must be over."""

    body: float
    request: float


class _SenderLimits:
    """Limits on senders: one rate for authenticated senders, one for others, and each signature is accepted once."""

    def __init__(self, settings: WebhookSettings) -> None:
        rate = settings.max_per_second  # bursts of up to one second's allowance, at least 1
        self._proven, self._unproven = TokenBucket(rate, max(1.0, rate)), TokenBucket(rate, max(1.0, rate))
        self.replay_guard = ReplayGuard(2 * settings.replay_seconds)

    def check(self) -> None:
        """Raises NotificationRefused if the rate of authenticated senders is used up."""
        if wait := self._proven.wait():
            raise _too_many(wait)

    def admit(self) -> None:
        """Counts a request of an authenticated sender. Raises NotificationRefused if there are too many."""
        if wait := self._proven.take():
            raise _too_many(wait)

    def count_unknown(self, refused: NotificationRefused) -> None:
        """Counts a request that was refused without valid credentials. Raises NotificationRefused if there are too
        many."""
        if refused.status == 401 and (wait := self._unproven.take()):
            raise NotificationRefused(
                429, refused.result, "too many requests without credentials", retry_after=wait
            ) from None

    def check_signature(self, claim: UnprovenSignature) -> None:
        """Raises NotificationRefused if the signature was used before, or if there is no room to remember it."""
        if claim.signature in self.replay_guard:
            raise NotificationRefused(
                401, NotificationResult.REPLAYED, "the signature has been used: each is accepted once"
            )
        if wait := self.replay_guard.wait():
            raise NotificationRefused(503, NotificationResult.BUSY, "too many signatures to remember", retry_after=wait)


class WebhookListener:
    """Listens for notifications. `notices` applies the alerts; it raises QueueFull or NotServing if it cannot do so
    soon. `unsaved` returns why applied alerts are not saved on disk; empty if they are. `instance` returns this
    daemon's name in alerts, empty while unknown."""

    def __init__(
        self,
        settings: WebhookSettings,
        notices: Notices,
        telemetry: FallbackTelemetry,
        instance: Callable[[], str],
        *,
        unsaved: Callable[[], str] = str,
        wall: Callable[[], float] = time.time,
        body_seconds: float = _BODY_SECONDS,
        request_seconds: float = 2 * _BODY_SECONDS,
    ) -> None:
        self._settings, self._notices, self._telemetry = settings, notices, telemetry
        self._instance, self._unsaved, self._wall = instance, unsaved, wall
        self._deadlines = _Deadlines(body_seconds, request_seconds)
        self._authentication = _authentication(settings)
        self._senders = _SenderLimits(settings)
        self._log = RateLimitedLog(log)
        # One at a time, so that notifications act in the order of arrival.
        self._acting = ThreadPoolExecutor(1, thread_name_prefix="draftd-webhook-acting")
        self._connections: AlertConnections | None = None
        self._thread: LoopThread | None = None
        self._listening: list[socket.socket] = []
        self._tls: ssl.SSLContext | None = None

    def start(self) -> int:
        """Starts to listen, and returns the port. Raises ConfigError if it cannot."""
        self._tls = tls(self._settings)
        self._listening = listening = self._bind()
        self._thread = LoopThread("draftd-webhook", lambda: self._serve(listening))
        self._thread.start()
        return int(listening[0].getsockname()[1])

    def reload(self, settings: WebhookSettings, tls: ssl.SSLContext | None) -> None:
        """Uses these credentials for the next notifications, and this context for the next connections."""
        self._authentication, self._tls = _authentication(settings), tls

    def close(self, seconds: float) -> bool:
        """Returns True if everything has ended within `seconds`."""
        deadline = time.monotonic() + seconds
        ended = self._thread is None or self._thread.close(seconds)
        for listening in (
            self._listening if ended else ()
        ):  # only now, because the thread may restart and needs them then
            listening.close()
        try:
            with contextlib.suppress(RuntimeError):  # already closed
                self._acting.submit(int).result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            ended = False
        self._acting.shutdown(wait=False, cancel_futures=True)
        return ended

    def _bind(self) -> list[socket.socket]:
        host, port = self._settings.host, self._settings.port
        try:
            return listening_sockets(host, port)
        except socket.gaierror as error:
            raise ConfigError("webhook.host", host, f"an address of this machine ({error.strerror})") from None
        except OSError as error:
            allowed = f"a port that is free on {host}; 0 picks one ({os.strerror(error.errno or 0)})"
            raise ConfigError("webhook.port", port, allowed) from None

    async def _serve(self, listening: Sequence[socket.socket]) -> None:
        self._connections = AlertConnections(
            self._handle, self._lost, tls=lambda: self._tls, seconds=self._deadlines.request
        )
        await self._connections.serve(listening)

    def _lost(self, result: NotificationResult) -> None:
        self._telemetry.notification(result)
        self._log.write(logging.WARNING, result, f"webhook: a connection without a notification: {result}")

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            result, answer = await self._answer_notification(request)
            response = web.json_response(answer)
        except NotificationRefused as refused:
            result, response = refused.result, self._refusal(refused, request.remote or "")
        except Exception as error:
            result = NotificationResult.FAILED
            response = web.json_response({"error": "the daemon failed; its log says how"}, status=500)
            self._log.write(logging.ERROR, result, "webhook: a notification failed", error=error)
        connection = connection_of(request)
        if not connection.counted:
            connection.counted = True
            self._telemetry.notification(result)
        response.headers["Server"] = "draftd"
        response.force_close()
        return response

    def _refusal(self, refused: NotificationRefused, sender: str) -> web.Response:
        said = f"webhook: {refused.status} to {sender or 'a sender'}: {refused.message}"
        self._log.write(logging.WARNING, refused.result, said, sender)
        response = web.json_response({"error": refused.message}, status=refused.status)
        if refused.retry_after is not None:
            response.headers["Retry-After"] = str(math.ceil(refused.retry_after))
        if refused.status == 401 and self._settings.token is not None:
            response.headers["WWW-Authenticate"] = "Bearer"
        if refused.result is NotificationResult.BAD_METHOD:
            response.headers["Allow"] = "POST"
        return response

    async def _answer_notification(self, request: web.BaseRequest) -> tuple[NotificationResult, dict[str, object]]:
        if request.path != PATH:
            raise NotificationRefused(404, NotificationResult.BAD_PATH, f"path: allowed: {PATH}")
        if request.method != "POST":
            raise NotificationRefused(405, NotificationResult.BAD_METHOD, "method: allowed: POST")
        try:
            body, claim = await self._authenticate(request)
        except NotificationRefused as refused:
            # Unknown senders have their own allowance, so they cannot use up that of known ones.
            self._senders.count_unknown(refused)
            raise
        try:
            return await self._act(body)
        except NotificationRefused as refused:
            if claim is not None and refused.status >= 500:  # its sender may retry within the same second
                self._senders.replay_guard.pop(claim.signature, None)
            raise

    async def _authenticate(self, request: web.BaseRequest) -> tuple[bytes, UnprovenSignature | None]:
        """Returns the body of an authenticated sender within its rate. Whatever the headers prove is checked before the
        body is read; a signature needs the whole body."""
        claim = self._authentication.claim(request.headers, self._wall())
        if claim is None:
            self._admit(request)
        else:
            self._senders.check()  # a genuine sender would be refused too
        body = await self._body(request)
        if claim is not None:
            self._authentication.prove(claim, body)
            self._senders.check_signature(claim)
            self._admit(request)
            self._senders.replay_guard.add(claim.signature)
        return body, claim

    def _admit(self, request: web.BaseRequest) -> None:
        """Raises NotificationRefused if authenticated senders send too much."""
        self._senders.admit()
        connection_of(request).prove()

    async def _body(self, request: web.BaseRequest) -> bytes:
        most = self._settings.max_body_bytes
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise NotificationRefused(
                415, NotificationResult.BAD_ENCODING, "Content-Encoding: allowed: none: send the body uncompressed"
            )
        try:
            return await read_whole(request, most, self._deadlines.body)
        except BodyTooLarge:
            said = f"body: allowed: at most {most} bytes (webhook.max_body_bytes)"
            raise NotificationRefused(413, NotificationResult.TOO_LARGE, said) from None
        except TimeoutError:
            raise NotificationRefused(
                408, NotificationResult.SLOW, f"body: allowed: all of it within {self._deadlines.body:g} s"
            ) from None
        except (OSError, web.RequestPayloadError):
            raise NotificationRefused(
                400, NotificationResult.CUT_SHORT, "body: it ended early, or its chunks are invalid"
            ) from None

    async def _act(self, body: bytes) -> tuple[NotificationResult, dict[str, object]]:
        alerts = self._understood(body)
        notices = [alert for alert in alerts if isinstance(alert, Notice)]
        ignored = [alert for alert in alerts if isinstance(alert, IgnoredAlert)]
        listed = {"ignored": [str(alert) for alert in ignored[:_MOST_SHOWN]]} if ignored else {}
        if not notices:
            results = {alert.result for alert in ignored}
            if results == {NotificationResult.UNKNOWN_ALERT}:
                allowed = ", ".join(sorted(ACCEPTED_ALERTS))
                raise NotificationRefused(422, NotificationResult.UNKNOWN_ALERT, f"{ignored[0]}; allowed: {allowed}")
            result = (
                NotificationResult.NO_LEVEL
                if NotificationResult.NO_LEVEL in results
                else NotificationResult.OTHER_INSTANCE
            )
            return result, {"result": result, **listed}
        applied = await self._take(notices)
        counts = Counter(applied)
        if counts[Applied.ACCEPTED] + counts[Applied.RENEWED] + counts[Applied.RESOLVED]:
            result = NotificationResult.ACCEPTED
        elif counts[Applied.FULL]:
            result = NotificationResult.FULL
        else:
            result = NotificationResult.DUPLICATE if counts[Applied.DUPLICATE] else NotificationResult.OUT_OF_ORDER
        said = ", ".join(
            f"{notice.name} {'fires' if notice.firing else 'is resolved'}: {became}"
            for notice, became in zip(notices[:_MOST_SHOWN], applied, strict=False)
        )
        if counts[Applied.ACCEPTED] + counts[Applied.RESOLVED]:  # the requested levels have changed
            log.info("webhook: %s", said)
        else:
            self._log.write(
                logging.WARNING if result is NotificationResult.FULL else logging.INFO, result, f"webhook: {said}"
            )
        kept = {"unsaved": f"a restart would not know: {why}"} if (why := self._unsaved()) else {}
        return result, {"result": result, "applied": dict(counts), **kept, **listed}

    def _understood(self, body: bytes) -> list[Notice | IgnoredAlert]:
        """Returns the alerts. Raises NotificationRefused for a body that is not a notification, or an unknown level."""
        instance, now = self._instance(), self._wall()
        try:
            alerts = enumerate(parse_notification(body))
            return [notice_of(alert, f"alerts[{i}]", instance, now) for i, alert in alerts]
        except Malformed as error:
            raise NotificationRefused(400, NotificationResult.MALFORMED, error.message) from None
        except InvalidRequest as error:
            result = NotificationResult.BAD_LEVEL if isinstance(error, BadLevel) else NotificationResult.INVALID
            raise NotificationRefused(422, result, error.message) from None

    async def _take(self, notices: list[Notice]) -> list[Applied]:
        try:
            taking = asyncio.get_running_loop().run_in_executor(self._acting, self._notices, notices)
        except RuntimeError:  # the controller is closing
            raise _not_now() from None
        try:
            async with asyncio.timeout(_TAKE_SECONDS):
                return await taking
        except (QueueFull, NotServing) as error:
            raise _not_now(f": {error.message}", error.retry_after) from None
        except TimeoutError:
            raise _not_now() from None


def _authentication(settings: WebhookSettings) -> Authentication:
    tokens, secrets = secrets_of(settings.token), secrets_of(settings.secret)
    return Authentication(tokens, secrets, settings.timestamp_header, settings.replay_seconds)


def _not_now(why: str = "", wait: float | None = None) -> NotificationRefused:
    return NotificationRefused(503, NotificationResult.BUSY, f"not now{why}", retry_after=wait or _RETRY_SECONDS)


def _too_many(wait: float) -> NotificationRefused:
    return NotificationRefused(
        429, NotificationResult.RATE_LIMITED, "too many notifications (webhook.max_per_second)", retry_after=wait
    )
