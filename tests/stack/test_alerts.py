"""A draft that gets worse, on the real daemon, collector, Prometheus and Alertmanager, with shortened windows."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dashboards.evidence import ACCEPTANCE_BASELINE
from dashboards.rules_prometheus import prometheus_rules
from dashboards.settings import Alerting
from draftd.telemetry import catalog
from tests.composed import composed
from tests.otlp import OtlpReceiver
from tests.stack.components import Prometheus, collector, prometheus
from tests.stack.degrading import DAEMON, Degrading, degrading
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GOOD, BAD = 0.8, 0.15
FEW = Alerting(window_seconds=4, min_requests=4, min_drafts=60)  # what a busy machine comes to in four seconds
ALERTS = ("DraftdAcceptanceBelowFloor", "DraftdAcceptanceDrift")
_PATIENCE = 60.0  # for what takes ten seconds where nothing else runs


def all_told(of: Degrading, status: str) -> bool:
    return all(status in of.webhook.statuses(name) for name in ALERTS)


def went_through(of: Degrading, *states: str) -> bool:
    return all(of.states(name)[-len(states) :] == list(states) for name in ALERTS)


def test_a_worse_draft_is_pending_then_fires_reaches_alertmanager_and_resolves_when_it_is_good_again(
    tmp_path: Path,
) -> None:
    with degrading(tmp_path, FEW, acceptance=GOOD) as running:
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


def missed(of: Prometheus) -> dict[str, str]:
    """The hosts that DraftdAbsent is about, and its state."""
    alerts = [alert for alert in of.alerts() if alert["labels"]["alertname"] == "DraftdAbsent"]
    return {alert["labels"].get("host_name", ""): alert["state"] for alert in alerts}


def test_a_host_whose_daemon_is_gone_is_missed_though_the_collector_still_offers_its_last_values(
    tmp_path: Path,
) -> None:
    rules, accepted = tmp_path / "draftd.rules.yaml", tmp_path / "acceptance"
    rules.write_text(prometheus_rules(FEW))
    accepted.write_text("1.0")
    host = socket.gethostname()
    with (
        OtlpReceiver() as store,
        collector(tmp_path, store.port, share_percent=0.0) as running,
        prometheus(tmp_path, running.scrape, rules=[rules]) as found,
    ):
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": running.endpoint,
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "ACCEPTANCE": str(accepted),
        }
        until(lambda: missed(found) == {"": "firing"}, _PATIENCE, "none was ever heard")
        with composed(DAEMON, tmp_path, environ):
            until(lambda: missed(found) == {}, _PATIENCE, "it is heard")
        until(lambda: missed(found) == {host: "firing"}, _PATIENCE, "it is missed")
        assert found.query(catalog.QUEUE_CAPACITY.prometheus), "its last values are there all the same"
        with composed(DAEMON, tmp_path, environ):  # under another instance id
            until(lambda: missed(found) == {}, _PATIENCE, "its host is heard again")
