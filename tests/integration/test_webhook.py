"""The webhook and the poll with the real Alertmanager, and the README's own commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftd.cli.grafana.push import OUR_ROUTE
from draftd.core import FallbackLevel
from draftd.fallback.alerts.poller import Poller
from draftd.fallback.leases import Leases, Notice
from draftd.settings import WebhookSettings
from scripts.stack import Webhook as Told
from tests.conftest import missing
from tests.stack.components import ROOT, Alertmanager, alertmanager, quick
from tests.wait_until import until
from tests.webhook import SECRET, TOKEN, Counting, Webhook


def asking(**changed: Any) -> dict[str, Any]:
    """What Prometheus tells Alertmanager, to the nanosecond."""
    began = (datetime.now(UTC) - timedelta(minutes=1)).replace(microsecond=0, tzinfo=None).isoformat()
    labels = {"alertname": "DraftdSwapRising", "fallback_level": "light_draft", "instance": "mini-1"}
    return {"labels": labels | changed.pop("labels", {}), "startsAt": f"{began}.123456789Z"} | changed


def over(alert: dict[str, Any]) -> dict[str, Any]:
    return alert | {"endsAt": (datetime.now(UTC) - timedelta(seconds=1)).isoformat()}


def heard(webhook: Webhook) -> dict[str, int]:
    """What was counted of its notifications. A connection without one is a stranger's: tests run side by side, and a
    client of a daemon that is gone may still try its port, which is another's by then."""
    return {result: number for result, number in webhook.counted.items() if result != "bad_http"}


def test_alertmanager_delivers_level_alerts_to_the_webhook_with_its_token(tmp_path: Path) -> None:
    with Webhook(secret=None) as webhook:
        url = f"http://127.0.0.1:{webhook.port}/v1/alerts"
        with alertmanager(tmp_path, config=quick(Told(url, TOKEN), tmp_path / "told")) as manager:
            alert = asking()
            manager.post([alert, asking(labels={"alertname": "DraftdAbsent", "fallback_level": ""})])
            until(lambda: len(webhook.controller.told) == 1, 30, "the alert has arrived")
            manager.post([over(alert)])
            until(lambda: len(webhook.controller.told) == 2, 30, "its end has arrived")
    fires, ended = webhook.controller.told
    assert (fires.name, fires.level, fires.hard) == ("DraftdSwapRising", FallbackLevel.LIGHT_DRAFT, False)
    assert (fires.firing, ended.firing) == (True, False)
    assert (fires.fingerprint, fires.starts_at) == (ended.fingerprint, ended.starts_at)
    assert heard(webhook) == {"accepted": 2}


def test_webhook_refuses_and_counts_alertmanager_with_a_wrong_token(tmp_path: Path) -> None:
    with Webhook(secret=None) as webhook:
        url = f"http://127.0.0.1:{webhook.port}/v1/alerts"
        with alertmanager(tmp_path, config=quick(Told(url, "guess"), tmp_path / "told")) as manager:
            manager.post([asking()])
            until(lambda: webhook.counted.get("bad_token", 0) >= 1, 30, "it has been refused")
    assert webhook.controller.told == []
    assert set(heard(webhook)) == {"bad_token"}


def test_alertmanager_redelivers_an_alert_after_the_webhook_returns(tmp_path: Path) -> None:
    first = Webhook(secret=None)
    assert first.listener.close(10)
    url = f"http://127.0.0.1:{first.port}/v1/alerts"
    with alertmanager(tmp_path, config=quick(Told(url, TOKEN), tmp_path / "told")) as manager:
        manager.post([asking()])
        until(lambda: bool(manager.alerts()), 30)
        with Webhook(secret=None, port=first.port) as back:
            until(lambda: len(back.controller.told) == 1, 60, "it was sent again")


class Polled:
    """The leases, as polls of a real Alertmanager leave them."""

    def __init__(self, manager: Alertmanager) -> None:
        self.leases = Leases()
        self.telemetry = Counting()
        settings = WebhookSettings(poll_url=f"http://{manager.address}", poll_seconds=0.2)
        self.poller = Poller(settings, self.reconcile, self.telemetry, lambda: "mini-1")

    def reconcile(self, firing: Sequence[Notice]) -> None:
        self.leases = self.leases.reconcile(firing, datetime.now(UTC).timestamp(), 1800.0)

    @property
    def held(self) -> set[str]:
        return {lease.notice.name for lease in self.leases.active.values()}


def silence(manager: Alertmanager, name: str) -> str:
    """Silences an alert; its id."""
    now = datetime.now(UTC)
    body = {
        "matchers": [{"name": "alertname", "value": name, "isRegex": False, "isEqual": True}],
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(hours=1)).isoformat(),
        "createdBy": "a test",
        "comment": "be quiet",
    }
    url, kind = f"http://{manager.address}/api/v2/silences", {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kind), timeout=10) as said:
        return str(json.load(said)["silenceID"])


def unsilence(manager: Alertmanager, silence_id: str) -> None:
    url = f"http://{manager.address}/api/v2/silence/{silence_id}"
    with urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=10):
        pass


def test_alertmanager_poll_follows_firing_resolved_and_silenced_alerts(tmp_path: Path) -> None:
    with alertmanager(tmp_path) as manager:
        swap, hot = asking(), asking(labels={"alertname": "DraftdThermalHeavy", "fallback_level": "short_block"})
        manager.post([swap, hot, asking(labels={"alertname": "Disk"}), asking(labels={"instance": "mini-2"})])
        polled = Polled(manager)
        polled.poller.start()
        try:
            until(lambda: polled.held == {"DraftdSwapRising", "DraftdThermalHeavy"}, 30)
            manager.post([over(swap)])
            until(lambda: polled.held == {"DraftdThermalHeavy"}, 30, "what is over asks for nothing")
            silenced = silence(manager, "DraftdThermalHeavy")
            until(lambda: polled.held == set(), 30, "who silences an alert wants nothing done about it")
            unsilence(manager, silenced)
            until(lambda: polled.held == {"DraftdThermalHeavy"}, 30, "and who unsilences it does")
        finally:
            assert polled.poller.close(10)
    assert set(polled.telemetry.polls) == {"ok"}


def test_default_alert_lease_outlasts_a_lost_repeat_notification() -> None:
    manager = yaml.safe_load((ROOT / "otel-collector" / "alertmanager.yaml").read_text())["route"]["routes"]
    provisioned = yaml.safe_load((ROOT / "dashboards" / "provisioning" / "alerting" / "draftd.yaml").read_text())
    repeats = [route["repeat_interval"] for route in (manager[0], provisioned["policies"][0]["routes"][0])]
    repeats.append(OUR_ROUTE["routes"][0]["repeat_interval"])
    assert repeats == ["10m"] * 3
    assert WebhookSettings().lease_seconds >= 2.5 * 600


@pytest.mark.parametrize("wrong", [False, True])
def test_documented_webhook_commands_test_both_token_and_signature(wrong: bool) -> None:
    for needed in ("curl", "openssl"):
        if shutil.which(needed) is None:
            missing(needed)
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/fallback.md").read_text(), re.DOTALL)
    (commands,) = [block for block in blocks if "openssl dgst" in block]
    with Webhook() as webhook:
        here = commands.replace(":50552/", f":{webhook.port}/").replace("curl ", "curl --noproxy '*' ")
        credentials = {"DRAFTD_WEBHOOK__TOKEN": TOKEN, "DRAFTD_WEBHOOK__SECRET": SECRET}
        if wrong:
            credentials = dict.fromkeys(credentials, "guess")
        ran = subprocess.run(["sh", "-euc", here], env=os.environ | credentials, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert webhook.controller.told == []
        assert heard(webhook) == ({"bad_token": 1, "bad_signature": 1} if wrong else {"no_level": 2})
    assert ran.stdout.count("no_level") == (0 if wrong else 4), ran.stdout
