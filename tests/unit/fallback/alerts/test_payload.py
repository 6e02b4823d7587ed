"""Payloads: how valid ones are understood and invalid ones are explained."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftd.errors import InvalidRequest
from draftd.fallback.alerts.payload import Malformed, notice_of, parse_alerts, parse_notification
from tests.webhook import PAYLOADS, alert, notification, payload


@pytest.mark.parametrize("name", ["alertmanager-firing", "grafana-firing"])
def test_alert_parser_reads_recorded_payloads_and_ignores_unknown_fields(name: str) -> None:
    recorded = payload(name)
    more = recorded | {"new": {"a": [1]}, "alerts": [one | {"new": None} for one in recorded["alerts"]]}
    assert parse_notification(json.dumps(more).encode()) == parse_notification(json.dumps(recorded).encode())
    assert len(parse_notification(json.dumps(recorded).encode())) == len(recorded["alerts"])


def test_alert_parser_reads_the_same_alert_from_webhook_and_alertmanager_api() -> None:
    """The notification has nanoseconds, the API milliseconds: neither may count as older."""
    (told,) = parse_notification((PAYLOADS / "alertmanager-firing.json").read_bytes())
    (listed,) = parse_alerts((PAYLOADS / "alertmanager-api.json").read_bytes())
    assert notice_of(told, "a", "", told.starts_at) == notice_of(listed, "a", "", told.starts_at)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("2026-01-31T12:00:00Z", 1769860800.0),
        ("2026-01-31T12:00:00.1Z", 1769860800.1),
        ("2026-01-31T12:00:00.157999999Z", 1769860800.157),
        ("2026-01-31T13:00:00.157+01:00", 1769860800.157),
        ("2026-01-31T07:30:00.157-04:30", 1769860800.157),
    ],
)
def test_alert_start_time_is_truncated_to_whole_milliseconds(written: str, seconds: float) -> None:
    (found,) = parse_notification(notification(alert() | {"startsAt": written}))
    assert found.starts_at == seconds


def test_suppressed_alerts_of_the_alertmanager_api_do_not_fire() -> None:
    (one,) = json.loads((PAYLOADS / "alertmanager-api.json").read_text())
    states = ("active", "suppressed", "unprocessed")
    listed = [one | {"status": {"state": state}, "fingerprint": state} for state in states]
    alerts = parse_alerts(json.dumps(listed).encode())
    assert [one.fingerprint for one in alerts if one.firing] == ["active", "unprocessed"]
    assert parse_alerts(b"[]") == []


def changed(path: str, value: Any) -> bytes:
    """Returns the recorded notification with one thing changed; `...` removes it."""
    made = payload("grafana-firing")
    at: Any = made
    *way, last = (int(step) if step.isdigit() else step for step in path.split("/"))
    for step in way:
        at = at[step]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return json.dumps(made).encode()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("version", "3", """version: got '3'; allowed: "4" (Alertmanager) or "1" (Grafana)"""),
        ("version", ..., """version: not set; allowed: "4" (Alertmanager) or "1" (Grafana)"""),
        ("version", 4, """version: got 4; allowed: "4" (Alertmanager) or "1" (Grafana)"""),
        ("status", "ok", "status: got 'ok'; allowed: firing or resolved"),
        ("alerts", [], "alerts: got 'a list of 0'; allowed: a list of 1 to 1000 alerts"),
        ("alerts", None, "alerts: not set; allowed: a list of 1 to 1000 alerts"),
        ("alerts", {"a": 1}, "alerts: got 'an object of 1'; allowed: a list of 1 to 1000 alerts"),
        ("alerts/1", 7, "alerts[1]: got 7; allowed: an alert: an object"),
        ("alerts/1/status", "pending", "alerts[1].status: got 'pending'; allowed: firing or resolved"),
        ("alerts/1/labels", ..., "alerts[1].labels: not set; allowed: an object of texts"),
        ("alerts/1/labels/severity", 3, "alerts[1].labels.severity: got 3; allowed: a text"),
        ("alerts/1/labels/alerts", 3, "alerts[1].labels.alerts: got 3; allowed: a text"),
        ("alerts/0/fingerprint", "", "alerts[0].fingerprint: got ''; allowed: 1 to 64 letters and digits"),
        ("alerts/0/fingerprint", "a\nb", r"alerts[0].fingerprint: got 'a\nb'; allowed: 1 to 64 letters and digits"),
        ("alerts/0/startsAt", "today", "alerts[0].startsAt: got 'today'; allowed: a time since 1970, as 2026-01-31"),
        ("alerts/0/startsAt", "1769860800", "alerts[0].startsAt: got '1769860800'; allowed: a time"),
        ("alerts/0/startsAt", 1769860800, "alerts[0].startsAt: got 1769860800; allowed: a time"),
        ("alerts/0/startsAt", "2026-01-31T12:00:00", "alerts[0].startsAt: got '2026-01-31T12:00:00'; allowed: a time"),
        ("alerts/0/startsAt", "2026-02-31T12:00:00Z", "alerts[0].startsAt: got '2026-02-31T12:00:00Z'; allowed: a"),
        ("alerts/0/startsAt", "0001-01-01T00:00:00+02:00", "alerts[0].startsAt: got '0001-01-01T00:00:00+02:00'; allo"),
        ("alerts/0/startsAt", "2026-01-31T12:00:00+99:00", "alerts[0].startsAt: got '2026-01-31T12:00:00+99:00'; allo"),
    ],
)
def test_faulty_alert_notification_field_is_named_with_value_and_allowed_values(
    path: str, value: Any, said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_notification(changed(path, value))
    assert refused.value.message.startswith(said), refused.value.message
    assert not isinstance(refused.value, Malformed)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nothing",
        b'{"version": "4",}',
        b"\xff\xfe",
        b'{"version": "\xc3\x28"}',
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"extra": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"1" * 200_000,
    ],
    ids=lambda body: repr(body[:16]),
)
def test_alert_notification_that_is_not_valid_json_is_refused_with_a_short_message(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_notification(body)
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("body", [b"[]", b"null", b"3", b'"text"', b"{}", b"NaN", b"[1]"])
def test_json_that_is_no_alert_notification_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_notification(body)


def test_alert_notification_with_more_than_1000_alerts_is_refused() -> None:
    assert len(parse_notification(notification(*[alert()] * 1000))) == 1000
    with pytest.raises(InvalidRequest, match="a list of 1001"):
        parse_notification(notification(*[alert()] * 1001))


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["version", "status", "alerts", "labels", "fingerprint", "startsAt"]), inner)
    ),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_alert_payload_is_refused_or_contains_no_alerts(body: bytes) -> None:
    for parse in (parse_notification, parse_alerts):
        with contextlib.suppress(InvalidRequest):
            assert parse(body) == []
