"""What the OpenTelemetry SDK tells of itself: what the daemon queued, dropped, and could not deliver.

The SDK counts these; draftd turns them on and passes on the ones below. Unlike the catalog's other metrics nothing is
made from them here: dashboards and the reference read their names.
Source: semantic conventions, `otel.sdk.*` (https://opentelemetry.io/docs/specs/semconv/otel/sdk-metrics/).
"""

from __future__ import annotations

from draftd.telemetry import attributes as a
from draftd.telemetry.kinds import Kind, Metric

# The SDK reads this variable. Whoever sets it to anything else has the last word.
VARIABLE = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"

_QUEUE = (a.COMPONENT_TYPE, a.COMPONENT_NAME)
_PROCESSED = (*_QUEUE, a.ERROR_TYPE)
_EXPORTED = (*_PROCESSED, a.SERVER_ADDRESS, a.SERVER_PORT)

SPANS_PROCESSED = Metric(
    "otel.sdk.processor.span.processed",
    Kind.COUNTER,
    "{span}",
    "Spans that left the daemon's queue; with `error.type` `queue_full` those that were dropped because it was full",
    _PROCESSED,
)
LOGS_PROCESSED = Metric(
    "otel.sdk.processor.log.processed",
    Kind.COUNTER,
    "{log_record}",
    "Log events that left the daemon's queue; `error.type` as for spans",
    _PROCESSED,
)
SPAN_QUEUE_SIZE = Metric(
    "otel.sdk.processor.span.queue.size", Kind.UP_DOWN_COUNTER, "{span}", "Spans that wait to be sent", _QUEUE
)
SPAN_QUEUE_CAPACITY = Metric(
    "otel.sdk.processor.span.queue.capacity", Kind.UP_DOWN_COUNTER, "{span}", "Spans that may wait", _QUEUE
)
LOG_QUEUE_SIZE = Metric(
    "otel.sdk.processor.log.queue.size", Kind.UP_DOWN_COUNTER, "{log}", "Log events that wait to be sent", _QUEUE
)
LOG_QUEUE_CAPACITY = Metric(
    "otel.sdk.processor.log.queue.capacity", Kind.UP_DOWN_COUNTER, "{log_record}", "Log events that may wait", _QUEUE
)
SPANS_EXPORTED = Metric(
    "otel.sdk.exporter.span.exported",
    Kind.COUNTER,
    "{span}",
    "Spans whose export ended; with `error.type` those that were not delivered",
    _EXPORTED,
)
LOGS_EXPORTED = Metric(
    "otel.sdk.exporter.log.exported",
    Kind.COUNTER,
    "{log_record}",
    "Log events whose export ended; `error.type` as for spans",
    _EXPORTED,
)
DATA_POINTS_EXPORTED = Metric(
    "otel.sdk.exporter.metric_data_point.exported",
    Kind.COUNTER,
    "{data_point}",
    "Data points whose export ended; `error.type` as for spans. The next export carries all that they said",
    _EXPORTED,
)

SDK_METRICS: tuple[Metric, ...] = (
    SPANS_PROCESSED,
    LOGS_PROCESSED,
    SPAN_QUEUE_SIZE,
    SPAN_QUEUE_CAPACITY,
    LOG_QUEUE_SIZE,
    LOG_QUEUE_CAPACITY,
    SPANS_EXPORTED,
    LOGS_EXPORTED,
    DATA_POINTS_EXPORTED,
)

# What else the SDK counts changes with every span, and is told better by draftd's own metrics: left out.
LEFT_OUT = ("otel.sdk.span.*", "otel.sdk.log.*", "otel.sdk.exporter.*.inflight", "otel.sdk.*.duration")
