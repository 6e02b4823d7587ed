"""Queries of telemetry's path from the daemon through the collector into the stores, and of the losses on it."""

from __future__ import annotations

from collections.abc import Iterable

from dashboards import external
from dashboards.external import External
from dashboards.queries.query import (
    ENGINE,
    FRESH,
    MACHINE,
    RANGE,
    RATE,
    Query,
    counted,
    gauge,
    grouped,
    none_yet,
    or_nought,
    over,
    series,
    shown,
)
from dashboards.ratios import INSTANCE, label, matching, summed
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry import catalog_sdk as sdk
from draftd.telemetry.catalog import Metric

ERROR, PART = label(a.ERROR_TYPE), label(a.TELEMETRY_PART)
_LOST = f'{ERROR}!=""'
_COLLECTOR = series(external.COLLECTOR_MEMORY)
_TARGETS = 'job=~"draftd.*|otel.*"'  # as otel-collector/prometheus.yaml names them
_INFERENCE = 'span_name=~"(chat|text_completion|generate_content) .*"'
_WORDS = {"spans": "spans", "metric_points": "metric points", "log_records": "log events"}

# Is each part up, and does its data arrive without gaps?
TARGETS_NOW = Query(or_nought(grouped(series(external.UP, _TARGETS), function="min")), "lowest", instant=True)
TARGETS = Query(series(external.UP, _TARGETS), f"{shown('job')} · {shown('instance')}")
SCRAPE_SECONDS = Query(series(external.SCRAPE_DURATION, _TARGETS), f"{shown('job')} · {shown('instance')}")
SCRAPE_SAMPLES = Query(series(external.SCRAPED_SAMPLES, _TARGETS), f"{shown('job')} · {shown('instance')}")

# The daemon's uptime grew recently, or is new. A daemon that Prometheus cannot read counts as gone at once.
_uptime = series(catalog.UPTIME, MACHINE)
_arriving = grouped(f"{_uptime} != bool {_uptime} offset {FRESH} or {_uptime} >= bool 0", (INSTANCE,), "max")
ARRIVING = Query(_arriving, shown(INSTANCE))
EXPORTING_NOW = Query(or_nought(f"count(({_arriving}) > 0)"), "daemons", instant=True)
COVERAGE = Query(f"avg_over_time({or_nought(f'max({_arriving})')}[{RANGE}:])", "of the time shown", instant=True)
POINTS = Query(summed(sdk.DATA_POINTS_EXPORTED, MACHINE, RATE, (INSTANCE,)), shown(INSTANCE))


def _lost(metric: Metric, window: str) -> str:
    return none_yet(counted(metric, matching(MACHINE, _LOST), window), window)


LOST_NOW = tuple(
    Query(f"{_lost(dropped, RANGE)} + {_lost(exported, RANGE)}", what, instant=True)
    for what, dropped, exported in (
        ("spans", sdk.SPANS_PROCESSED, sdk.SPANS_EXPORTED),
        ("log events", sdk.LOGS_PROCESSED, sdk.LOGS_EXPORTED),
    )
)
EXPORTED = (
    Query(summed(sdk.SPANS_EXPORTED, matching(MACHINE, f'{ERROR}=""'), RATE), "spans delivered"),
    Query(summed(sdk.LOGS_EXPORTED, matching(MACHINE, f'{ERROR}=""'), RATE), "log events delivered"),
)
LOST = (
    Query(_lost(sdk.SPANS_PROCESSED, RATE), "spans dropped, queue full"),
    Query(_lost(sdk.LOGS_PROCESSED, RATE), "log events dropped, queue full"),
    Query(_lost(sdk.SPANS_EXPORTED, RATE), "spans not delivered"),
    Query(_lost(sdk.LOGS_EXPORTED, RATE), "log events not delivered"),
    Query(_lost(sdk.DATA_POINTS_EXPORTED, RATE), "data points not delivered"),
)
SDK_QUEUES = (
    Query(over(grouped(gauge(sdk.SPAN_QUEUE_SIZE, MACHINE), (INSTANCE,)),
               grouped(gauge(sdk.SPAN_QUEUE_CAPACITY, MACHINE), (INSTANCE,))), f"spans · {shown(INSTANCE)}"),
    Query(over(grouped(gauge(sdk.LOG_QUEUE_SIZE, MACHINE), (INSTANCE,)),
               grouped(gauge(sdk.LOG_QUEUE_CAPACITY, MACHINE), (INSTANCE,))), f"log events · {shown(INSTANCE)}"),
)  # fmt: skip
TELEMETRY_ERRORS_NOW = Query(
    none_yet(counted(catalog.TELEMETRY_ERRORS, MACHINE, RANGE), RANGE), "failures", instant=True
)
TELEMETRY_ERRORS = Query(counted(catalog.TELEMETRY_ERRORS, MACHINE, RATE, (PART,)), shown(PART))


def _signals(metrics: Iterable[External], what: str = "") -> tuple[Query, ...]:
    """Returns one query per signal, as a rate."""
    found = zip(external.SIGNALS, metrics, strict=True)
    return tuple(
        Query(f"sum(rate({metric.name}[{RATE}]))", " ".join(word for word in (_WORDS[signal], what) if word))
        for signal, metric in found
    )


def _losses(metrics: Iterable[External], what: str) -> tuple[Query, ...]:
    """Returns one query per signal, as a count: zero if it never happened and has no series."""
    return tuple(
        Query(none_yet(counted(metric, "", RATE), RATE, _COLLECTOR), f"{_WORDS[signal]} {what}")
        for signal, metric in zip(external.SIGNALS, metrics, strict=True)
    )


RECEIVED = _signals(external.ACCEPTED)
SENT = _signals(external.SENT)
TURNED_DOWN = (*_losses(external.REFUSED, "refused"), *_losses(external.FAILED, "failed"))
NOT_SENT = (*_losses(external.SEND_FAILED, "not sent"), *_losses(external.ENQUEUE_FAILED, "dropped, queue full"))
LOST_BY_COLLECTOR_NOW = Query(
    " + ".join(
        none_yet(counted(metric, "", RANGE), RANGE, _COLLECTOR)
        for metric in (*external.REFUSED, *external.FAILED, *external.SEND_FAILED, *external.ENQUEUE_FAILED)
    ),
    "items",
    instant=True,
)
QUEUE_FILL = Query(
    f"{series(external.QUEUE_SIZE)} / ({series(external.QUEUE_CAPACITY)} > 0)",
    f"{shown('data_type')} · {shown('exporter')}",
)
QUEUE_FILL_NOW = Query(
    f"max({series(external.QUEUE_SIZE)} / ({series(external.QUEUE_CAPACITY)} > 0))", "fullest", instant=True
)
QUEUE_ITEMS = Query(series(external.QUEUE_SIZE), f"{shown('data_type')} · {shown('exporter')}")
COLLECTOR_MEMORY = Query(series(external.COLLECTOR_MEMORY), shown("instance"))
TRACES_KEPT = Query(
    counted(external.TRACES_KEPT, 'decision="sampled"', RANGE, ("policy",)), shown("policy"), instant=True
)
TRACE_DECISIONS = Query(f"sum by (decision) (rate({external.TRACES_DECIDED.name}[{RATE}])) * 60", shown("decision"))
TRACES_LOST = Query(f"sum(rate({external.TRACES_TOO_EARLY.name}[{RATE}])) * 60", "dropped before their decision")
# The daemon's own count and the collector's count of its spans must be the same, whatever the sampling keeps.
TOLD_TWICE = (
    Query(f"sum(rate({series(catalog.REQUESTS, ENGINE)}[{RATE}])) * 60", "counted by the daemon"),
    Query(
        f"sum(rate({series(external.SPAN_CALLS, matching(MACHINE, _INFERENCE))}[{RATE}])) * 60",
        "spans of the collector",
    ),
)
