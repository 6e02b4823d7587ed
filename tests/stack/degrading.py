"""A whole pipeline with a draft that a test makes worse and better again while it serves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dashboards.rules_prometheus import prometheus_rules
from dashboards.settings import Alerting
from draftd.client.client import DraftdClient
from draftd.core import ModePreference, WorkloadClass
from tests import http_server
from tests.custom_daemon import composed
from tests.otlp import OtlpReceiver
from tests.stack.components import Alertmanager, Prometheus, alertmanager, collector, prometheus
from tests.wait_until import repeating

_CLIENTS = 3
_PAUSE_SECONDS = 0.1  # of each client between two requests
_POLL_SECONDS = 0.2

# The scripted draft is wrong on a share of positions. The share follows the file that ACCEPTANCE names.
DAEMON = """
import os, pathlib, sys, threading, time
from draftd.models.blas import load_blas
load_blas()
from draftd.cli.serve import run_daemon
from tests.scripted import scripted_models
from draftd.settings import EngineSettings, FallbackSettings, ServerSettings, Settings

def follow(draft):
    while True:
        draft._wrong = round(1000 * (1 - float(pathlib.Path(os.environ["ACCEPTANCE"]).read_text())))
        time.sleep(0.1)

def load(progress):
    models = scripted_models(1.0, step_seconds=0.01)
    threading.Thread(target=follow, args=(models.draft,), daemon=True).start()
    return models

say = lambda line: print("draftd: " + line, file=sys.stderr, flush=True)
fallback = FallbackSettings(guard=False)  # it must not act: what is shown here is that the alerts fire
engine = EngineSettings(depth_mode="fixed")  # a draft that went bad goes on drafting
settings = Settings(server=ServerSettings(port=0), engine=engine, fallback=fallback)
sys.exit(run_daemon(settings, announce=say, load=load))
"""


@dataclass
class Webhook:
    """A receiver of Alertmanager's notifications. `told` has them in order: the alert's name, `firing` or `resolved`,
    and its labels."""

    told: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def __call__(self, request: http_server.Request) -> http_server.Answer:
        for alert in request.body["alerts"]:
            self.told.append((alert["labels"]["alertname"], alert["status"], alert["labels"]))
        return 200, None

    def statuses(self, name: str) -> list[str]:
        return [status for alert, status, _ in list(self.told) if alert == name]

    def labels(self, name: str) -> dict[str, str]:
        return next(labels for alert, _, labels in list(self.told) if alert == name)


@dataclass
class Degrading:
    """The running pipeline, and the states of each alert in Prometheus in the order in which they were first seen."""

    prometheus: Prometheus
    alertmanager: Alertmanager
    webhook: Webhook
    accepted: Path
    folder: Path
    endpoint: str
    _states: dict[str, list[str]] = field(default_factory=dict)

    def accept(self, share: float) -> None:
        """Sets the share of drafted tokens that are accepted from now on."""
        fresh = self.accepted.with_suffix(".new")
        fresh.write_text(str(share))
        fresh.replace(self.accepted)

    def states(self, name: str) -> list[str]:
        """Returns the alert's states, `pending`, `firing`, `inactive`, in order."""
        return list(self._states.get(name, []))

    def held(self) -> set[str]:
        """Returns the alerts that Alertmanager holds as firing."""
        return {alert["labels"]["alertname"] for alert in self.alertmanager.alerts()}

    def look(self) -> None:
        now = {alert["labels"]["alertname"]: alert["state"] for alert in self.prometheus.alerts()}
        for name in now.keys() | self._states.keys():
            seen, state = self._states.setdefault(name, []), now.get(name, "inactive")
            if not seen or seen[-1] != state:
                seen.append(state)

    @contextlib.contextmanager
    def served(self, instance: str) -> Iterator[None]:
        """Runs a daemon and its clients."""
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={instance}",
            "ACCEPTANCE": str(self.accepted),
        }
        with composed(DAEMON, self.folder, environ) as address, contextlib.ExitStack() as clients:
            for _ in range(_CLIENTS):
                clients.enter_context(repeating(_asking(address), _PAUSE_SECONDS))
            yield


@contextlib.contextmanager
def degrading(folder: Path, settings: Alerting, *, acceptance: float) -> Iterator[Degrading]:
    """Runs the collector, Prometheus with the generated rules, Alertmanager and a webhook, which watch a daemon."""
    rules, accepted = folder / "draftd.rules.yaml", folder / "acceptance"
    rules.write_text(prometheus_rules(settings))
    accepted.write_text(str(acceptance))
    webhook = Webhook()
    with (
        http_server.serving(webhook) as hook,
        OtlpReceiver() as store,
        collector(folder, store.port, share_percent=0.0) as running,
        alertmanager(folder, webhook=hook) as manager,
        prometheus(folder, running.scrape, own=running.own, rules=[rules], alertmanager=manager.address) as found,
    ):
        one = Degrading(found, manager, webhook, accepted, folder, running.endpoint)
        with repeating(one.look, _POLL_SECONDS):
            yield one


def _asking(address: str) -> Callable[[], None]:
    client = DraftdClient(address)

    def ask() -> None:
        for _ in client.generate(
            "def f(x):", max_tokens=24, mode=ModePreference.SPECULATIVE, workload=WorkloadClass.CODE, timeout=60
        ):
            pass

    return ask
