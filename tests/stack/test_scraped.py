"""Daemons whose /metrics Prometheus reads itself: it shows what the collector shows, and a dead one is missed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dashboards.queries.serving import SERVING
from dashboards.rules_prometheus import prometheus_rules
from dashboards.series import UPTIME
from dashboards.settings import Alerting
from draftd.client.child import clean_environ
from tests import scripted_daemon
from tests.forked_daemon import Daemon, daemon
from tests.otlp import OtlpReceiver
from tests.stack.components import Prometheus, answer, collector, free_ports, prometheus
from tests.unit.telemetry.scene import Scene, across, telemetry
from tests.unit.telemetry.test_metrics import fall_back
from tests.wait_until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

_PATIENCE = 60.0  # for what takes five seconds where nothing else runs


def shown(text: str) -> Mapping[tuple[str, str], set[frozenset[tuple[str, str]]]]:
    """Name and kind of each metric, and the labels of its series; empty ones left out, which Prometheus does too."""
    found: dict[tuple[str, str], set[frozenset[tuple[str, str]]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if value}
            if "le" in labels:
                labels["le"] = f"{float(labels['le']):g}"
            found.setdefault((sample.name, family.type), set()).add(frozenset(labels.items()))
    return found


def test_scraped_daemon_metrics_equal_the_metrics_of_the_collector(tmp_path: Path) -> None:
    with OtlpReceiver() as store, collector(tmp_path, store.port) as running:
        scene = Scene(telemetry({"OTEL_EXPORTER_OTLP_ENDPOINT": running.endpoint}, scraped=True, port=50551))
        scene.serve()
        across(scene)
        fall_back(scene)
        scene.telemetry.http.begin("POST", "/v1/chat/completions", {}, "http").end(200)
        mine = shown(scene.telemetry.http.exposition().decode())
        assert scene.telemetry.shutdown(30.0)
        until(lambda: UPTIME in (answer(f"http://{running.scrape}/metrics") or ""), 20, "the collector offers it")
        collected = shown(answer(f"http://{running.scrape}/metrics") or "")
    added = ("otel_scope_", "os_type")  # by the collector
    theirs = {
        key: {frozenset(pair for pair in labels if not pair[0].startswith(added)) for labels in series}
        for key, series in collected.items()
        if not key[0].startswith(("otel_sdk_", "draftd_traces_"))
    }
    assert {key: series for key, series in mine.items() if not key[0].startswith("otel_sdk_")} == theirs


@contextlib.contextmanager
def served(folder: Path, name: str, port: int, http_port: int) -> Iterator[Daemon]:
    """A daemon that nothing is exported from."""
    environ = clean_environ(str(folder / "flags.json")) | {
        "XDG_STATE_HOME": str(folder),
        "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={name}",
    }
    arguments = (str(folder / "flags.json"), f"port={port}", f"http_port={http_port}")
    with daemon(scripted_daemon.main, *arguments, environ=environ) as running:
        yield running


def missed(of: Prometheus) -> set[str]:
    """The ports of the daemons that DraftdAbsent fires for."""
    firing = [one["labels"] for one in of.alerts() if one["state"] == "firing"]
    return {labels.get("server_port", "any") for labels in firing if labels["alertname"] == "DraftdAbsent"}


def test_scraped_daemons_count_as_serving_and_a_dead_daemon_as_missing(tmp_path: Path) -> None:
    rules = tmp_path / "draftd.rules.yaml"
    rules.write_text(prometheus_rules(Alerting(window_seconds=3)))
    one, other, *ports = free_ports(4)
    serving = SERVING.expression.replace("$model", ".*").replace("$instance", ".*")
    with prometheus(tmp_path, *(f"127.0.0.1:{port}" for port in ports), rules=[rules]) as found:
        until(lambda: missed(found) == {"any"}, _PATIENCE, "none was ever heard")
        with served(tmp_path, "one", one, ports[0]), contextlib.ExitStack() as dies:
            dies.enter_context(served(tmp_path, "other", other, ports[1]))
            until(lambda: found.number(serving) == 2 and not missed(found), _PATIENCE, "both serve")
            # By this label alerts name them, to whose webhook another is refused.
            heard = {labels["instance"]: labels["job"] for labels, _ in found.query(UPTIME)}
            assert heard == {"one": "draftd", "other": "draftd"}
            dies.close()
            until(lambda: missed(found) == {str(other)}, _PATIENCE, "the dead one is missed, on the same host")
            assert found.number(serving) == 1
            with served(tmp_path, "again", other, ports[1]):
                until(lambda: found.number(serving) == 2 and not missed(found), _PATIENCE, "its successor is heard")
