"""The real collector on the project's own configuration: what it keeps, what it counts, what survives its crash."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import StatusCode, Tracer, set_span_in_context

from draftd.client.client import DraftdClient
from tests.custom_daemon import composed
from tests.otlp import OtlpReceiver
from tests.stack.components import Collector, answer, collector, free_ports
from tests.wait_until import until

pytestmark = pytest.mark.timeout(180)

# The daemon as `draftd serve` composes it, on models that need no weights.
DAEMON = """
import sys
from draftd.models.blas import load_blas
load_blas()
from draftd.cli.serve import run_daemon
from tests.scripted import scripted_models
from draftd.settings import EngineSettings, ServerSettings, Settings
settings = Settings(server=ServerSettings(port=0), engine=EngineSettings(depth_mode="fixed"))
say = lambda line: print("draftd: " + line, file=sys.stderr, flush=True)
sys.exit(run_daemon(settings, announce=say, load=lambda _: scripted_models(0.7)))
"""


ORDINARY = {"draftd.outcome": "stop", "draftd.plan.level": "full", "draftd.mode": "speculative"}
KEPT: dict[str, dict[str, Any]] = {
    "failed": {"draftd.outcome": "error"},
    "refused": {"draftd.outcome": "refused"},
    "stepped down": {"draftd.plan.level": "short_block"},
    "degraded": {"draftd.degraded_reason": "the drafter failed"},
    "many tokens": {"gen_ai.usage.output_tokens": 1000},
    "slower than without a draft": {"draftd.spec_decode.speedup": 0.99},
}
LEFT: dict[str, dict[str, Any]] = {
    "ordinary": {},
    "not so many tokens": {"gen_ai.usage.output_tokens": 999},
    "faster with a draft": {"draftd.spec_decode.speedup": 1.0},
    "not drafted": {"draftd.spec_decode.accepted_tokens": 0},
}


@contextmanager
def tracing(collector: Collector, resource: dict[str, str] | None = None) -> Iterator[Tracer]:
    """Spans of a program that exports to the collector; all have been sent when the block is over."""
    provider = TracerProvider(resource=Resource(resource or {"service.name": "test"}))
    exporter = OTLPSpanExporter(endpoint=collector.endpoint, insecure=True)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=10_000, schedule_delay_millis=100))
    try:
        yield provider.get_tracer("test")
        assert provider.force_flush(20_000)
    finally:
        provider.shutdown()


def emit(tracer: Tracer, name: str, attributes: dict[str, Any]) -> None:
    """One trace: a request's span under that of its call."""
    with tracer.start_as_current_span(f"call {name}"), tracer.start_as_current_span(name) as span:
        span.set_attributes(ORDINARY | attributes)
        if attributes.get("draftd.outcome") == "error":
            span.set_status(StatusCode.ERROR)


@contextmanager
def caller(tracer: Tracer) -> Iterator[Context]:
    """The context of a span that does not end yet."""
    span = tracer.start_span("caller")
    yield set_span_in_context(span)
    span.end()


def failed(tracer: Tracer, name: str, context: Context) -> None:
    span = tracer.start_span(name, context=context)
    span.set_status(StatusCode.ERROR)
    span.end()


def summed(page: str, metric: str, having: str = "") -> float:
    """The sum of a metric's series on a page for Prometheus, of those whose labels have `having` in them."""
    body = answer(f"http://{page}/metrics") or ""
    lines = [line for line in body.splitlines() if re.match(rf"{metric}[{{ ]", line) and having in line]
    return sum(float(re.sub(r"\{.*\}", "", line).split()[1]) for line in lines)


def decided(collector: Collector, which: str = "") -> float:
    """Traces that the sampling has judged; `which`: of those, the ones with this label."""
    return summed(collector.own, "otelcol_processor_tail_sampling_global_count_traces_sampled(_total)?", which)


def refused(collector: Collector) -> float:
    """Spans that the memory limiter turned away."""
    return summed(collector.own, "otelcol_receiver_refused_spans(_total)?")


def test_collector_tail_sampling_drops_ordinary_traces_and_keeps_failed_or_degraded_whole(tmp_path: Path) -> None:
    with OtlpReceiver() as store, collector(tmp_path, store.port, share_percent=0) as running:
        with tracing(running) as tracer:
            for name, attributes in (KEPT | LEFT).items():
                emit(tracer, name, attributes)
        until(lambda: len(store.spans()) >= 2 * len(KEPT), 20, "the traces that are kept")
        until(lambda: decided(running) >= len(KEPT | LEFT), 20, "all is decided")
        # Whole traces, the call's span with the request's.
        assert Counter(s.name for s in store.spans()) == Counter([*KEPT, *(f"call {name}" for name in KEPT)])


@pytest.mark.slow
def test_collector_drops_an_error_span_that_comes_after_its_trace_was_dropped(tmp_path: Path) -> None:
    """As docs/operations.md has it: of one trace each, an error before the decision and one after it."""
    with OtlpReceiver() as store, collector(tmp_path, store.port, share_percent=0, decision_wait="1s") as running:
        with tracing(running) as tracer, contextlib.ExitStack() as open_calls:
            early, late = (open_calls.enter_context(caller(tracer)) for _ in range(2))
            for trace, name in ((early, "early"), (late, "late")):
                tracer.start_span(f"first of {name}", context=trace, attributes=ORDINARY).end()
            failed(tracer, "early error", early)
            until(lambda: decided(running) >= 2, 20, "both are decided")
            failed(tracer, "late error", late)
            emit(tracer, "failed", KEPT["failed"])  # what comes after it has passed it
        until(lambda: "failed" in {span.name for span in store.spans()}, 20, "the last trace")
        names = {span.name for span in store.spans()}
        assert {"first of early", "early error"} <= names
        assert not {"first of late", "late error"} & names


def test_collector_removes_temporary_files_of_a_killed_compaction(tmp_path: Path) -> None:
    (storage := tmp_path / "storage").mkdir()
    (left := storage / "tempdb4017").write_bytes(b"half a database")
    with OtlpReceiver() as store, collector(tmp_path, store.port):
        until(lambda: not left.exists(), 20, "it is removed")
        assert [path for path in storage.iterdir() if path.name.startswith("tempdb")] == []


def test_collector_samples_ordinary_traces_at_the_configured_share(tmp_path: Path) -> None:
    traces = 400
    with OtlpReceiver() as store, collector(tmp_path, store.port, share_percent=50) as running:
        with tracing(running) as tracer:
            for i in range(traces):
                emit(tracer, f"ordinary {i}", {})
        until(lambda: decided(running) >= traces, 20, "all is decided")
        kept = decided(running, 'sampled="true"')
        until(lambda: len(store.spans()) == 2 * kept, 20, f"the spans of {kept:g} traces that are kept")
        # Binomial with 400 and 0.5: standard deviation 10, so that six of them are never seen by chance.
        assert abs(kept - traces / 2) < 60


def test_collector_span_metrics_count_traces_that_sampling_drops(tmp_path: Path) -> None:
    with OtlpReceiver() as store, collector(tmp_path, store.port, share_percent=0) as running:
        with tracing(running) as tracer:
            for _ in range(25):
                emit(tracer, "ordinary", {})
        until(
            lambda: summed(running.scrape, "draftd_traces_calls_total", 'span_name="ordinary"') == 25,
            20,
            "25 calls counted",
        )
        assert store.spans() == []


@pytest.mark.parametrize("end", [Collector.kill, Collector.stop], ids=["killed", "stopped"])
def test_collector_delivers_queued_traces_after_a_kill_or_stop(
    tmp_path: Path, end: Callable[[Collector], object]
) -> None:
    (away,) = free_ports(1)
    running = Collector(tmp_path, away)
    running.start()
    try:
        with tracing(running) as tracer:
            for i in range(20):
                emit(tracer, f"ordinary {i}", {})
        until(
            lambda: summed(running.own, "otelcol_exporter_queue_size", "tempo") > 0,
            20,
            "the store is away: traces wait in the queue",
        )
        until(lambda: decided(running) >= 20, 20, "all is decided")
        end(running)
        running.start()
        store = OtlpReceiver()
        store.port = away
        with store:
            until(lambda: len(store.spans()) == 40, 60, "all 40 spans arrive")
    finally:
        running.stop()


@pytest.mark.slow
def test_collector_over_its_memory_limit_refuses_spans_and_delays_no_request(tmp_path: Path) -> None:
    with OtlpReceiver() as store, collector(tmp_path, store.port, memory_mib=2) as running:
        until(lambda: "is above hard limit" in running.log, 20, "the limiter has looked")
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": running.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with composed(DAEMON, tmp_path, environ) as address, DraftdClient(address) as client:
            for _ in range(10):
                events = list(client.generate("abc", max_tokens=20, timeout=30))
                assert sum(len(event.chunk.token_ids) for event in events) == 20
            until(lambda: refused(running) > 0, 20, "spans were refused")
        assert store.spans() == []


def test_collector_adds_host_attributes_without_replacing_the_daemons(tmp_path: Path) -> None:
    with OtlpReceiver() as store, collector(tmp_path, store.port) as running:
        with tracing(running, {"service.name": "draftd"}) as tracer:
            emit(tracer, "silent", {})
        with tracing(running, {"service.name": "draftd", "host.name": "mini-3"}) as tracer:
            emit(tracer, "outspoken", {})
        until(lambda: len(store.spans()) == 4, 20, "both traces")
        (silent,), (outspoken,) = store.spans("silent"), store.spans("outspoken")
        assert silent.resource["service.name"] == outspoken.resource["service.name"] == "draftd"
        assert silent.resource["host.name"] == socket.gethostname()
        assert silent.resource["os.type"] == outspoken.resource["os.type"] == sys.platform
        assert outspoken.resource["host.name"] == "mini-3"


def test_collector_forwards_log_events_to_the_log_store(tmp_path: Path) -> None:
    with OtlpReceiver() as traces, OtlpReceiver("http") as logs:
        with (
            collector(tmp_path, traces.port, logs_port=logs.port) as running,
            composed(DAEMON, tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": running.endpoint}) as address,
            DraftdClient(address) as client,
        ):
            started = next(iter(client.generate("abc", max_tokens=1, timeout=30))).started
            until(lambda: bool(logs.events("feature_flag.evaluation")), 20, "the flag's evaluation")
        (event,) = logs.events("feature_flag.evaluation")
        assert event.attributes["feature_flag.result.variant"] == started.plan.variant
        assert event.resource["service.name"] == "draftd"
        assert event.resource["host.name"] == socket.gethostname()


def test_collector_configuration_logs_no_warning(tmp_path: Path) -> None:
    with OtlpReceiver() as store, collector(tmp_path, store.port) as running:
        with tracing(running) as tracer:
            emit(tracer, "ordinary", {})
        until(lambda: len(store.spans()) == 2, 20, "the trace")
        assert running.stop() == 0
        lines = [line for line in running.log.splitlines() if "\twarn\t" in line or "\terror\t" in line]
        assert lines == []
