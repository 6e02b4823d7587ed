"""`make stack`'s program, as a person runs it."""

from __future__ import annotations

import http.server
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from pathlib import Path
from typing import Any, ClassVar

import pytest

from draftd.client.client import DraftdClient
from scripts.foreground import Stop
from scripts.stack import (
    FOLDER,
    POLL_URL,
    WEBHOOK_PORT,
    WEBHOOK_SECRET,
    WEBHOOK_TOKEN,
    WEBHOOK_URL,
    Webhook,
    addresses,
    alertmanager_config,
    check_ports,
    daemon_settings,
    parts,
    webhook,
)
from tests.stack.components import (
    ROOT,
    Alertmanager,
    Prometheus,
    alertmanager,
    alertmanager_binary,
    answer,
    collector_binary,
    free_ports,
    prometheus_binary,
)
from tests.wait_until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

OWN = "a-token-that-a-person-has-set"
ADDRESSES = ("OTELCOL_GRPC", "OTELCOL_HTTP", "OTELCOL_HEALTH", "OTELCOL_PROMETHEUS", "ALERTMANAGER_ADDRESS")


def own_ports(folder: Path) -> tuple[dict[str, str], int, int]:
    """Settings of a stack beside any other, and the ports of its Prometheus and its Alertmanager."""
    own, webhook, prometheus, *rest = free_ports(3 + len(ADDRESSES))
    found = {name: f"127.0.0.1:{port}" for name, port in zip(ADDRESSES, rest, strict=True)}
    found |= {"OTELCOL_SELF_PORT": str(own), WEBHOOK_PORT: str(webhook), FOLDER: str(folder)}
    return found | {"PROMETHEUS_ADDRESS": f"127.0.0.1:{prometheus}"}, prometheus, rest[-1]


def loaded(port: int, what: str, key: str) -> Any:
    """What Prometheus says of its own set-up."""
    return json.loads(answer(f"http://127.0.0.1:{port}/api/v1/{what}") or "")["data"][key]


def standing(client: DraftdClient) -> str:
    found = client.level()
    return str(found.ladder[found.position].level)


def test_local_stack_runs_on_configured_ports_obeys_an_alert_and_stops_cleanly(tmp_path: Path) -> None:
    collector_binary(), prometheus_binary(), alertmanager_binary()
    ports, prometheus, alertmanager = own_ports(tmp_path)
    patient = ["--set", "telemetry.shutdown_seconds=30"]  # the machine may be busy: what counts is the order
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.stack", "--port", "0", *patient],
        cwd=ROOT,
        env=os.environ | ports,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)  # type: ignore[arg-type]
    reader.start()
    try:
        until(lambda: any(line.startswith("stack") and "ready" in line for line in lines), 90, "all is ready")
        address = next(found[1] for line in lines if (found := re.search(r"serving \S+ on (\S+:\d+)", line)))
        asks = {"alertname": "DraftdVerifierErrors", "fallback_level": "autoregressive", "severity": "critical"}
        Alertmanager(alertmanager).post([{"labels": asks | {"run": uuid.uuid4().hex}}])  # it remembers what it has told
        with DraftdClient(address) as client:
            events = list(client.generate("def add(a, b):", max_tokens=8, timeout=30))
        tokens = sum(len(event.chunk.token_ids) for event in events)
        counted = 'sum(draftd_tokens_total{gen_ai_token_type="output"})'
        until(lambda: (Prometheus(prometheus).number(counted) or 0) >= tokens, 40, "Prometheus has counted the tokens")
        assert loaded(prometheus, "rules", "groups"), "the alert rules"
        until(
            lambda: bool(loaded(prometheus, "alertmanagers", "activeAlertmanagers")),
            20,
            "Prometheus has found Alertmanager",
        )
        with DraftdClient(address) as client:
            until(lambda: standing(client) == "autoregressive", 40, "the alert is obeyed")
        told = 'sum(draftd_alert_notifications_total{draftd_result="accepted"})'
        until(lambda: (Prometheus(prometheus).number(told) or 0) >= 1, 40, "the webhook has heard of it")
        links = re.findall(r"^stack +\| [a-z ]+: (http\S+)$", "".join(lines), re.MULTILINE)
        assert len(links) == 2, "both pages were found, with a query and with the alerts"
        assert all(b"<script" in urllib.request.urlopen(link, timeout=10).read() for link in links)
        polled = 'sum(draftd_alert_polls_total{draftd_result="ok"})'
        assert Prometheus(prometheus).number(polled)
        up = 'sum by (job) (up{job=~"draftd|otel-collector"})'
        until(lambda: len(Prometheus(prometheus).query(up)) == 2, 20, "both jobs are scraped")
        assert all(value == 1 for _, value in Prometheus(prometheus).query(up))
        process.send_signal(signal.SIGINT)
        assert process.wait(150) == 0, "".join(lines)
    finally:
        process.kill()
        process.wait()
        reader.join(5)
    log = "".join(lines)
    assert "Traceback" not in log
    check_ports(addresses(os.environ | ports), daemon_settings(["--port", "0"], os.environ | ports))
    assert "warning: shutdown" not in log, log  # the collector was still there when the daemon flushed
    assert "Dropping data" not in log, log
    assert "level=error" not in log, log
    assert "\terror\t" not in log, log


class Told(http.server.BaseHTTPRequestHandler):
    """A webhook that keeps what it is told."""

    heard: ClassVar[queue.SimpleQueue[tuple[str | None, Any]]] = queue.SimpleQueue()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.heard.put((self.headers["authorization"], body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return None


def test_stack_alertmanager_sends_only_level_alerts_to_the_webhook(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Told) as webhook:
        threading.Thread(target=webhook.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{webhook.server_port}/v1/alerts"
        config = alertmanager_config(Webhook(url, "sesame"), tmp_path / "with")
        assert (tmp_path / "with" / "token").stat().st_mode & 0o077 == 0, "nobody else reads the secret"
        with alertmanager(tmp_path, config=config) as running:
            asks = {"labels": {"alertname": "Asks", "fallback_level": "short_block"}}
            informs = {"labels": {"alertname": "Informs", "severity": "info"}}
            running.post([asks, informs])
            authorization, told = Told.heard.get(timeout=60)
            assert authorization == "Bearer sesame"
            assert [alert["labels"]["alertname"] for alert in told["alerts"]] == ["Asks"]
            assert {alert["labels"]["alertname"]: alert["receivers"] for alert in running.alerts()} == {
                "Asks": [{"name": "draftd-daemon"}],
                "Informs": [{"name": "nobody"}],
            }
        webhook.shutdown()
        assert Told.heard.empty()


def test_stack_gives_daemon_and_alertmanager_a_fresh_shared_webhook_token(tmp_path: Path) -> None:
    first, second = webhook({}), webhook({})
    assert first.url == "http://127.0.0.1:50552/v1/alerts"
    assert len(first.token) == 64
    assert first.token != second.token
    assert first.token not in repr(first)
    said = {"PATH": os.environ["PATH"], FOLDER: str(tmp_path)}
    environ = {part.name: part.environ for part in parts([], said, Stop())}
    kept = (tmp_path / "alertmanager" / "token").read_text()
    assert environ["draftd"][WEBHOOK_TOKEN] == kept
    assert environ["draftd"][POLL_URL] == "http://127.0.0.1:9093"
    assert all(kept not in one.values() for name, one in environ.items() if name != "draftd")


def test_user_webhook_settings_override_the_stack_defaults() -> None:
    assert webhook({WEBHOOK_TOKEN: OWN, WEBHOOK_PORT: "50600"}) == Webhook("http://127.0.0.1:50600/v1/alerts", OWN)
    elsewhere = {WEBHOOK_URL: "http://mini.local/v1/alerts", WEBHOOK_SECRET: "sesame"}
    assert webhook(elsewhere) == Webhook("http://mini.local/v1/alerts", "sesame")
    assert webhook(elsewhere | {WEBHOOK_TOKEN: OWN}) == Webhook("http://mini.local/v1/alerts", "sesame")
    with pytest.raises(SystemExit, match=WEBHOOK_SECRET):
        webhook({WEBHOOK_URL: "http://127.0.0.1:50552/v1/alerts"})
