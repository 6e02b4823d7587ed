"""`make stack`: runs the daemon, a collector, Prometheus and Alertmanager in the foreground without containers, in one
log.

Whatever ends it ends all parts, and a part that ends by itself ends the others. The collector starts first and stops
last, so that none of the daemon's telemetry is lost.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import secrets
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from draftd.errors import ConfigError
from draftd.settings import Settings, load_settings
from scripts.foreground import ROOT, Part, Stop, in_foreground, output_of, run_parts, say

_QUERY = urllib.parse.urlencode(
    {"g0.expr": "rate(draftd_spec_decode_accepted_tokens_total[1m])", "g0.range_input": "5m", "g0.tab": "0"}
)
# The paths of these pages depend on Prometheus's version and package.
PAGES = {
    "accepted tokens": [f"{page}?{_QUERY}" for page in ("classic/graph", "query", "graph")],
    "alerts": ["classic/alerts", "alerts"],
}
# Another receiver of the alerts, and the token they are sent with: the same variables as for Grafana.
WEBHOOK_URL, WEBHOOK_SECRET = "DRAFTD_WEBHOOK_URL", "DRAFTD_WEBHOOK_SECRET"
# The daemon's own settings.
WEBHOOK_TOKEN, WEBHOOK_PORT, POLL_URL = "DRAFTD_WEBHOOK__TOKEN", "DRAFTD_WEBHOOK__PORT", "DRAFTD_WEBHOOK__POLL_URL"
# The folder of the parts' data. Two stacks side by side need two folders, and different ports.
FOLDER = "STACK_FOLDER"


@dataclass(frozen=True)
class Listens:
    """An address at which a part listens: whose it is, the environment variable that changes it, and HOST:PORT."""

    what: str
    setting: str
    address: str

    @property
    def host_port(self) -> tuple[str, int]:
        """The address as (host, port). Raises SystemExit if it is not HOST:PORT."""
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise SystemExit(
                f"draftd: {self.setting}: {self.address!r} is not an address; allowed: HOST:PORT, port 1 to 65535"
            )
        return host.strip("[]"), int(port)

    @property
    def reached(self) -> str:
        """The address as HOST:PORT for programs on this machine, where 0.0.0.0 stands for 127.0.0.1."""
        host, port = self.host_port
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"[{here}]:{port}" if ":" in here else f"{here}:{port}"


_SELF_PORT = "OTELCOL_SELF_PORT"  # a port: its host is always 127.0.0.1
_DEFAULTS = (
    Listens("the collector's OTLP over gRPC", "OTELCOL_GRPC", "127.0.0.1:4317"),
    Listens("the collector's OTLP over HTTP", "OTELCOL_HTTP", "127.0.0.1:4318"),
    Listens("the collector's health", "OTELCOL_HEALTH", "127.0.0.1:13133"),
    Listens("the collector's metrics of draftd", "OTELCOL_PROMETHEUS", "127.0.0.1:9464"),
    Listens("the collector's own metrics", _SELF_PORT, "127.0.0.1:8888"),
    Listens("Prometheus", "PROMETHEUS_ADDRESS", "127.0.0.1:9090"),
    Listens("Alertmanager", "ALERTMANAGER_ADDRESS", "127.0.0.1:9093"),
)


def addresses(environ: Mapping[str, str]) -> dict[str, Listens]:
    """Returns the pipeline's addresses by the environment variable that sets each; the daemon's are its own settings.
    Raises SystemExit for a malformed one."""
    found = {}
    for one in _DEFAULTS:
        said = environ.get(one.setting) or one.address
        address = f"127.0.0.1:{said}" if one.setting == _SELF_PORT and ":" not in said else said
        found[one.setting] = Listens(one.what, one.setting, address)
        _ = found[one.setting].host_port
    return found


def daemon_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Loads the daemon's settings, as far as they say where it listens. Raises SystemExit if they are invalid."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--config", type=Path, default=environ.get("DRAFTD_CONFIG"))
    parser.add_argument("--set", action="append", default=[])
    for name in ("--host", "--port", "--http-port"):
        parser.add_argument(name)
    given, _ = parser.parse_known_args(arguments)
    said = {"server.host": given.host, "server.port": given.port, "server.http_port": given.http_port}
    said |= {name: value for name, _, value in (one.partition("=") for one in given.set)}
    try:
        file = None if given.config is None else Path(given.config)
        return load_settings(file, said, environ)
    except ConfigError as error:
        raise SystemExit(f"draftd: {error}") from None


def check_ports(pipeline: Mapping[str, Listens], settings: Settings) -> None:
    """Raises SystemExit if ports are taken. Its message names each port, and the setting that changes it."""
    server, webhook = settings.server, settings.webhook
    wanted = [(one.what, one.setting, *one.host_port) for one in pipeline.values()]
    wanted.append(("draftd over gRPC", "--port or DRAFTD_SERVER__PORT", server.host, server.port))
    if server.http_port is not None and server.http is not None:  # where it is unset, gRPC is served without it
        wanted.append(("draftd over HTTP", "--http-port or DRAFTD_SERVER__HTTP_PORT", server.host, server.http))
    wanted.append(("draftd's webhook", WEBHOOK_PORT, webhook.host, webhook.port))
    lines = []
    with ExitStack() as held:  # keeps the ports open, so that two parts with the same port are noticed
        for what, setting, host, port in wanted:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                if port:
                    held.enter_context(socket.create_server((host, port), family=family))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    lines.append(
                        f"draftd: port {port} of {host} is in use, but {what} needs it; set another with {setting}"
                    )
    if lines:
        raise SystemExit("\n".join(lines))


def answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=1):
        return True
    return False


def first_page(links: Sequence[str]) -> str | None:
    """Returns the first link that answers with a web page, or None."""
    for link in links:
        with suppress(OSError), urllib.request.urlopen(link, timeout=5) as answer:
            if answer.headers.get_content_type() == "text/html" and b"<script" in answer.read():
                return link
    return None


@dataclass(frozen=True)
class Webhook:
    """The URL to which Alertmanager sends alerts, and the token with which it authenticates to the daemon."""

    url: str
    token: str = field(repr=False)


def webhook(environ: Mapping[str, str], settings: Settings | None = None) -> Webhook:
    """Returns the daemon's own webhook with a new token, or the one that `environ` sets. Raises SystemExit if it is
    incomplete."""
    url, secret = environ.get(WEBHOOK_URL), environ.get(WEBHOOK_SECRET)
    if url and not secret:
        raise SystemExit(f"draftd: {WEBHOOK_URL} also needs {WEBHOOK_SECRET}, which authenticates the sender")
    own = (settings or daemon_settings([], environ)).webhook
    if not url and not own.port:
        raise SystemExit(f"draftd: {WEBHOOK_PORT}: got 0; allowed: a fixed port, because Alertmanager must know it")
    token = (own.token and own.token.get_secret_value().split()[0]) or secret or secrets.token_hex(32)
    return Webhook(url or f"http://127.0.0.1:{own.port}/v1/alerts", secret if url and secret else token)


def alertmanager_config(told: Webhook, folder: Path) -> Path:
    """Writes a copy of otel-collector/alertmanager.yaml to `folder` that sends alerts to the daemon. Returns its
    path."""
    base = ROOT / "otel-collector" / "alertmanager.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    token, copy = folder / "token", folder / "alertmanager.json"
    token.touch()
    token.chmod(0o600)  # before it has anything to read
    token.write_text(told.token)
    config = yaml.safe_load(base.read_text())
    (daemon,) = (receiver for receiver in config["receivers"] if receiver["name"] == "draftd-daemon")
    daemon["webhook_configs"] = [{"url": told.url, "http_config": {"authorization": {"credentials_file": str(token)}}}]
    copy.write_text(json.dumps(config))  # which is YAML as well
    return copy


def prometheus_config(pipeline: Mapping[str, Listens], folder: Path) -> Path:
    """Writes a copy of otel-collector/prometheus.yaml to `folder` with this stack's addresses. Returns its path."""
    base = ROOT / "otel-collector" / "prometheus.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    reached = {one.address: pipeline[one.setting].reached for one in _DEFAULTS}
    config = yaml.safe_load(base.read_text())
    groups: list[dict[str, Any]] = [*config["scrape_configs"], *config["alerting"]["alertmanagers"]]
    for static in (static for group in groups for static in group["static_configs"]):
        static["targets"] = [reached.get(target, target) for target in static["targets"]]
    config["rule_files"] = [str((base.parent / path).resolve()) for path in config["rule_files"]]
    copy = folder / "prometheus.json"
    copy.write_text(json.dumps(config))  # which is YAML as well
    return copy


def parts(arguments: list[str], environ: Mapping[str, str], stop: Stop, settings: Settings | None = None) -> list[Part]:
    """Returns the parts in the order in which they start, after writing their configuration. `arguments` and `settings`
    are the daemon's."""
    settings = settings or daemon_settings(arguments, environ)
    folder, pipeline = ROOT / environ.get(FOLDER, "build"), addresses(environ)
    told = webhook(environ, settings)
    config = alertmanager_config(told, folder / "alertmanager")
    alertmanager = [
        output_of(["sh", "scripts/alertmanager.sh"], stop),
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={pipeline['ALERTMANAGER_ADDRESS'].address}",
        "--cluster.listen-address=",  # a single instance: it neither looks for peers nor listens for them
        "--log.level=warn",
    ]
    server = output_of(["sh", "scripts/unpacked.sh", "--pages", "prometheus", "prometheus"], stop)
    unpacked = (
        Path(server).parents[1] / "share" / "prometheus" / "web"
    )  # Debian's build looks for its web pages in the folder of an installation
    prometheus = [
        server,
        *([f"--web.local-assets={unpacked}"] if unpacked.is_relative_to(ROOT) else []),
        f"--config.file={prometheus_config(pipeline, folder / 'prometheus')}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={pipeline['PROMETHEUS_ADDRESS'].address}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    collector = [output_of(["sh", "scripts/collector.sh"], stop), "--config", "otel-collector/config.yaml"]
    if not {"TEMPO_ENDPOINT", "LOKI_ENDPOINT"} & set(environ):
        collector += ["--config", "otel-collector/without-stores.yaml"]
    places = {name: one.address for name, one in pipeline.items() if name.startswith("OTELCOL_")}
    places[_SELF_PORT] = str(pipeline[_SELF_PORT].host_port[1])
    places["OTELCOL_STORAGE"] = environ.get("OTELCOL_STORAGE") or str(folder / "otelcol" / "storage")
    telemetry = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{pipeline['OTELCOL_GRPC'].reached}",
        "OTEL_METRIC_EXPORT_INTERVAL": "5000",
    }
    manager, store = (f"http://{pipeline[name].reached}" for name in ("ALERTMANAGER_ADDRESS", "PROMETHEUS_ADDRESS"))
    # With these the daemon polls for the alerts that it missed while one of them was down.
    alerts = {WEBHOOK_TOKEN: environ.get(WEBHOOK_TOKEN) or told.token, POLL_URL: environ.get(POLL_URL) or manager}
    daemon = [sys.executable, "-m", "draftd", "serve", *arguments]
    health = f"http://{pipeline['OTELCOL_HEALTH'].reached}"
    return [
        Part("collector", collector, {"OTELCOL_LOG_LEVEL": "error", **environ, **places}, partial(answers, health)),
        Part("alertmanager", alertmanager, environ, partial(answers, f"{manager}/-/ready")),
        Part("prometheus", prometheus, environ, partial(answers, f"{store}/-/ready")),
        Part("draftd", daemon, {**environ, **telemetry, **alerts}, says=": serving "),
    ]


def main(stop: Stop) -> int:
    arguments, environ = sys.argv[1:], os.environ
    pipeline, settings = addresses(environ), daemon_settings(arguments, environ)
    check_ports(pipeline, settings)

    def ready() -> None:
        say("ready; Ctrl-C stops all")
        for what, pages in PAGES.items():
            links = [f"http://{pipeline['PROMETHEUS_ADDRESS'].reached}/{page}" for page in pages]
            if (link := first_page(links)) is not None:
                say(f"{what}: {link}")

    return run_parts(parts(arguments, environ, stop, settings), stop, ready)


if __name__ == "__main__":
    sys.exit(in_foreground(main))
