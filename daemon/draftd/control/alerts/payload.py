"""What Grafana and Alertmanager say: notifications to a webhook, and the answers of their alerts API.

Alertmanager's notifications have version "4", Grafana's "1" with more fields; what is not needed here is not looked at.
The API is Alertmanager's v2, which Grafana has as well. All three become `Alert`s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError

from draftd.errors import InvalidRequest

MOST_ALERTS = 1000  # in a notification
MOST_POLLED = 10_000  # in an answer

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `starts_at`: seconds since 1970; `where` names it in what it came in."""

    labels: Mapping[str, str]
    fingerprint: str
    starts_at: float
    firing: bool
    where: str


class Malformed(InvalidRequest):
    """What came is no JSON."""


def _seconds(value: object) -> float:
    """RFC 3339, in whole milliseconds: a webhook tells nanoseconds, the API cuts them off, and it is one alert."""
    if not isinstance(value, str) or _RFC3339.fullmatch(value) is None:
        raise ValueError
    since = datetime.fromisoformat(value.upper()) - _EPOCH
    if since < timedelta(0):
        raise ValueError
    return since // timedelta(milliseconds=1) / 1000


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Any(_Part):
    labels: dict[str, str]
    fingerprint: str = Field(pattern=r"^[0-9A-Za-z]{1,64}$")
    starts_at: Annotated[float, PlainValidator(_seconds)] = Field(alias="startsAt")


class _Told(_Any):
    status: Literal["firing", "resolved"]


class _State(_Part):
    state: Literal["unprocessed", "active", "suppressed"]


class _Listed(_Any):
    status: _State


class _Notification(_Part):
    version: Literal["4", "1"]
    status: Literal["firing", "resolved"]
    alerts: list[_Told] = Field(min_length=1, max_length=MOST_ALERTS)


_ANSWER = TypeAdapter(Annotated[list[_Listed], Field(max_length=MOST_POLLED)])

_ALLOWED = {
    "version": '"4" (Alertmanager) or "1" (Grafana)',
    "alerts": f"a list of 1 to {MOST_ALERTS} alerts",
    "startsAt": "a time since 1970, as 2026-01-31T12:00:00.123Z",
    "fingerprint": "1 to 64 letters and digits",
    "labels": "an object of texts",
    "state": "unprocessed, active or suppressed",
}
_STATUS = "firing or resolved"


def parse_notification(body: bytes) -> tuple[Alert, ...]:
    """Raises Malformed where it is no JSON, InvalidRequest where it is no notification."""
    try:
        found = _Notification.model_validate_json(body)
    except ValidationError as error:
        raise _explained(error, body, "") from None
    return tuple(_alert(one, one.status == "firing", f"alerts[{i}]") for i, one in enumerate(found.alerts))


def parse_alerts(body: bytes) -> tuple[Alert, ...]:
    """The alerts of the API's answer that fire and are not silenced or inhibited. Raises as `parse_notification`."""
    try:
        found = _ANSWER.validate_json(body)
    except ValidationError as error:
        raise _explained(error, body, "alerts") from None
    firing = ((i, one) for i, one in enumerate(found) if one.status.state != "suppressed")
    return tuple(_alert(one, True, f"alerts[{i}]") for i, one in firing)


def _alert(one: _Any, firing: bool, where: str) -> Alert:
    return Alert(one.labels, one.fingerprint, one.starts_at, firing, where)


def _explained(error: ValidationError, body: bytes, root: str) -> InvalidRequest:
    """The first thing that is wrong."""
    first = error.errors(include_url=False, include_context=True)[0]
    if first["type"] == "json_invalid":
        shown = body[:40].decode("utf-8", "replace")
        return Malformed("body", shown, f"JSON in UTF-8 ({first['msg'].removeprefix('Invalid JSON: ')})")
    path = root
    for step in first["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    names = [step for step in first["loc"] if isinstance(step, str)]
    if first["type"] == "missing":
        return InvalidRequest(path, None, _allowed(names, first["loc"]))
    return InvalidRequest(path or "body", _short(first["input"]), _allowed(names, first["loc"]))


def _allowed(names: list[str], loc: tuple[int | str, ...]) -> str:
    last = names[-1] if names else ""
    if "labels" in names[:-1]:
        return "a text"
    if last == "alerts" and isinstance(loc[-1], int):
        return "an alert: an object"
    if last == "status":
        return _STATUS
    return _ALLOWED.get(last, "an object, as Alertmanager or Grafana sends it" if not loc else "a valid value")


def _short(value: object) -> object:
    """What can be shown in a line without writing all of it out first."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"an object of {len(value)}" if isinstance(value, dict) else value
