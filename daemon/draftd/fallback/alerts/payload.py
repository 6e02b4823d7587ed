"""Parses input from Grafana and Alertmanager: notifications to the webhook, and answers of their alerts API.

Alertmanager's notifications have version "4", Grafana's "1" with more fields; unneeded fields are ignored. The API is
Alertmanager's v2, which Grafana also has.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError

from draftd.core import FallbackLevel
from draftd.errors import InvalidRequest, wrong_field
from draftd.fallback.leases import Notice
from draftd.strategies import RemoteLevel

MOST_ALERTS = 1000  # in a notification
MOST_POLLED = 10_000  # in an answer
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)

# The same as in dashboards/alerts.py, which the daemon does not import; a test compares them.
ACCEPTED_ALERTS = frozenset(
    {
        "DraftdAbsent",
        "DraftdAcceptanceBelowFloor",
        "DraftdAcceptanceDrift",
        "DraftdAlertsRefused",
        "DraftdCanariesFail",
        "DraftdCertificateExpired",
        "DraftdCertificateExpires",
        "DraftdDeadlinesExceeded",
        "DraftdDrafterErrors",
        "DraftdGroupLost",
        "DraftdGroupNotServing",
        "DraftdMemoryPressureCritical",
        "DraftdPeersRefused",
        "DraftdPeersWait",
        "DraftdRankBehind",
        "DraftdRemoteBelowStreaming",
        "DraftdRemoteDown",
        "DraftdRemoteErrors",
        "DraftdRemoteSlow",
        "DraftdRequestErrors",
        "DraftdRequestsRefused",
        "DraftdSlowerThanBreakEven",
        "DraftdStateNotSaved",
        "DraftdStopped",
        "DraftdSwapRising",
        "DraftdTelemetryDropped",
        "DraftdThermalHeavy",
        "DraftdTimeToFirstTokenRegression",
        "DraftdVerifierErrors",
    }
)


#: The label that asks for a level of the ladder or of the remote. Routes and polls select alerts by it.
LEVEL_LABEL = "fallback_level"


class Malformed(InvalidRequest):
    """The error for a body that is not JSON."""


def _seconds(value: object) -> float:
    """Parses RFC 3339 to whole milliseconds, because a webhook sends nanoseconds where the API cuts them off."""
    if not isinstance(value, str) or _RFC3339.fullmatch(value) is None:
        raise ValueError
    since = datetime.fromisoformat(value.upper()) - _EPOCH
    if since < timedelta(0):
        raise ValueError
    return since // timedelta(milliseconds=1) / 1000


class _PayloadModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class Alert(_PayloadModel):
    """The fields of an alert that all three sources send. `starts_at`: seconds since 1970."""

    labels: dict[str, str]
    fingerprint: str = Field(pattern=r"^[0-9A-Za-z]{1,64}$")
    starts_at: Annotated[float, PlainValidator(_seconds)] = Field(alias="startsAt")


class NotifiedAlert(Alert):
    """An alert of a notification."""

    status: Literal["firing", "resolved"]

    @property
    def firing(self) -> bool:
        return self.status == "firing"


class _State(_PayloadModel):
    state: Literal["unprocessed", "active", "suppressed"]


class ListedAlert(Alert):
    """An alert listed by the API."""

    status: _State

    @property
    def firing(self) -> bool:
        """Whether it fires and is neither silenced nor inhibited."""
        return self.status.state != "suppressed"


class _Notification(_PayloadModel):
    version: Literal["4", "1"]
    status: Literal["firing", "resolved"]
    alerts: list[NotifiedAlert] = Field(min_length=1, max_length=MOST_ALERTS)


_ANSWER = TypeAdapter(Annotated[list[ListedAlert], Field(max_length=MOST_POLLED)])
_ALLOWED = {
    "version": '"4" (Alertmanager) or "1" (Grafana)',
    "alerts": f"a list of 1 to {MOST_ALERTS} alerts",
    "startsAt": "a time since 1970, as 2026-01-31T12:00:00.123Z",
    "fingerprint": "1 to 64 letters and digits",
    "labels": "an object of texts",
    "state": "unprocessed, active or suppressed",
    "status": "firing or resolved",
    "": "an object, as Alertmanager or Grafana sends it",
}


def parse_notification(body: bytes) -> list[NotifiedAlert]:
    """Parses a notification. Raises Malformed if it is not JSON, InvalidRequest if it is not a notification."""
    try:
        return _Notification.model_validate_json(body).alerts
    except ValidationError as error:
        raise _first_fault(error, body, "") from None


def parse_alerts(body: bytes) -> list[ListedAlert]:
    """Parses the API's answer. Raises the same errors as `parse_notification`."""
    try:
        return _ANSWER.validate_json(body)
    except ValidationError as error:
        raise _first_fault(error, body, "alerts") from None


def _first_fault(error: ValidationError, body: bytes, root: str) -> InvalidRequest:
    """Returns the error for the first fault."""
    first = error.errors(include_url=False, include_context=True)[0]
    if first["type"] == "json_invalid":
        shown = body[:40].decode("utf-8", "replace")
        return Malformed("body", shown, f"JSON in UTF-8 ({first['msg'].removeprefix('Invalid JSON: ')})")
    path, value, _ = wrong_field(error, root)
    names = [step for step in first["loc"] if isinstance(step, str)]
    last = names[-1] if names else ""
    if "labels" in names[:-1]:
        allowed = "a text"
    elif last == "alerts" and isinstance(first["loc"][-1], int):
        allowed = "an alert: an object"
    else:
        allowed = _ALLOWED.get(last, "a valid value")
    return InvalidRequest(path or "body", _short(value), allowed)


def _short(value: object) -> object:
    """Shortens a value for one line, without first writing all of it."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"an object of {len(value)}" if isinstance(value, dict) else value


class NotificationResult(enum.StrEnum):
    """The outcome of a notification, or of a request that was none."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # everything in it was known
    OUT_OF_ORDER = "out_of_order"  # everything in it is older than what is known
    FULL = "full"  # the limit of active alerts is reached
    NO_LEVEL = "no_level"  # no alert in it asks for a level: it is for people
    OTHER_INSTANCE = "other_instance"  # no alert in it concerns this daemon

    NO_CREDENTIALS = "no_credentials"
    BAD_TOKEN = "bad_token"
    BAD_SIGNATURE = "bad_signature"
    NO_TIMESTAMP = "no_timestamp"
    BAD_TIMESTAMP = "bad_timestamp"
    STALE = "stale"
    REPLAYED = "replayed"

    BAD_HTTP = "bad_http"
    BAD_PATH = "bad_path"
    BAD_METHOD = "bad_method"
    BAD_ENCODING = "bad_encoding"
    TOO_LARGE = "too_large"
    SLOW = "slow"
    CUT_SHORT = "cut_short"  # the sender closed the connection
    CROWDED_OUT = "crowded_out"  # the oldest of too many connections

    MALFORMED = "malformed"  # not JSON
    INVALID = "invalid"  # JSON, but not a notification
    BAD_LEVEL = "bad_level"
    UNKNOWN_ALERT = "unknown_alert"

    RATE_LIMITED = "rate_limited"
    BUSY = "busy"  # 503: the sender tries again
    FAILED = "failed"  # 500: a bug


class PollResult(enum.StrEnum):
    """The outcome of one poll."""

    OK = "ok"
    UNREACHABLE = "unreachable"
    SLOW = "slow"
    REFUSED = "refused"  # a status that is not 200
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    BUSY = "busy"  # the controller could not take the alerts
    FAILED = "failed"  # a bug


class NotificationRefused(Exception):
    """The error for a refused notification: HTTP status, the outcome to count, and the text for the sender."""

    def __init__(
        self, status: int, result: NotificationResult, message: str, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.result = result
        self.message = message
        self.retry_after = retry_after


AHEAD_SECONDS = (
    86_400.0  # how far an alert's start may be ahead of this machine's clock: later alerts would look older than it
)
_LEVELS = {level.label: level for level in FallbackLevel if level is not FallbackLevel.FULL}
_REMOTE_LEVELS = {level.label: level for level in RemoteLevel if level is not RemoteLevel.SPECULATIVE}


class BadLevel(InvalidRequest):
    """The error for a level that no alert may ask for."""


@dataclass(frozen=True, slots=True)
class IgnoredAlert:
    """An alert that asks nothing of this daemon. `where`: its place in the input."""

    where: str
    name: str
    result: NotificationResult

    def __str__(self) -> str:
        return f"{self.where}: {self.result} ({_shown(self.name)})"


def notice_of(alert: NotifiedAlert | ListedAlert, where: str, instance: str, now: float) -> Notice | IgnoredAlert:
    """Returns the alert's notice. `instance`: this daemon's name; without one, alerts of any instance count. Levels are
    ceilings, so no alert can raise one. Raises BadLevel for other levels, and InvalidRequest for a start too far in the
    future."""
    labels = alert.labels
    name = labels.get("alertname", "")
    if name not in ACCEPTED_ALERTS:
        return IgnoredAlert(where, name, NotificationResult.UNKNOWN_ALERT)
    if instance and labels.get("instance") and labels["instance"] != instance:
        return IgnoredAlert(where, name, NotificationResult.OTHER_INSTANCE)
    if not (asks := labels.get(LEVEL_LABEL)):
        return IgnoredAlert(where, name, NotificationResult.NO_LEVEL)
    remote = _REMOTE_LEVELS.get(asks)
    if remote is None and asks not in _LEVELS:
        allowed = ", ".join(sorted(_LEVELS | _REMOTE_LEVELS)) + ": an alert can lower the level, but not raise it"
        raise BadLevel(f"{where}.labels.{LEVEL_LABEL}", asks, allowed)
    if alert.starts_at > now + AHEAD_SECONDS:
        allowed = "a time that is not more than a day ahead of this machine's"
        raise InvalidRequest(f"{where}.startsAt", alert.starts_at, allowed)
    hard = labels.get("severity") == "critical"
    ladder = _LEVELS[asks] if remote is None else FallbackLevel.FULL
    return Notice(name, alert.fingerprint, alert.firing, alert.starts_at, ladder, hard, remote)


def _shown(name: str) -> str:
    shown = repr(name)
    return shown if len(shown) <= 80 else f"{shown[:77]}…"
