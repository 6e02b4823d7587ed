"""Runs the real servers of the pipeline, each in a process of its own on free loopback ports, and stops them for
certain."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.stack import Webhook, alertmanager_config
from tests.conftest import missing
from tests.wait_until import until

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "otel-collector" / "config.yaml"
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0


def collector_binary() -> str:
    """Returns the path of the installed otelcol-contrib, or of the one that `make collector` built."""
    return _found("an OpenTelemetry Collector: make collector", "collector.sh", "--find")


def prometheus_binary() -> str:
    """Returns the path of Prometheus, installed or unpacked."""
    wanted = "Prometheus: apt-get install prometheus (macOS: brew install prometheus)"
    return _found(wanted, "unpacked.sh", "--find", "prometheus", "prometheus")


def promtool_binary() -> str:
    """Returns the path of promtool, which checks Prometheus's configuration and tests its rules, and comes with
    Prometheus."""
    wanted = "promtool: apt-get install prometheus (macOS: brew install prometheus)"
    return _found(wanted, "unpacked.sh", "--find", "promtool", "prometheus")


def alertmanager_binary() -> str:
    """Returns the path of Alertmanager, installed or unpacked."""
    wanted = "Alertmanager: apt-get install prometheus-alertmanager (elsewhere: `alertmanager` on the PATH)"
    return _found(wanted, "alertmanager.sh", "--find")


def browser_binary() -> str:
    """Returns the path of a Chromium, for web pages."""
    wanted = "a browser: apt-get install chromium fonts-dejavu-core (macOS: brew install --cask chromium)"
    return _found(wanted, "browser.sh", "--find")


def _found(what: str, script: str, *arguments: str) -> str:
    said = subprocess.run(["sh", str(ROOT / "scripts" / script), *arguments], capture_output=True, text=True)
    if said.returncode:
        missing(what)
    return said.stdout.strip()


def free_ports(count: int) -> list[int]:
    """Returns ports that are free now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def answer(url: str) -> str | None:
    """Returns the body of a page, or None without an answer or without success."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(response.read().decode())
    except (urllib.error.URLError, OSError):
        return None


@dataclass
class Process:
    """A server in a process of its own, whose output goes to a file."""

    command: list[str]
    environ: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, ready: Callable[[], bool]) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command, env=self.environ, stdout=out, stderr=out, cwd=self.log.parent)
        process = self.process

        def listening() -> bool:
            assert process.poll() is None, self.log.read_text()[-4000:]
            return ready()

        until(listening, _START_SECONDS, f"{self.command[0]} is ready\n{self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """Kills it, as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stops it as a person would. Returns its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        return int(self.process.returncode)


@dataclass
class Collector:
    """The collector with the project's base configuration, and the test's own stores."""

    folder: Path
    traces_port: int
    share_percent: float = 100.0
    logs_port: int = 9  # nobody is there: what is not tested waits in its queue
    decision_wait: str = "300ms"
    memory_mib: int = 512
    ports: list[int] = field(default_factory=lambda: free_ports(5))
    _process: Process | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def scrape(self) -> str:
        """Returns host:port of its Prometheus exporter."""
        return f"127.0.0.1:{self.ports[3]}"

    @property
    def own(self) -> str:
        """Returns host:port of its own metrics."""
        return f"127.0.0.1:{self.ports[4]}"

    def start(self) -> None:
        grpc, http, health, prometheus, own = self.ports
        where = {
            "OTELCOL_GRPC": f"127.0.0.1:{grpc}",
            "OTELCOL_HTTP": f"127.0.0.1:{http}",
            "OTELCOL_HEALTH": f"127.0.0.1:{health}",
            "OTELCOL_PROMETHEUS": f"127.0.0.1:{prometheus}",
            "OTELCOL_SELF_PORT": str(own),
            "OTELCOL_STORAGE": str(self.folder / "storage"),
            "OTELCOL_DECISION_WAIT": self.decision_wait,
            "OTELCOL_SPAN_METRICS_INTERVAL": "500ms",
            "TEMPO_ENDPOINT": f"127.0.0.1:{self.traces_port}",
            "LOKI_ENDPOINT": f"http://127.0.0.1:{self.logs_port}",
            "DRAFTD_TRACE_SHARE_PERCENT": str(self.share_percent),
            "OTELCOL_MEMORY_MIB": str(self.memory_mib),
            "OTELCOL_MEMORY_SPIKE_MIB": str(self.memory_mib // 4),
        }
        self._process = Process(
            [collector_binary(), "--config", str(CONFIG)], {**os.environ, **where}, self.folder / "collector.log"
        )
        self._process.start(lambda: answer(f"http://127.0.0.1:{health}") is not None)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    def stop(self) -> int:
        assert self._process is not None
        return self._process.stop()

    @property
    def log(self) -> str:
        return (self.folder / "collector.log").read_text()


@contextlib.contextmanager
def collector(folder: Path, traces_port: int, **more: Any) -> Iterator[Collector]:
    running = Collector(folder, traces_port, **more)
    running.start()
    try:
        yield running
    finally:
        running.stop()


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus that scrapes every half second."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Runs an instant query. Returns each series' labels and value. Fails if the expression does not parse."""
        found = self._ask("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def number(self, expression: str) -> float | None:
        """Returns the value of an expression with one series, or None without one."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def alerts(self) -> list[dict[str, Any]]:
        """Returns the alerts that are pending or firing, each with `labels`, `annotations`, `state`."""
        return list(self._ask("alerts")["alerts"])

    def _ask(self, what: str, **asked: str) -> Any:
        said = _json(f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(asked)}")
        assert said["status"] == "success", said
        return said["data"]


@contextlib.contextmanager
def prometheus(
    folder: Path,
    *targets: str,
    own: str | None = None,
    rules: Sequence[Path] = (),
    alertmanager: str | None = None,
    evaluation: str = "500ms",
) -> Iterator[Prometheus]:
    """Runs a Prometheus that scrapes `targets`, host:port, as otel-collector/prometheus.yaml does: their job and
    instance are kept. `own` is the address of the collector's own metrics, `alertmanager` that to which alerts go
    (host:port). `rules` are files, evaluated every `evaluation` unless they say otherwise."""
    (port,) = free_ports(1)
    scrapes = [{"job_name": "draftd", "honor_labels": True, "static_configs": [{"targets": list(targets)}]}]
    if own is not None:
        scrapes.append({"job_name": "otel-collector", "static_configs": [{"targets": [own]}]})
    managers = [] if alertmanager is None else [{"static_configs": [{"targets": [alertmanager]}]}]
    config = folder / "prometheus.yml"
    config.write_text(
        json.dumps(  # which is YAML as well
            {
                "global": {
                    "scrape_interval": "500ms",
                    "scrape_timeout": "500ms",
                    "evaluation_interval": evaluation,
                },
                "rule_files": [str(rule) for rule in rules],
                "alerting": {"alertmanagers": managers},
                "scrape_configs": scrapes,
            }
        )
    )
    process = Process(
        [
            prometheus_binary(),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--enable-feature=exemplar-storage",
        ],
        dict(os.environ),
        folder / "prometheus.log",
    )
    running = Prometheus(port)
    process.start(lambda: answer(f"{running.url}/-/ready") is not None)
    try:
        yield running
    finally:
        process.stop()


@dataclass(frozen=True)
class Alertmanager:
    """An Alertmanager that notifies without waiting."""

    port: int

    @property
    def address(self) -> str:
        """Returns host:port, for Prometheus."""
        return f"127.0.0.1:{self.port}"

    def alerts(self) -> list[dict[str, Any]]:
        """Returns the alerts that it holds as firing, each with `labels`, `annotations`, `status`, `receivers`."""
        return list(_json(f"http://{self.address}/api/v2/alerts"))

    def post(self, alerts: list[dict[str, Any]]) -> None:
        """Sends alerts as Prometheus would."""
        url, kind = f"http://{self.address}/api/v2/alerts", {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(alerts).encode(), kind), timeout=10):
            pass


def quick(told: Webhook, folder: Path, interval: str = "500ms") -> Path:
    """Writes Alertmanager's configuration of `make stack` without its waits: a copy of the project's own file in
    `folder`."""
    config = alertmanager_config(told, folder)
    made = json.loads(config.read_text())
    made["route"] |= {"group_wait": "0s", "group_interval": interval}
    config.write_text(json.dumps(made))
    return config


@contextlib.contextmanager
def alertmanager(
    folder: Path, *, config: Path | None = None, webhook: str | None = None, arguments: Sequence[str] = ()
) -> Iterator[Alertmanager]:
    """Runs an Alertmanager with `config`. Without one, each alert is a group of its own, and `webhook`, a URL, is
    notified at once."""
    (port,) = free_ports(1)
    if config is None:
        told = {"name": "test"} | ({} if webhook is None else {"webhook_configs": [{"url": webhook}]})
        route = {"receiver": "test", "group_by": ["..."], "group_wait": "0s", "group_interval": "500ms"}
        config = folder / "alertmanager.yml"
        config.write_text(json.dumps({"route": route, "receivers": [told]}))
    process = Process(
        [
            alertmanager_binary(),
            f"--config.file={config}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",  # one of a kind: it looks for no peers
            *arguments,
        ],
        dict(os.environ),
        folder / "alertmanager.log",
    )
    process.start(lambda: answer(f"http://127.0.0.1:{port}/-/ready") is not None)
    try:
        yield Alertmanager(port)
    finally:
        process.stop()


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)
