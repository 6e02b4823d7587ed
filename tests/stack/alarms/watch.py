"""The pipeline that watches the daemons, and a row for each alert: its cause, whether it fired, its effect, its end."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dashboards.alerts import alert_rules
from dashboards.rules_prometheus import prometheus_rules
from dashboards.settings import Alerting
from draftd.client.client import DraftdClient
from draftd.core import FallbackLevel
from draftd.strategies import RemoteLevel
from scripts.stack import Webhook
from tests.otlp import OtlpReceiver
from tests.stack.components import Alertmanager, Collector, Prometheus, alertmanager, collector, prometheus, quick
from tests.wait_until import repeating, until
from tests.webhook import TOKEN

WINDOW_SECONDS = 4.0
#: A few requests in a few seconds are enough: the causes are great. The rest of the limits are those that are shipped,
#: but for what a busy machine may make of a good draft, and a rank's lag: what it takes to be 64 records behind is more
#: than two ranks on one machine can.
ALERTING = Alerting(
    window_seconds=WINDOW_SECONDS,
    min_requests=2,
    min_drafts=20,
    speedup_floor=0.7,
    rank_lag=2,
    stopped_windows=2,
    absent_memory_windows=30,
)
RULES = {rule.name: rule for rule in alert_rules(ALERTING)}
_PATIENCE = 60.0
_LOOK_SECONDS = 0.2


@dataclass
class Row:
    alert: str
    cause: str
    fired: float | None = None  # seconds after its cause
    effect: str = ""
    resolved: float | None = None  # seconds after its cause was over

    @property
    def complete(self) -> bool:
        return self.fired is not None and self.resolved is not None and not self.effect.startswith("NOT")


@dataclass
class Watch:
    """The running pipeline, and its observations: when each alert was first and last seen to fire (monotonic)."""

    prometheus: Prometheus
    alertmanager: Alertmanager
    collector: Collector
    traces: OtlpReceiver
    webhooks: dict[str, int]  # the port of each daemon's, by its instance
    rows: list[Row] = field(default_factory=list)
    firing: set[str] = field(default_factory=set)

    def look(self) -> None:
        self.firing = {one["labels"]["alertname"] for one in self.prometheus.alerts() if one["state"] == "firing"}

    def environ(self, instance: str) -> dict[str, str]:
        """Returns the environment of a daemon that exports here and receives its alerts."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.collector.endpoint,
            **{f"OTEL_{signal}_EXPORTER": "otlp" for signal in ("TRACES", "METRICS", "LOGS")},
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "OTEL_BSP_SCHEDULE_DELAY": "500",
            "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={instance}",
            "DRAFTD_WEBHOOK__PORT": str(self.webhooks[instance]),
            "DRAFTD_WEBHOOK__TOKEN": TOKEN,
            "DRAFTD_WEBHOOK__POLL_URL": f"http://{self.alertmanager.address}",
            "DRAFTD_WEBHOOK__POLL_SECONDS": "1",
            "DRAFTD_FALLBACK__GUARD": "false",  # the alerts alone act
            "DRAFTD_FALLBACK__COOLDOWN_SECONDS": "1",
            "DRAFTD_FALLBACK__CANARY_PERIOD_SECONDS": "0",
        }

    def take(
        self,
        cause: str,
        alerts: Sequence[str],
        act: Callable[[], object],
        undo: Callable[[], object],
        client: DraftdClient | None,
    ) -> None:
        """Brings about the cause, and waits for the alerts and their effect on the daemon of `client`. Ends the cause,
        and waits for the alerts' end. What does not happen is in the row."""
        rows = [Row(name, cause) for name in alerts]
        self.rows += rows
        began = time.monotonic()
        act()
        self._until(rows, lambda row: row.alert in self.firing, lambda row: _set(row, "fired", began))
        for row in rows:
            row.effect = self._effect(row.alert, client)
        ended = time.monotonic()
        undo()
        self._until(rows, lambda row: self._over(row.alert, client), lambda row: _set(row, "resolved", ended))
        for row in rows:
            print(line(row), flush=True)

    def _until(self, rows: Sequence[Row], there: Callable[[Row], bool], done: Callable[[Row], None]) -> None:
        waiting, deadline = list(rows), time.monotonic() + _PATIENCE
        while waiting and time.monotonic() < deadline:
            for row in [row for row in waiting if there(row)]:
                done(row)
                waiting.remove(row)
            time.sleep(_LOOK_SECONDS / 2)

    def _over(self, name: str, client: DraftdClient | None) -> bool:
        leases = () if client is None else client.level().leases
        return name not in self.firing and name not in {lease.alert for lease in leases}

    def _effect(self, name: str, client: DraftdClient | None) -> str:
        """Returns the daemon's reaction; for an alert to people, whom Alertmanager would notify."""
        asks, deadline = RULES[name].level, time.monotonic() + _PATIENCE / 2
        while time.monotonic() < deadline:
            if asks is None:
                told = [one["receivers"] for one in self.alertmanager.alerts() if one["labels"]["alertname"] == name]
                if told and all(to == [{"name": "nobody"}] for to in told):
                    return "for people"
            elif client is not None and (found := obeyed(client, name, asks)) is not None:
                return found
            time.sleep(_LOOK_SECONDS)
        return "NOT seen at the daemon"


def obeyed(client: DraftdClient, name: str, asks: FallbackLevel | RemoteLevel) -> str | None:
    """Returns the state of the ladder that the alert is about, or None while the alert is missing or not obeyed yet."""
    state = client.level()
    if name not in {lease.alert for lease in state.leases}:
        return None
    ladder = state.remote if isinstance(asks, RemoteLevel) else state
    stands = ladder.ladder[ladder.position].level
    kind = type(asks)[stands.upper()]
    if kind > asks:
        return None
    what = "remote" if isinstance(asks, RemoteLevel) else "level"
    return f"{what} {stands}" if kind == asks else f"{what} {stands} ({asks.label} asked)"


def _set(row: Row, name: str, since: float) -> None:
    setattr(row, name, time.monotonic() - since)


def line(row: Row) -> str:
    fired = "did not fire" if row.fired is None else f"{row.fired:.0f} s"
    ended = "no" if row.resolved is None else f"{row.resolved:.0f} s"
    return f"| {row.alert} | {row.cause} | {fired} | {row.effect} | {ended} |"


def back_to_the_top(client: DraftdClient) -> None:
    """Returns to the top level as an operator does, without the probes of a step up."""
    client.hold_level(FallbackLevel.FULL)
    until(lambda: client.level().position == 0, _PATIENCE, "the drafts are loaded")
    client.release_level()
    if client.level().HasField("remote"):
        client.hold_level(RemoteLevel.SPECULATIVE)
        client.release_level()


@contextlib.contextmanager
def watching(folder: Path, webhooks: dict[str, int]) -> Iterator[Watch]:
    """Runs the collector, Prometheus with the generated rules, and Alertmanager with the project's own routes."""
    rules = folder / "draftd.rules.yaml"
    rules.write_text(prometheus_rules(ALERTING))
    told = [Webhook(f"http://127.0.0.1:{port}/v1/alerts", TOKEN) for port in webhooks.values()]
    config = quick(told[0], folder / "told")
    made = json.loads(config.read_text())
    (daemon,) = (one for one in made["receivers"] if one["name"] == "draftd-daemon")
    (first,) = daemon["webhook_configs"]
    daemon["webhook_configs"] = [first | {"url": one.url} for one in told]  # each ignores what is another's
    config.write_text(json.dumps(made))
    with (
        OtlpReceiver() as traces,
        OtlpReceiver(protocol="http/protobuf") as logs,
        collector(folder, traces.port, logs_port=logs.port, share_percent=100.0) as running,
        alertmanager(folder, config=config) as manager,
        prometheus(folder, running.scrape, own=running.own, rules=[rules], alertmanager=manager.address) as found,
    ):
        watch = Watch(found, manager, running, traces, webhooks)
        with repeating(watch.look, _LOOK_SECONDS):
            yield watch
