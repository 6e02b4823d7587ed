"""OpenTelemetry's providers as requested by the OTEL_* environment: the SDK's, or the API's no-op ones.

Classes that use the rest of that environment read it themselves. No provider is global; queues and shutdown are
bounded.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import Any

import psutil
from opentelemetry._logs import LoggerProvider, NoOpLoggerProvider
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk import _logs as sdk_logs
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NoOpTracerProvider, TracerProvider

from draftd import __version__
from draftd.clocks import sleepless_seconds
from draftd.telemetry import prometheus
from draftd.telemetry.attributes import GROUP_ID, SERVER_PORT
from draftd.telemetry.link import Link, WatchedExporter
from draftd.threads import run_again

_log = logging.getLogger("draftd.telemetry")

# With this variable the SDK counts what it queues, drops and delivers. A value that is already set stays.
_SDK_METRICS_VARIABLE = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"
# The SDK's other counts change with every span, and draftd's own metrics are better.
_DROPPED = ("otel.sdk.span.*", "otel.sdk.log.*", "otel.sdk.exporter.*.inflight", "otel.sdk.*.duration")

# gRPC waits longer and longer between attempts to connect, up to two minutes, and a new channel to the same address
# inherits the wait. A collector that comes back should be found within seconds.
_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 5_000))

SIGNALS = ("traces", "metrics", "logs")
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


@dataclass(slots=True)
class Pipeline:
    """Providers, and their shutdown in limited time. Without exporters the API's own, which record nothing."""

    tracers: TracerProvider = field(default_factory=NoOpTracerProvider)
    meters: MeterProvider = field(default_factory=NoOpMeterProvider)
    loggers: LoggerProvider = field(default_factory=NoOpLoggerProvider)
    propagator: TextMapPropagator = field(default_factory=lambda: CompositePropagator([]))
    link: Link = field(default_factory=Link)
    exporting: bool = False
    sends: bool = False  # whether anything is sent to a collector
    exporters: list[Any] = field(default_factory=list)
    exposition: Callable[[], bytes] = bytes  # all metrics in Prometheus's text format, if they are scraped
    instance: str = ""  # service.instance.id
    _arrived: bool | None = None

    def shutdown(self, seconds: float) -> bool:
        """Sends queued data for at most `seconds`. Returns True if all of it arrived; later calls return the same.

        The SDK waits up to thirty seconds for each signal, so the signals are shut down in parallel. When time is
        nearly up their exporters are closed, which makes them give up and drop the rest."""
        if self._arrived is not None or not self.exporting:
            return self._arrived is not False
        failed = self.link.failed
        deadline = time.monotonic() + seconds
        threads = [_shutting_down(provider) for provider in (self.tracers, self.meters, self.loggers)]
        _join(threads, deadline - min(0.5, seconds / 4))
        late = any(thread.is_alive() for thread in threads)
        if late:
            _join([*(_shutting_down(exporter) for exporter in self.exporters), *threads], deadline)
        self._arrived = not late and self.link.failed == failed
        return self._arrived


def _shutting_down(thing: Any) -> threading.Thread:
    """Shuts a provider or exporter down on a thread that may be left behind. No-op providers have no shutdown."""

    def run() -> None:
        try:
            if hasattr(thing, "shutdown"):
                thing.shutdown()
        except Exception as error:
            _log.debug("telemetry shutdown: %s", error)

    thread = threading.Thread(target=run, daemon=True, name="telemetry-shutdown")
    thread.start()
    return thread


def _join(threads: list[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def build(*, scraped: bool = False, group: str = "", port: int | None = None) -> Pipeline:
    """Returns providers for the signals that the environment wants exported, and no-op ones for the others. `scraped`:
    metrics are also kept for Prometheus. `group`, `port`: see `Telemetry.start`.

    Queue lengths, batch sizes, intervals, samplers, limits, endpoints, headers, compression and certificates are read
    by the SDK's own classes. Raises ValueError for an exporter, protocol or propagator that is not installed."""
    pipeline = Pipeline(propagator=propagator())
    wanted = {signal: wanted_exporters(signal) for signal in SIGNALS}
    if not any(wanted.values()) and not scraped:
        return pipeline
    pipeline.exporting, pipeline.sends = True, any(wanted.values())
    pipeline.link.install()
    os.environ.setdefault(_SDK_METRICS_VARIABLE, "true")
    try:
        resource = _resource(group, port)
        pipeline.instance = str(resource.attributes["service.instance.id"])
        _fill(pipeline, wanted, resource, scraped)
    except Exception:
        pipeline.shutdown(0.0)
        raise
    return pipeline


def _fill(pipeline: Pipeline, wanted: Mapping[str, Sequence[str]], resource: Resource, scraped: bool) -> None:
    def exporters(signal: str) -> list[Any]:
        built = [_exporter(signal, name, pipeline.meters) for name in wanted[signal]]
        pipeline.exporters += built
        return [
            exporter if isinstance(exporter, MetricReader) else WatchedExporter(exporter, signal, pipeline.link)
            for exporter in built
        ]

    # Metrics first: they count the other signals' queues and exporters.
    metrics = exporters("metrics")
    if metrics or scraped:
        readers = [exporter if isinstance(exporter, MetricReader) else _LastingReader(exporter) for exporter in metrics]
        if scraped:
            reader, pipeline.exposition = prometheus.scraped_reader(resource)
            readers.append(reader)
        views = [View(instrument_name=name, aggregation=DropAggregation()) for name in _DROPPED]
        pipeline.meters = sdk_metrics.MeterProvider(readers, resource, shutdown_on_exit=False, views=views)
        for exporter in metrics:
            if hasattr(exporter, "set_meter_provider"):
                exporter.set_meter_provider(pipeline.meters)
    if traces := exporters("traces"):
        pipeline.tracers = tracers = sdk_trace.TracerProvider(resource=resource, shutdown_on_exit=False)
        for spans in traces:
            tracers.add_span_processor(BatchSpanProcessor(spans, meter_provider=pipeline.meters))
    if logs := exporters("logs"):
        pipeline.loggers = loggers = sdk_logs.LoggerProvider(resource=resource, shutdown_on_exit=False)
        for records in logs:
            loggers.add_log_record_processor(BatchLogRecordProcessor(records, meter_provider=pipeline.meters))


class _LastingReader(PeriodicExportingMetricReader):
    """A metric reader that survives errors: the SDK's own thread ends silently after a failed collection."""

    def _ticker(self) -> None:
        run_again("the collection of metrics", super()._ticker, self._shutdown_event)


def _resource(group: str, port: int | None) -> Resource:
    """Returns the environment's resource, completed by draftd's attributes; the environment takes precedence."""
    began = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    ours: dict[str, str | int] = {
        "service.name": "draftd",
        "service.version": __version__,
        "service.instance.id": str(uuid.uuid4()),
        "host.name": socket.gethostname(),  # otherwise a collector in a container would use its own
        # The process of `process.memory.usage`: the conventions identify it by these two.
        "process.pid": os.getpid(),
        "process.creation.time": began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    if group:
        ours[GROUP_ID.name] = group
    if port is not None:  # with the host it identifies the daemon across restarts, which change the instance id
        ours[SERVER_PORT.name] = port
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def process_uptime() -> Callable[[], float]:
    """Returns a function for the seconds since this process started, sleep included."""
    began = sleepless_seconds() - max(0.0, time.time() - psutil.Process().create_time())
    return lambda: sleepless_seconds() - began


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()


def wanted_exporters(signal: str) -> list[str]:
    """Returns the exporters for a signal: those in OTEL_*_EXPORTER, else `otlp` if there is an endpoint, else none. The
    specification's default endpoint is used only if `otlp` is named."""
    if _variable("OTEL_SDK_DISABLED").lower() == "true":
        return []
    if configured := _variable(f"OTEL_{signal.upper()}_EXPORTER"):
        return [name for part in configured.split(",") if (name := part.strip().lower()) and name != "none"]
    own = _variable(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return ["otlp"] if own or _variable("OTEL_EXPORTER_OTLP_ENDPOINT") else []


def _exporter(signal: str, name: str, meters: MeterProvider) -> Any:
    """Returns the exporter of this name, which may count deliveries on `meters`. Raises ValueError with the allowed
    names."""
    if name == "otlp":
        own = _variable(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
        protocol = own or _variable("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
        if protocol not in _PROTOCOLS:
            raise ValueError(f"OTLP protocol {protocol!r}; allowed: {', '.join(_PROTOCOLS)}")
        name = _PROTOCOLS[protocol]
    factory: Callable[..., Any] = _entry(f"opentelemetry_{signal}_exporter", name)
    if name not in _PROTOCOLS.values():
        return factory()
    channel = {"channel_options": _CHANNEL_OPTIONS} if name == _PROTOCOLS["grpc"] else {}
    return factory(meter_provider=meters, **channel)


def propagator() -> TextMapPropagator:
    """Returns the propagator of OTEL_PROPAGATORS; by default W3C trace context and baggage."""
    configured = _variable("OTEL_PROPAGATORS") or "tracecontext,baggage"
    names = [name for part in configured.split(",") if (name := part.strip()) and name != "none"]
    return CompositePropagator([_entry("opentelemetry_propagator", name)() for name in dict.fromkeys(names)])


def _entry(group: str, name: str) -> Any:
    entries = {entry.name: entry for entry in entry_points(group=group)}
    if name not in entries:
        raise ValueError(f"{name!r} is not installed in {group}; there are: {', '.join(sorted(entries))}")
    return entries[name].load()
