"""Parses what Grafana and Alertmanager send: notifications to a webhook, and the answers of their alerts API.

Alertmanager's notifications have version "4", Grafana's "1" with more fields; what is not needed here is not looked at.
The API is Alertmanager's v2, which Grafana has as well."""

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

# As in dashboards/alerts.py, which the daemon does not import; a test holds both equal.
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


#: The label by which an alert asks for a level, of the ladder or of the remote. Routes and polls select by it.
LEVEL_LABEL = "fallback_level"


class Malformed(InvalidRequest):
    """The error for a body that is not JSON."""


def _seconds(value: object) -> float:
    """RFC 3339, in whole milliseconds: a webhook tells nanoseconds, the API cuts them off, and it is one alert."""
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
    """One of a notification."""

    status: Literal["firing", "resolved"]

    @property
    def firing(self) -> bool:
        return self.status == "firing"


class _State(_PayloadModel):
    state: Literal["unprocessed", "active", "suppressed"]


class ListedAlert(Alert):
    """One that the API lists."""

    status: _State

    @property
    def firing(self) -> bool:
        """Not where it is silenced or inhibited."""
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
    """Raises Malformed where it is no JSON, InvalidRequest where it is no notification."""
    try:
        return _Notification.model_validate_json(body).alerts
    except ValidationError as error:
        raise _first_fault(error, body, "") from None


def parse_alerts(body: bytes) -> list[ListedAlert]:
    """The alerts of the API's answer. Raises as `parse_notification`."""
    try:
        return _ANSWER.validate_json(body)
    except ValidationError as error:
        raise _first_fault(error, body, "alerts") from None


def _first_fault(error: ValidationError, body: bytes, root: str) -> InvalidRequest:
    """The first thing that is wrong."""
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
    """Shortens a value for one line, without writing all of it out first."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"an object of {len(value)}" if isinstance(value, dict) else value


class NotificationResult(enum.StrEnum):
    """The outcome of one notification, or of a request that was none."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # all of it was known
    OUT_OF_ORDER = "out_of_order"  # all of it is older than what is known
    FULL = "full"  # as many alerts hold as may
    NO_LEVEL = "no_level"  # none of it asks for a level: it is for people
    OTHER_INSTANCE = "other_instance"  # none of it is about this daemon

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
    CUT_SHORT = "cut_short"  # its sender hung up
    CROWDED_OUT = "crowded_out"  # it was the oldest of too many connections

    MALFORMED = "malformed"  # no JSON
    INVALID = "invalid"  # JSON, but no notification
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
    BUSY = "busy"  # what was found could not be taken
    FAILED = "failed"  # a bug


class NotificationRefused(Exception):
    """A notification that is not taken: HTTP status, what is counted, what its sender gets."""

    def __init__(
        self, status: int, result: NotificationResult, message: str, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.result = result
        self.message = message
        self.retry_after = retry_after


AHEAD_SECONDS = 86_400.0  # that an alert may begin ahead of this machine's clock: later ones would look old beside it
_LEVELS = {level.label: level for level in FallbackLevel if level is not FallbackLevel.FULL}
_REMOTE_LEVELS = {level.label: level for level in RemoteLevel if level is not RemoteLevel.SPECULATIVE}


class BadLevel(InvalidRequest):
    """A level that no alert can ask for."""


@dataclass(frozen=True, slots=True)
class IgnoredAlert:
    """An alert that asks nothing of this daemon. `where` names it in what it came in."""

    where: str
    name: str
    result: NotificationResult

    def __str__(self) -> str:
        return f"{self.where}: {self.result} ({_shown(self.name)})"


def notice_of(alert: NotifiedAlert | ListedAlert, where: str, instance: str, now: float) -> Notice | IgnoredAlert:
    """`instance` is this daemon's own name; while it has none, alerts of any instance are taken for its own.

    A level is a ceiling: nothing in here can raise one. Raises BadLevel for any other, and InvalidRequest
    where the alert begins too far ahead.
    """
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
