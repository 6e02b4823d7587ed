"""Each alert that the rules make, on its way to the daemon's ladders: through the real Alertmanager with the project's
own routes, through the poll, and as Grafana sends it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.alerts import alert_rules
from dashboards.rule import AlertRule, Severity
from dashboards.settings import Alerting
from draftd.cli.grafana.push import CONTACT_POINT, OUR_ROUTE
from draftd.core import FallbackLevel
from draftd.engine.remote.verifier_link import LinkState
from draftd.fallback.alerts.payload import LEVEL_LABEL
from draftd.fallback.alerts.poller import Poller
from draftd.settings import WebhookSettings
from draftd.strategies import RemoteLevel
from scripts.stack import Webhook as Told
from tests.stack.components import ROOT, Alertmanager, alertmanager, quick
from tests.unit.fallback.controlled import COOLDOWN, LADDER, Controlled
from tests.wait_until import until
from tests.webhook import TOKEN, Counting, Webhook, payload, signed

RULES = alert_rules(Alerting())
ASKING = [rule for rule in RULES if rule.level is not None]
TOP = (FallbackLevel.FULL, RemoteLevel.SPECULATIVE)
_PATIENCE = 30.0
_STEPS = 50  # cooldowns in which the ladders come back


def ladders() -> Controlled:
    """One ladder for this machine and one for the remote, whose relapses do not make them wait longer each time."""
    return Controlled(link=LinkState(up=True), longest_wait_seconds=2 * COOLDOWN)


def levels(controlled: Controlled) -> tuple[FallbackLevel, RemoteLevel]:
    """The ladder's level, and the remote's."""
    remote = controlled.controller.state().remote
    assert remote is not None
    return LADDER[controlled.position].kind, remote.level


def asked_for(rule: AlertRule) -> tuple[FallbackLevel, RemoteLevel]:
    """Where both ladders come to rest while the alert fires, and nothing else does."""
    if isinstance(rule.level, RemoteLevel):
        return FallbackLevel.FULL, rule.level
    assert isinstance(rule.level, FallbackLevel)
    return rule.level, RemoteLevel.SPECULATIVE


def takes_effect(controlled: Controlled, rule: AlertRule) -> None:
    """At once if it is critical, else one level a cooldown; and no other ladder moves."""
    if rule.severity is not Severity.CRITICAL:
        for _ in LADDER:
            controlled.at(controlled.now + COOLDOWN)
    assert levels(controlled) == asked_for(rule), rule.name


def comes_back(controlled: Controlled) -> None:
    for _ in range(_STEPS):
        if levels(controlled) == TOP:
            return
        controlled.at(controlled.now + COOLDOWN)
    raise AssertionError(f"it stays at {levels(controlled)}")


def leased(controlled: Controlled) -> list[str]:
    return [lease.notice.name for lease in controlled.controller.state().leases]


def labels(rule: AlertRule) -> dict[str, str]:
    return {"alertname": rule.name, "instance": "mini-1", **rule.labels}


def posted(rule: AlertRule, ended: bool = False) -> dict[str, Any]:
    """As Prometheus tells Alertmanager."""
    now = datetime.now(UTC)
    end = {"endsAt": (now - timedelta(seconds=1)).isoformat()} if ended else {}
    begin = (now - timedelta(minutes=1)).replace(microsecond=0)
    return {"labels": labels(rule), "annotations": rule.annotations(".Value"), "startsAt": begin.isoformat()} | end


@contextmanager
def listening(controlled: Controlled) -> Iterator[Webhook]:
    """The daemon's webhook, whose alerts go to these ladders."""
    with Webhook(max_per_second=100) as webhook:
        webhook.controller.answer = controlled.controller.notices
        yield webhook


@contextmanager
def polling(manager: Alertmanager, controlled: Controlled) -> Iterator[None]:
    settings = WebhookSettings(poll_url=f"http://{manager.address}", poll_seconds=0.1)
    poller = Poller(settings, controlled.controller.apply_poll, Counting(), lambda: "mini-1")
    poller.start()
    try:
        yield
    finally:
        assert poller.close(10)


def test_alertmanager_webhook_and_poll_apply_and_end_each_level_alert(tmp_path: Path) -> None:
    told, polled = ladders(), ladders()
    with listening(told) as webhook:
        config = quick(Told(f"http://127.0.0.1:{webhook.port}/v1/alerts", TOKEN), tmp_path / "told", "50ms")
        with alertmanager(tmp_path, config=config) as manager, polling(manager, polled):
            manager.post([posted(rule) for rule in RULES if rule.level is None])
            for rule in ASKING:
                manager.post([posted(rule)])
                for way in (told, polled):
                    until(lambda way=way, rule=rule: leased(way) == [rule.name], _PATIENCE, rule.name)
                    takes_effect(way, rule)
                manager.post([posted(rule, ended=True)])
                for way in (told, polled):
                    until(lambda way=way: leased(way) == [], _PATIENCE, f"{rule.name} is over")
                    comes_back(way)
            told_to = {one["labels"]["alertname"]: one["receivers"] for one in manager.alerts()}
    assert told_to == {rule.name: [{"name": "nobody"}] for rule in RULES if rule.level is None}
    assert webhook.counted["accepted"] == 2 * len(ASKING), "those for people were not sent to the daemon"
    assert set(webhook.counted) <= {"accepted", "bad_http"}, webhook.counted


def from_grafana(rule: AlertRule, status: str) -> bytes:
    """As a contact point sends it."""
    body = payload(f"grafana-{status}")
    one = body["alerts"][0] | {"labels": labels(rule), "annotations": rule.annotations(".Values.B.Value")}
    one |= {"startsAt": "2026-01-31T12:00:00.157Z", "fingerprint": f"{RULES.index(rule):016x}"}
    return json.dumps(body | {"alerts": [one]}).encode()


def test_grafana_alert_webhook_applies_and_ends_level_alerts_only() -> None:
    controlled = ladders()
    with listening(controlled) as webhook:
        for rule in RULES:
            firing, resolved = (from_grafana(rule, status) for status in ("firing", "resolved"))
            answered = webhook.send(firing, signed(firing))
            if rule.level is None:
                assert (answered.status, answered.json["result"]) == (200, "no_level")
                assert levels(controlled) == TOP
                continue
            assert answered.json["result"] == "accepted", answered.json
            takes_effect(controlled, rule)
            assert webhook.send(resolved, signed(resolved)).json["applied"] == {"resolved": 1}
            comes_back(controlled)


def matches(matchers: Sequence[Sequence[str]], found: dict[str, str]) -> bool:
    """Grafana's `object_matchers`, of which all must match."""
    for name, how, wanted in matchers:
        value = found.get(name, "")
        if not ({"=": value == wanted, "=~": re.fullmatch(wanted, value) is not None}[how]):
            return False
    return True


def provisioned() -> tuple[list[Any], list[Any]]:
    """Of Grafana's own file: the matchers of the route to the daemon, and of the one that is muted."""
    found = yaml.safe_load((ROOT / "dashboards" / "provisioning" / "alerting" / "draftd.yaml").read_text())
    asking, muted = found["policies"][0]["routes"]
    assert asking["receiver"] == CONTACT_POINT
    assert "mute_time_intervals" in muted
    return asking["object_matchers"], muted["object_matchers"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_grafana_routes_send_the_daemon_only_alerts_with_a_level(rule: AlertRule) -> None:
    own = labels(rule)
    assert (LEVEL_LABEL in own) == (rule.level is not None)
    asking, muted = provisioned()
    assert (matches(asking, own), matches(muted, own)) == (rule.level is not None, rule.level is None)
    pushed = own | {"managed_by": "draftd"}  # as `draftd dashboards push` marks its rules
    assert matches(OUR_ROUTE["object_matchers"], pushed) == (rule.level is not None)
    assert matches(OUR_ROUTE["routes"][0]["object_matchers"], pushed)
