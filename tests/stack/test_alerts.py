"""A draft that gets worse, on the real daemon, collector, Prometheus and Alertmanager, with shortened windows."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dashboards.evidence import ACCEPTANCE_BASELINE
from dashboards.settings import Alerting
from draftd.telemetry import catalog
from tests.stack.components import Prometheus
from tests.stack.degrading import Degrading, degrading
from tests.wait_until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GOOD, BAD = 0.8, 0.15
FEW = Alerting(window_seconds=3, min_requests=3, min_drafts=40)  # what a busy machine comes to in three seconds
ALERTS = ("DraftdAcceptanceBelowFloor", "DraftdAcceptanceDrift")
_PATIENCE = 60.0  # for what takes ten seconds where nothing else runs


def all_told(of: Degrading, status: str) -> bool:
    return all(status in of.webhook.statuses(name) for name in ALERTS)


def went_through(of: Degrading, *states: str) -> bool:
    return all(of.states(name)[-len(states) :] == list(states) for name in ALERTS)


def hosts(of: Prometheus, name: str) -> dict[str, str]:
    """The hosts that an alert is about, and its state."""
    alerts = [alert for alert in of.alerts() if alert["labels"]["alertname"] == name]
    return {alert["labels"].get("host_name", ""): alert["state"] for alert in alerts}


def missed(of: Prometheus) -> dict[str, str]:
    return hosts(of, "DraftdAbsent")


def a_worse_draft_is_pending_fires_and_resolves(running: Degrading) -> None:
    found = running.prometheus
    until(lambda: found.number(ACCEPTANCE_BASELINE) is not None, _PATIENCE, "a baseline of the good draft")
    assert found.number(ACCEPTANCE_BASELINE) == pytest.approx(GOOD, abs=0.08)
    assert [running.states(name) for name in ALERTS] == [[], []], "no alert while the draft is good"

    running.accept(BAD)
    until(lambda: all_told(running, "firing"), _PATIENCE, "Alertmanager tells of both")
    until(lambda: went_through(running, "pending", "firing"), _PATIENCE, "Prometheus has them as firing")
    for name in ALERTS:
        labels = running.webhook.labels(name)
        assert labels["instance"] == "test"
        assert labels["draftd_workload"] == "code"
        assert labels["draftd_draft_model"] == "scripted-draft"
        assert labels["fallback_level"] == "short_block"
    assert set(ALERTS) <= running.held()

    running.accept(GOOD)
    until(lambda: all_told(running, "resolved"), _PATIENCE, "Alertmanager tells that both are resolved")
    until(lambda: went_through(running, "firing", "inactive"), _PATIENCE, "nor has Prometheus them")
    assert all(running.webhook.statuses(name)[-1] == "resolved" for name in ALERTS)
    assert not set(ALERTS) & running.held()


def test_alerts_for_a_missing_daemon_and_a_worse_draft_fire_and_resolve(tmp_path: Path) -> None:
    """One test, because the pipeline takes long to start. The collector goes on offering the values of what is gone."""
    with degrading(tmp_path, FEW, acceptance=GOOD) as running:
        found = running.prometheus
        until(lambda: missed(found) == {"": "firing"}, _PATIENCE, "none was ever heard")
        with running.served("test"):
            until(lambda: missed(found) == {}, _PATIENCE, "it is heard")
            a_worse_draft_is_pending_fires_and_resolves(running)
        until(lambda: socket.gethostname() in hosts(found, "DraftdStopped"), _PATIENCE, "it was told to stop")
        assert found.query(catalog.QUEUE_CAPACITY.prometheus), "its last values are there all the same"
        assert missed(found) == {}
        with running.served("another"):
            until(lambda: hosts(found, "DraftdStopped") == {}, _PATIENCE, "its host is heard again")
