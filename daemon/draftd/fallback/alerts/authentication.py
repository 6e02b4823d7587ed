"""Authenticates senders of alerts by a bearer token, or by Grafana's signature with its time.

Grafana signs `TIMESTAMP:BODY` with HMAC-SHA256 and sends lowercase hex. It can omit the time and sign only the body;
such a signature would stay valid forever for anyone who has seen it once, so it is refused. With its time a signature
is valid for a window, and once within it. A token proves the sender of each request: whoever can repeat a request has
the token and could make another, and the repetition only extends a lease that exists already.

Comparisons take the same time however much of a guess is right.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from cachetools import TTLCache
from multidict import MultiMapping

from draftd.fallback.alerts.payload import NotificationRefused, NotificationResult
from draftd.listening import matching_bearer, matching_secret


class ReplayGuard(TTLCache[bytes, float]):
    """The accepted signatures, each until it expires. Forgets by time only, never for lack of room. One thread.

    `seconds`: how long a signature stays valid at most: twice the allowed difference of clocks, because its time may be
    that far ahead. A restart forgets all signatures. A notification repeated after a restart only extends its lease, or
    is stale if the lease has ended."""

    def __init__(self, seconds: float, capacity: int = 16_384, clock: Callable[[], float] = time.monotonic) -> None:
        # One more than the capacity: a full cache would drop the oldest, which must still be refused.
        super().__init__(capacity + 1, seconds, clock)

    def wait(self) -> float:
        """Returns the seconds until there is room; 0 if there is."""
        self.expire()
        return 0.0 if len(self) < self.maxsize - 1 else min(self.values()) - self.timer()

    def add(self, signature: bytes) -> None:
        """Adds a signature. There must be room."""
        assert len(self) < self.maxsize - 1
        self[signature] = self.timer() + self.ttl


SIGNATURE_HEADER = "X-Grafana-Alerting-Signature"


@dataclass(frozen=True, slots=True)
class UnprovenSignature:
    """A signature that cannot be checked before the body is read."""

    timestamp: bytes
    signature: bytes


class Authentication:
    """Checks requests against the configured `tokens` and `secrets`; any one of them is enough."""

    def __init__(
        self, tokens: Collection[bytes], secrets: Collection[bytes], timestamp_header: str, replay_seconds: float
    ) -> None:
        self._tokens, self._secrets = tokens, secrets
        self._timestamp_header = timestamp_header
        self._replay_seconds = replay_seconds
        ways = ["a bearer token in Authorization"] if tokens else []
        if secrets:
            ways.append(f"a signature in {SIGNATURE_HEADER} with its time in {timestamp_header}")
        self._ways = ", or ".join(ways)

    def claim(self, headers: MultiMapping[str], now: float) -> UnprovenSignature | None:
        """Returns None if the headers prove the sender, otherwise the signature to check against the body. `now`:
        seconds since 1970. Raises NotificationRefused."""
        credentials = _all(headers, "Authorization")
        if len(credentials) == 1 and matching_bearer(credentials[0], self._tokens):
            return None
        signatures = _all(headers, SIGNATURE_HEADER)
        if self._secrets and signatures:
            return self._unproven_signature(signatures, _all(headers, self._timestamp_header), now)
        if self._tokens and credentials:
            raise NotificationRefused(401, NotificationResult.BAD_TOKEN, f"the token is wrong; allowed: {self._ways}")
        raise NotificationRefused(
            401, NotificationResult.NO_CREDENTIALS, f"no credentials of an allowed kind; allowed: {self._ways}"
        )

    def prove(self, claim: UnprovenSignature, body: bytes) -> None:
        """Raises NotificationRefused if the signature does not fit this body and time."""
        if not matching_secret(
            claim.signature, (_signature(secret, claim.timestamp, body) for secret in self._secrets)
        ):
            wanted = "the lowercase hex of HMAC-SHA256 over TIMESTAMP:BODY with webhook.secret"
            raise NotificationRefused(401, NotificationResult.BAD_SIGNATURE, f"{SIGNATURE_HEADER}: not {wanted}")

    def _unproven_signature(self, signatures: list[bytes], times: list[bytes], now: float) -> UnprovenSignature:
        name = self._timestamp_header
        if not times:
            why = "without its time a signature could be repeated for ever"
            todo = "set the timestamp header in Grafana's contact point"
            raise NotificationRefused(401, NotificationResult.NO_TIMESTAMP, f"{name}: missing; {why}: {todo}")
        if len(times) > 1 or re.fullmatch(rb"[0-9]{1,12}", times[0]) is None:
            raise NotificationRefused(
                401, NotificationResult.BAD_TIMESTAMP, f"{name}: allowed: one header with seconds since 1970"
            )
        if abs(now - int(times[0])) > self._replay_seconds:
            got = f"got {int(times[0])}, {now - int(times[0]):+.0f} s ago"
            allowed = f"at most {self._replay_seconds:g} s before or after this machine's time"
            raise NotificationRefused(401, NotificationResult.STALE, f"{name}: {got}; allowed: {allowed}")
        if len(signatures) > 1:
            raise NotificationRefused(
                401, NotificationResult.BAD_SIGNATURE, f"{SIGNATURE_HEADER}: got {len(signatures)}; allowed: one"
            )
        return UnprovenSignature(times[0], signatures[0])


def _signature(secret: bytes, timestamp: bytes, body: bytes) -> bytes:
    digest = hmac.new(secret, timestamp + b":", hashlib.sha256)
    digest.update(body)
    return digest.hexdigest().encode()


def _all(headers: MultiMapping[str], name: str) -> list[bytes]:
    """Returns a header's raw values. Values that are not UTF-8 arrive as surrogates, and comparing text with those or
    other non-ASCII letters would raise."""
    return [value.encode("utf-8", "surrogateescape") for value in headers.getall(name, ())]
