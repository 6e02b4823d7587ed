"""The OpenTelemetry SDK's metrics about itself: queued, dropped and undelivered data. The SDK makes them; dashboards
and the reference take their names from here. https://opentelemetry.io/docs/specs/semconv/otel/sdk-metrics/"""

from __future__ import annotations

from draftd.telemetry import attributes as a
from draftd.telemetry.attributes import InstrumentKind, metrics_of

_counter, _up_down = metrics_of(InstrumentKind.COUNTER), metrics_of(InstrumentKind.UP_DOWN_COUNTER)
_QUEUE = (a.COMPONENT_TYPE, a.COMPONENT_NAME)
_PROCESSED = (*_QUEUE, a.ERROR_TYPE)
_EXPORTED = (*_PROCESSED, a.SERVER_ADDRESS, a.SERVER_PORT)

SPANS_PROCESSED = _counter(
    "otel.sdk.processor.span.processed",
    "{span}",
    "Spans that left the daemon's queue; with `error.type` `queue_full`, spans that were dropped because the queue "
    "was full",
    *_PROCESSED,
)
LOGS_PROCESSED = _counter(
    "otel.sdk.processor.log.processed",
    "{log_record}",
    "Log events that left the daemon's queue; `error.type` as for spans",
    *_PROCESSED,
)
SPAN_QUEUE_SIZE = _up_down("otel.sdk.processor.span.queue.size", "{span}", "Spans that wait to be sent", *_QUEUE)
SPAN_QUEUE_CAPACITY = _up_down(
    "otel.sdk.processor.span.queue.capacity", "{span}", "Most spans that may wait to be sent", *_QUEUE
)
LOG_QUEUE_SIZE = _up_down("otel.sdk.processor.log.queue.size", "{log}", "Log events that wait to be sent", *_QUEUE)
LOG_QUEUE_CAPACITY = _up_down(
    "otel.sdk.processor.log.queue.capacity", "{log_record}", "Most log events that may wait to be sent", *_QUEUE
)
SPANS_EXPORTED = _counter(
    "otel.sdk.exporter.span.exported",
    "{span}",
    "Spans whose export ended; with `error.type`, spans that were not delivered",
    *_EXPORTED,
)
LOGS_EXPORTED = _counter(
    "otel.sdk.exporter.log.exported",
    "{log_record}",
    "Log events whose export ended; `error.type` as for spans",
    *_EXPORTED,
)
DATA_POINTS_EXPORTED = _counter(
    "otel.sdk.exporter.metric_data_point.exported",
    "{data_point}",
    "Data points whose export ended; `error.type` as for spans. Nothing is lost: the next export has the totals",
    *_EXPORTED,
)
