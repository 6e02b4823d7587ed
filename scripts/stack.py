"""`make stack`: the whole pipeline, natively and in the foreground, in one log. Ctrl-C stops all of it, in order.

The collector starts first and stops last, so that nothing the daemon says is lost. What ends by itself ends the rest.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from draftd.settings import WebhookSettings

ROOT = Path(__file__).parents[1]
_READY_SECONDS = 120.0  # the daemon may have a large model to load
_STOP_SECONDS = 45.0  # longer than the daemon takes to drain and to flush

ALERTMANAGER = "http://127.0.0.1:9093"
PROMETHEUS = "http://127.0.0.1:9090"
_QUERY = urllib.parse.urlencode(
    {"g0.expr": "rate(draftd_spec_decode_accepted_tokens_total[1m])", "g0.range_input": "5m", "g0.tab": "0"}
)
# Where each is depends on Prometheus's version and on whose package it is.
PAGES = {
    "accepted tokens": [f"{PROMETHEUS}/{page}?{_QUERY}" for page in ("classic/graph", "query", "graph")],
    "alerts": [f"{PROMETHEUS}/{page}" for page in ("classic/alerts", "alerts")],
}
# Where alerts go instead, and what they carry there: as for Grafana.
WEBHOOK_URL, WEBHOOK_SECRET = "DRAFTD_WEBHOOK_URL", "DRAFTD_WEBHOOK_SECRET"
# The daemon's own settings.
WEBHOOK_TOKEN, WEBHOOK_PORT, POLL_URL = "DRAFTD_WEBHOOK__TOKEN", "DRAFTD_WEBHOOK__PORT", "DRAFTD_WEBHOOK__POLL_URL"


@dataclass(frozen=True)
class Part:
    """One process. It is ready when `ready` answers, or when it says `says`."""

    name: str
    command: list[str]
    environ: Mapping[str, str]
    ready: str = ""
    says: str = ""


class Running:
    """A part that was started; its lines go to the log under its name."""

    def __init__(self, part: Part) -> None:
        self.part = part
        # A session of its own: Ctrl-C goes to this program, which stops its parts in order.
        self.process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            env=part.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._said = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def ready(self) -> bool:
        if self.part.says:
            return self._said.is_set()
        try:
            with urllib.request.urlopen(self.part.ready, timeout=1):
                return True
        except OSError:
            return False

    def stop(self) -> int:
        """Its exit code. Killed where it does not end in time."""
        if not self.ended():
            self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            say(f"{self.part.name} does not stop: killed")
            self.process.kill()
            self.process.wait()
        self._reader.join(5)
        return self.process.returncode

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(f"{self.part.name:<12} | {line.rstrip()}", flush=True)
            if self.part.says and self.part.says in line:
                self._said.set()


def first_page(links: Sequence[str]) -> str | None:
    """The first that answers with a page; None where none does."""
    for link in links:
        with suppress(OSError), urllib.request.urlopen(link, timeout=5) as answer:
            if answer.headers.get_content_type() == "text/html" and b"<script" in answer.read():
                return link
    return None


def say(line: str) -> None:
    print(f"{'stack':<12} | {line}", flush=True)


def program(*script: str) -> str:
    """Where a script of the project found or made a program. Where it did not it has said why, and this one ends."""
    found = subprocess.run(["sh", *script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if found.returncode:
        raise SystemExit(1)
    return found.stdout.strip()


@dataclass(frozen=True)
class Webhook:
    """Where Alertmanager tells of alerts, and the token by which the daemon knows it."""

    url: str
    token: str = field(repr=False)


def webhook(environ: Mapping[str, str]) -> Webhook:
    """The daemon's own, with a token made for this run, unless `environ` says otherwise."""
    url, secret = environ.get(WEBHOOK_URL), environ.get(WEBHOOK_SECRET)
    if url and not secret:
        raise SystemExit(f"draftd: {WEBHOOK_URL} needs {WEBHOOK_SECRET} beside it: what the daemon knows the sender by")
    port = environ.get(WEBHOOK_PORT) or WebhookSettings().port
    token = environ.get(WEBHOOK_TOKEN) or secret or secrets.token_hex(32)
    return Webhook(url or f"http://127.0.0.1:{port}/v1/alerts", secret if url and secret else token)


def alertmanager_config(told: Webhook, folder: Path) -> Path:
    """A copy of otel-collector/alertmanager.yaml in `folder`, that tells the daemon of alerts."""
    base = ROOT / "otel-collector" / "alertmanager.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    token, copy = folder / "token", folder / "alertmanager.json"
    token.touch()
    token.chmod(0o600)  # before there is anything in it to read
    token.write_text(told.token)
    config = yaml.safe_load(base.read_text())
    (daemon,) = (receiver for receiver in config["receivers"] if receiver["name"] == "draftd-daemon")
    daemon["webhook_configs"] = [{"url": told.url, "http_config": {"authorization": {"credentials_file": str(token)}}}]
    copy.write_text(json.dumps(config))  # which is YAML as well
    return copy


def parts(
    arguments: list[str], environ: Mapping[str, str], written: Path = ROOT / "build" / "alertmanager"
) -> list[Part]:
    """In the order in which they start; `arguments` are the daemon's, `written` is where what this run needs goes."""
    told = webhook(environ)
    config = alertmanager_config(told, written)
    alertmanager = [
        program("scripts/alertmanager.sh"),
        f"--config.file={config}",
        "--storage.path=build/alertmanager",
        "--web.listen-address=127.0.0.1:9093",
        "--cluster.listen-address=",  # one of a kind: it neither looks for peers nor listens for them
        "--log.level=warn",
    ]
    server = program("scripts/unpacked.sh", "--pages", "prometheus", "prometheus")
    unpacked = (
        Path(server).parents[1] / "share" / "prometheus" / "web"
    )  # Debian's looks for its pages where it is installed
    prometheus = [
        server,
        *([f"--web.local-assets={unpacked}"] if unpacked.is_relative_to(ROOT) else []),
        "--config.file=otel-collector/prometheus.yaml",
        "--storage.tsdb.path=build/prometheus",
        "--web.listen-address=127.0.0.1:9090",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    collector = [program("scripts/collector.sh"), "--config", "otel-collector/config.yaml"]
    if not {"TEMPO_ENDPOINT", "LOKI_ENDPOINT"} & set(environ):
        collector += ["--config", "otel-collector/without-stores.yaml"]
    telemetry = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_METRIC_EXPORT_INTERVAL": "5000"}
    # What was missed while one of them was away is asked for.
    alerts = {WEBHOOK_TOKEN: environ.get(WEBHOOK_TOKEN) or told.token, POLL_URL: environ.get(POLL_URL) or ALERTMANAGER}
    daemon = [sys.executable, "-m", "draftd", "serve", *arguments]
    return [
        Part("collector", collector, {**environ, "OTELCOL_LOG_LEVEL": "error"}, ready="http://127.0.0.1:13133"),
        Part("alertmanager", alertmanager, environ, ready=f"{ALERTMANAGER}/-/ready"),
        Part("prometheus", prometheus, environ, ready=f"{PROMETHEUS}/-/ready"),
        Part("draftd", daemon, {**environ, **telemetry, **alerts}, says=": serving "),
    ]


def main(arguments: list[str]) -> int:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    running: list[Running] = []
    try:
        for part in parts(arguments, os.environ):
            running.append(Running(part))
            if not _until_ready(running[-1], stop):
                break
        else:
            say("ready; Ctrl-C stops all")
            for what, links in PAGES.items():
                if (link := first_page(links)) is not None:
                    say(f"{what}: {link}")
        while not stop.is_set() and not any(one.ended() for one in running):
            stop.wait(0.2)
    finally:
        by_itself = [one.part.name for one in running if one.ended()]
        codes = [one.stop() for one in reversed(running)]
    for name in by_itself:
        say(f"{name} ended by itself")
    return 1 if by_itself or any(codes) else 0


def _until_ready(one: Running, stop: threading.Event) -> bool:
    deadline = time.monotonic() + _READY_SECONDS
    while not one.ready():
        if stop.wait(0.2) or one.ended():
            return False
        if time.monotonic() > deadline:
            say(f"{one.part.name} is not ready after {_READY_SECONDS:.0f} s")
            stop.set()
            return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
