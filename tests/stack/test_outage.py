"""The collector is killed under load and comes back: no request notices, what is missing can be read where one would
look, and what it had queued is not lost."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dashboards import external
from draftd.client.child import clean_environ
from draftd.client.client import DraftdClient
from draftd.core import ModePreference
from draftd.telemetry import attributes, catalog
from draftd.telemetry import catalog_sdk as sdk
from tests import forked_daemon, scripted_daemon
from tests.otlp import OtlpReceiver
from tests.stack.components import Collector, Prometheus, free_ports, prometheus
from tests.wait_until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

CLIENTS = 2
TOKENS = 12
MODES = (ModePreference.SPECULATIVE, ModePreference.AUTOREGRESSIVE)
_PAUSE_SECONDS = 0.2  # what is watched needs a part of the machine as well
AWAY_SECONDS = 2.5  # longer than an export may take: what it holds then is given up, and counted


@dataclass
class Load:
    """Clients that ask one thing after another. `answered`: request ids in order; `tokens`: what all were sent."""

    address: str
    answered: list[str] = field(default_factory=list)
    tokens: int = 0
    failures: list[BaseException] = field(default_factory=list)
    _enough: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._enough.set()
            for thread in threads:
                thread.join(60)

    def more(self, count: int) -> None:
        """Waits until so many more requests were answered."""
        wanted = len(self.answered) + count
        until(lambda: len(self.answered) >= wanted or bool(self.failures), 60, f"{count} more answers")

    def _ask(self) -> None:
        try:
            with DraftdClient(self.address) as client:
                for number in itertools.count():
                    if self._enough.wait(_PAUSE_SECONDS):
                        return
                    mode = MODES[number % len(MODES)]
                    events = list(client.generate(f"def f{number}(", mode=mode, max_tokens=TOKENS, timeout=30))
                    assert events[-1].HasField("finished")
                    with self._lock:
                        self.answered.append(events[0].started.request_id)
                        self.tokens += sum(len(event.chunk.token_ids) for event in events)
        except BaseException as error:  # a test's thread: it is told of in the test's own
            self.failures.append(error)


WAITING = f'sum({external.QUEUE_SIZE.prometheus}{{exporter="otlp_grpc/tempo"}})'


def undelivered(metric: catalog.Metric) -> str:
    """What the daemon's SDK gave up: in its queue, or at its exporter."""
    return f'sum({metric.prometheus}{{error_type!=""}})'


def read(of: Prometheus, query: str) -> float:
    return of.number(query) or 0.0


def test_killed_collector_recovers_counters_and_its_queued_traces(tmp_path: Path) -> None:
    (away,) = free_ports(1)  # the store of traces is away as well, so that the collector has something to keep
    running = Collector(tmp_path, away)
    flags = str(tmp_path / "flags.json")
    environ = clean_environ(flags) | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": running.endpoint,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_SERVICE_INSTANCE_ID": "test",
    }
    running.start()
    try:
        with (
            prometheus(tmp_path, running.scrape, own=running.own) as found,
            forked_daemon.serving(scripted_daemon.main, flags, "step_seconds=0.005", environ=environ) as daemon,
        ):
            load = Load(daemon.address)
            with load.running():
                load.more(10)
                kept = list(load.answered)
                decided = f"sum({external.TRACES_DECIDED.prometheus})"
                until(lambda: read(found, decided) >= len(kept), 30, "their traces are in the queue on disk")
                until(lambda: read(found, WAITING) > 0, 30, "the queue is seen")

                running.kill()
                load.more(10)
                until(lambda: read(found, "sum(up)") == 0, 30, "Prometheus sees that nobody is there")
                time.sleep(AWAY_SECONDS)
                load.more(10)
                running.start()

                until(lambda: read(found, "sum(up)") == 2, 30, "Prometheus sees that it is back")
                until(lambda: read(found, undelivered(sdk.SPANS_EXPORTED)) > 0, 60, "the SDK tells what it gave up")
                after = len(load.answered)
                load.more(10)
            assert load.failures == []

            # Counters catch up by themselves, whoever missed the middle.
            output = f'sum({catalog.TOKENS.prometheus}{{gen_ai_token_type="output"}})'
            until(lambda: read(found, output) == load.tokens, 30, "all tokens are counted")
            assert read(found, f"sum({catalog.REQUESTS.prometheus})") == len(load.answered)

            # The gap, and what fell into it.
            for job in ("draftd", "otel-collector"):
                up = f'{external.UP.prometheus}{{job="{job}"}}'
                until(lambda up=up: found.number(f"{up} == 1") == 1, 30, f"{job} is up")  # type: ignore[misc]
                assert read(found, f"count_over_time(({up} == 0)[5m:500ms])") >= AWAY_SECONDS
            assert read(found, f"sum(resets({external.ACCEPTED[0].prometheus}[5m]))") >= 1, "the collector began anew"
            assert read(found, undelivered(sdk.DATA_POINTS_EXPORTED)) > 0
            lost = (sdk.SPANS_EXPORTED, sdk.SPANS_PROCESSED)
            given_up = sum(read(found, undelivered(metric)) for metric in lost)

            # What waited on disk when it was killed is there, with what came since; what is missing was given up.
            with OtlpReceiver() as store:
                store.kill()
                store.port = away
                store.start()
                expected = set(kept) | set(load.answered[after:])
                until(lambda: expected <= requests(store), 60, "they arrive")
                missing = set(load.answered) - requests(store)
                assert given_up >= len(missing)
                until(lambda: found.number(WAITING) == 0, 30, "nothing waits in the collector")
    finally:
        running.stop()


def requests(store: OtlpReceiver) -> set[str]:
    """Ids of the requests whose spans it has."""
    name = attributes.RESPONSE_ID.name
    return {str(span.attributes[name]) for span in store.spans() if name in span.attributes}
