"""The SDK's providers, from the OTEL_* environment, their queues and their shutdown bounded. None of them is global."""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry._logs import LoggerProvider, NoOpLoggerProvider
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.sdk import _logs as sdk_logs
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NoOpTracerProvider, TracerProvider

from draftd.telemetry import exporters
from draftd.telemetry.exporters import Signal
from draftd.telemetry.link import Link, Quiet, Watched

_log = logging.getLogger("draftd.telemetry")

# The SDK counts what it queues, drops and delivers where this variable says so. Whoever sets it has the last word.
_SDK_METRICS_VARIABLE = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"
# What else the SDK counts changes with every span, and draftd's own metrics tell it better.
_DROPPED = ("otel.sdk.span.*", "otel.sdk.log.*", "otel.sdk.exporter.*.inflight", "otel.sdk.*.duration")


@dataclass(slots=True)
class Pipeline:
    """Providers, and the way to stop them in time."""

    tracers: TracerProvider
    meters: MeterProvider
    loggers: LoggerProvider
    link: Link
    quiet: Quiet
    exporters: list[Any] = field(default_factory=list)
    instance: str = ""  # service.instance.id
    _arrived: bool | None = None

    def shutdown(self, seconds: float) -> bool:
        """Sends what is queued, for at most `seconds`; True when all of it arrived. Once; later calls say the same.

        The SDK waits up to thirty seconds for each signal. So the signals are shut down side by side, and when time is
        nearly up their exporters are closed, which makes them give up: the rest of the queues is dropped.
        """
        if self._arrived is not None:
            return self._arrived
        failed = self.link.failed
        deadline = time.monotonic() + seconds
        grace = min(0.5, seconds / 4)
        threads = [
            threading.Thread(target=self._stop, args=(provider,), daemon=True, name="telemetry-shutdown")
            for provider in (self.tracers, self.meters, self.loggers)
        ]
        for thread in threads:
            thread.start()
        _join(threads, deadline - grace)
        late = any(thread.is_alive() for thread in threads)
        if late:
            closers = [
                threading.Thread(target=_close, args=(exporter,), daemon=True, name="telemetry-close")
                for exporter in self.exporters
            ]
            for closer in closers:
                closer.start()
            _join(closers + threads, deadline)
        self._arrived = not late and self.link.failed == failed
        # Threads that linger still have something to complain of: the quiet lasts as long as they do.
        threading.Thread(target=self._hush, args=(threads,), daemon=True, name="telemetry-quiet").start()
        return self._arrived

    def _hush(self, threads: list[threading.Thread]) -> None:
        _join(threads, time.monotonic() + 60)
        self.quiet.remove()

    def _stop(self, provider: object) -> None:
        shutdown = getattr(provider, "shutdown", None)
        if shutdown is None:
            return
        try:
            shutdown()
        except Exception as error:
            _log.debug("telemetry shutdown: %s", error)


def _join(threads: list[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _close(exporter: Any) -> None:
    try:
        exporter.shutdown()
    except Exception as error:
        _log.debug("telemetry shutdown: %s", error)


def build(environ: Mapping[str, str], service_version: str) -> Pipeline | None:
    """Providers for the signals that the environment wants exported; None when it wants none.

    Queue lengths, batch sizes, intervals, samplers, limits, endpoints, headers, compression and certificates are read
    by the SDK's own classes. Raises ValueError for an exporter or a protocol that is not to be had.
    """
    makers = {
        signal: [exporters.load(signal, name, environ) for name in exporters.wanted(signal, environ)]
        for signal in Signal
    }
    if not any(makers.values()):
        return None
    quiet = Quiet()
    pipeline = Pipeline(NoOpTracerProvider(), NoOpMeterProvider(), NoOpLoggerProvider(), Link(quiet), quiet)
    quiet.install()
    try:
        with exporters.environment({_SDK_METRICS_VARIABLE: "true", **environ}):
            resource = _resource(service_version)
            pipeline.instance = str(resource.attributes["service.instance.id"])
            _fill(pipeline, makers, resource)
    except Exception:
        pipeline.shutdown(0.0)
        raise
    return pipeline


def _fill(pipeline: Pipeline, makers: Mapping[Signal, list[exporters.Maker]], resource: Resource) -> None:
    # Metrics first: the other signals' queues and exporters are counted on them.
    if makers[Signal.METRICS]:
        made = [make(NoOpMeterProvider()) for make in makers[Signal.METRICS]]
        readers = [_reader(one, pipeline) for one in made]
        views = [View(instrument_name=name, aggregation=DropAggregation()) for name in _DROPPED]
        pipeline.meters = sdk_metrics.MeterProvider(readers, resource, shutdown_on_exit=False, views=views)
        for one in made:
            if hasattr(one, "set_meter_provider"):
                one.set_meter_provider(pipeline.meters)
    if makers[Signal.TRACES]:
        tracers = sdk_trace.TracerProvider(resource=resource, shutdown_on_exit=False)
        pipeline.tracers = tracers
        for make in makers[Signal.TRACES]:
            spans: Any = _watched(make(pipeline.meters), Signal.TRACES, pipeline)
            tracers.add_span_processor(BatchSpanProcessor(spans, meter_provider=pipeline.meters))
    if makers[Signal.LOGS]:
        loggers = sdk_logs.LoggerProvider(resource=resource, shutdown_on_exit=False)
        pipeline.loggers = loggers
        for make in makers[Signal.LOGS]:
            records: Any = _watched(make(pipeline.meters), Signal.LOGS, pipeline)
            loggers.add_log_record_processor(BatchLogRecordProcessor(records, meter_provider=pipeline.meters))


def _reader(made: Any, pipeline: Pipeline) -> MetricReader:
    if isinstance(made, MetricReader):
        return made
    exporter: Any = _watched(made, Signal.METRICS, pipeline)
    return PeriodicExportingMetricReader(exporter)


def _watched(exporter: Any, signal: Signal, pipeline: Pipeline) -> Watched:
    pipeline.exporters.append(exporter)
    return Watched(exporter, signal.lower(), pipeline.link)


def _resource(service_version: str) -> Resource:
    """The environment's resource, completed: it wins, also over our own service name."""
    found = Resource.create().attributes
    ours = {
        "service.name": "draftd",
        "service.version": service_version,
        "service.instance.id": str(uuid.uuid4()),
        "host.name": socket.gethostname(),  # else a collector in a container would name its own
    }
    unnamed = str(found.get("service.name", "")).startswith("unknown_service")
    return Resource.create(
        {key: value for key, value in ours.items() if key not in found or (key == "service.name" and unnamed)}
    )
