"""The webhook as its senders see it: a real listener on loopback, and notifications to send to it."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftd.fallback.alerts.webhook import WebhookListener
from draftd.fallback.leases import Applied, Notice
from draftd.settings import WebhookSettings
from draftd.telemetry.fallback import FallbackRecorder

PAYLOADS = Path(__file__).parent / "payloads"
TOKEN, SECRET = "a-token-of-the-tests", "a-secret-of-the-tests"
SIGNATURE, TIMESTAMP = "X-Grafana-Alerting-Signature", "X-Grafana-Alerting-Timestamp"


def payload(name: str) -> dict[str, Any]:
    """Returns a recorded payload, to be changed."""
    return dict(json.loads((PAYLOADS / f"{name}.json").read_text()))


def alert(**labels: str) -> dict[str, Any]:
    """Returns a firing alert with these additional labels; an empty one removes a label."""
    own = {"alertname": "DraftdAcceptanceBelowFloor", "fallback_level": "short_block", "severity": "warning"}
    kept = {name: value for name, value in (own | labels).items() if value}
    begun = {"status": "firing", "startsAt": "2026-01-31T12:00:00.157Z", "endsAt": "0001-01-01T00:00:00Z"}
    return begun | {"labels": kept, "annotations": {}, "fingerprint": "2b03077e5bc4dbfc"}


def notification(*alerts: dict[str, Any]) -> bytes:
    """Returns a notification as Alertmanager sends it."""
    return json.dumps(payload("alertmanager-firing") | {"alerts": list(alerts or (alert(),))}).encode()


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def signed(body: bytes, secret: str = SECRET, at: float | None = None) -> dict[str, str]:
    """Returns headers with Grafana's signature."""
    when = str(int(time.time() if at is None else at))
    made = hmac.new(secret.encode(), when.encode() + b":" + body, hashlib.sha256).hexdigest()
    return {SIGNATURE: made, TIMESTAMP: when}


class Counting(FallbackRecorder):
    """Telemetry that keeps its counts. Any thread may use it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.notifications: Counter[str] = Counter()
        self.polls: Counter[str] = Counter()

    def notification(self, result: str) -> None:
        with self.lock:
            self.notifications[result] += 1

    def poll(self, result: str) -> None:
        with self.lock:
            self.polls[result] += 1


@dataclass
class Controller:
    """A fake controller that keeps the listener's notices and answers as a test sets it."""

    told: list[Notice] = field(default_factory=list)
    answer: Callable[[Sequence[Notice]], list[Applied]] = lambda notices: [Applied.ACCEPTED] * len(notices)

    def notices(self, notices: Sequence[Notice]) -> list[Applied]:
        applied = self.answer(notices)
        self.told += notices
        return applied


@dataclass(frozen=True)
class Answered:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    @property
    def error(self) -> str:
        return str(self.json["error"])


class Webhook:
    """A listener with a token and a secret, unless `settings` say otherwise, and a controller that accepts
    everything."""

    def __init__(self, instance: str = "mini-1", tls: ssl.SSLContext | None = None, **settings: Any) -> None:
        timing = {name: settings.pop(name) for name in ("wall", "body_seconds", "request_seconds") if name in settings}
        credentials = {"token": TOKEN, "secret": SECRET}
        self.telemetry, self.controller, self.instance = Counting(), Controller(), instance
        self.settings = WebhookSettings(**({"port": 0} | credentials | settings))
        self.listener = WebhookListener(
            self.settings, self.controller.notices, self.telemetry, lambda: self.instance, **timing
        )
        self._tls = tls
        self.port = self.listener.start()

    def __enter__(self) -> Webhook:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.listener.close(10), "the listener did not end"

    @property
    def counted(self) -> dict[str, int]:
        with self.telemetry.lock:
            return dict(self.telemetry.notifications)

    def send(
        self,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        path: str = "/v1/alerts",
        method: str = "POST",
        chunked: bool = False,
    ) -> Answered:
        """Sends a notification, by default of one alert with the token. The body is bytes, or an iterable of them."""
        body = notification() if body is None else body
        kind = {"Content-Type": "application/json"}
        connection = self.connection()
        try:
            sent = {**kind, **(bearer() if headers is None else headers)}
            connection.request(method, path, body, sent, encode_chunked=chunked)
            response = connection.getresponse()
            return Answered(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=self._tls)

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)
