"""Authenticates senders: a bearer token, or Grafana's signature with its time.

Grafana signs `TIMESTAMP:BODY` with HMAC-SHA256 and sends lowercase hex. It can leave the time out, and sign the body
alone; such a signature is good for ever, to whoever has once seen it, so it is refused. With its time it is good for a
window, and within that once. A token proves the sender of each request anew; whoever can repeat a request has the token
and could make up another. What it repeats is a lease that is held already.

Comparisons take the same time however much of a guess is right."""

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
from draftd.listening import is_any, is_bearer


class ReplayGuard(TTLCache[bytes, float]):
    """Signatures that were accepted, each with its end. Forgets by time, never for lack of room. One thread.

    `seconds` is how long one could be repeated: twice the window of a timestamp, which may lie ahead as well. A restart
    forgets all of them; what is repeated then meets the lease that it once got, or the remembered end of it.
    """

    def __init__(self, seconds: float, capacity: int = 16_384, clock: Callable[[], float] = time.monotonic) -> None:
        # One more than the capacity: a full cache would forget the oldest, which is still to be refused.
        super().__init__(capacity + 1, seconds, clock)

    def wait(self) -> float:
        """Seconds until there is room: 0 now."""
        self.expire()
        return 0.0 if len(self) < self.maxsize - 1 else min(self.values()) - self.timer()

    def add(self, signature: bytes) -> None:
        """Only where there is room."""
        assert len(self) < self.maxsize - 1
        self[signature] = self.timer() + self.ttl


SIGNATURE_HEADER = "X-Grafana-Alerting-Signature"


@dataclass(frozen=True, slots=True)
class UnprovenSignature:
    """A signature that is not proven yet: its body has to be read first."""

    timestamp: bytes
    signature: bytes


class Authentication:
    """`tokens` and `secrets` as configured, each of which will do."""

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
        """None where the headers prove the sender; what the body must prove otherwise. `now`: seconds since 1970.

        Raises Refused.
        """
        credentials = _all(headers, "Authorization")
        if len(credentials) == 1 and is_bearer(credentials[0], self._tokens):
            return None
        signatures = _all(headers, SIGNATURE_HEADER)
        if self._secrets and signatures:
            return self._unproven_signature(signatures, _all(headers, self._timestamp_header), now)
        if self._tokens and credentials:
            raise NotificationRefused(401, NotificationResult.BAD_TOKEN, f"the token is wrong; allowed: {self._ways}")
        raise NotificationRefused(
            401, NotificationResult.NO_CREDENTIALS, f"the sender is not known; allowed: {self._ways}"
        )

    def prove(self, claim: UnprovenSignature, body: bytes) -> None:
        """Raises Refused where the signature is not of this body at that time."""
        if not is_any(claim.signature, (_signature(secret, claim.timestamp, body) for secret in self._secrets)):
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
                401, NotificationResult.BAD_TIMESTAMP, f"{name}: allowed: seconds since 1970, once"
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
    """A header's values as they came. What is not UTF-8 arrives as surrogates; comparing text with those, or with any
    letter beyond ASCII, would raise."""
    return [value.encode("utf-8", "surrogateescape") for value in headers.getall(name, ())]
