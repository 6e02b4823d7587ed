"""Dashboard of telemetry's health: data lost and where, and whether the other dashboards can be trusted."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.boards import look
from dashboards.panels import BAD, GOOD, PLAIN, WARN, Panel, Text, bars, lines, single, states, tile
from dashboards.queries import pipeline as ask
from dashboards.settings import Alerting

_FILLING = 0.5  # share of a queue's capacity from which the panel warns


def board(alerting: Alerting) -> Board:
    return Board(
        "telemetry",
        "Telemetry health",
        "Can the other dashboards be trusted? What the daemons dropped, what the collector refused, queued or could "
        "not send, and the gaps in Prometheus's data. Counters lose nothing over a gap: they are cumulative, so the "
        "next export is complete.",
        (
            Row("Over the time shown", _figures()),
            Row("Does data arrive", _up()),
            Row("From the daemon", _daemon()),
            Row("Through the collector", _collector()),
            Row("Traces", _traces()),
        ),
    )


def _figures() -> tuple[Panel, ...]:
    well = look.NONE_IS_WELL
    return (
        single(
            tile("Daemons that export",
                 "Daemons whose metrics arrive in Prometheus now.",
                 look.COUNT, decimals=0),
            ask.EXPORTING_NOW,
            steps=((None, BAD), (1, GOOD)),
        ),
        single(
            tile("Targets",
                 "Whether Prometheus can scrape the collector's endpoints now; down if it cannot scrape one of them.",
                 look.LEVEL),
            ask.TARGETS_NOW,
            words=look.UP,
        ),
        single(
            tile("Time covered",
                 "Share of the time shown in which a daemon's metrics arrived. The rest is a gap: no daemon ran, or "
                 "its telemetry did not get through.", look.SHARE, decimals=1),
            ask.COVERAGE,
            steps=((None, WARN), (0.999, GOOD)),
        ),
        single(
            tile("Lost by the daemon",
                 "Spans and log events that never reached the collector, over the time shown: the daemon's queue was "
                 "full, or the collector did not accept them.", look.COUNT, decimals=0),
            *ask.LOST_NOW,
            steps=well,
        ),
        single(
            tile("Lost by the collector",
                 "Spans, data points and log events that the collector refused, could not queue, or gave up sending, "
                 "over the time shown.", look.COUNT, decimals=0),
            ask.LOST_BY_COLLECTOR_NOW,
            steps=well,
        ),
        single(
            tile("Failures of telemetry",
                 "Errors in the daemon's own telemetry code, over the time shown. They were caught and did not "
                 "affect a request.",
                 look.COUNT, decimals=0),
            ask.TELEMETRY_ERRORS_NOW,
            steps=well,
        ),
    )  # fmt: skip


def _up() -> tuple[Panel, ...]:
    return (
        states(
            Text("Arrivals",
                 "Whether each daemon's metrics arrive in Prometheus. Empty: Prometheus has no data about the "
                 "daemon.",
                 look.LEVEL),
            (ask.ARRIVING, look.ARRIVING),
        ),
        states(Text("What Prometheus scrapes",
                    "Whether Prometheus could scrape each endpoint of the collector: the one for draftd's metrics, "
                    "and the one for the collector's own.", look.LEVEL), (ask.TARGETS, look.UP)),
        lines(
            Text("Data points exported",
                 "Data points per second that each daemon exported. At zero there is a gap in its metrics.",
                 look.PER_SECOND, low=0),
            ask.POINTS,
        ),
    )  # fmt: skip


def _daemon() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Delivered",
                 "Spans and log events per second that the collector accepted from the daemons.",
                 look.PER_SECOND, low=0),
            *ask.EXPORTED,
        ),
        lines(
            Text("Lost on the way out",
                 "Spans, log events and data points per rate interval that never reached the collector: the daemon's "
                 "queue was full, or the export failed. Data points are no loss: the next export has the totals.",
                 look.COUNT, low=0),
            *ask.LOST,
            colors={"^spans not": BAD, "^spans dropped": "dark-red", "^log events not": WARN,
                    "^log events dropped": "dark-orange", "^data points": "text"},
        ),
        lines(
            Text("The daemon's queues",
                 "How full each daemon's queues of spans and log events are. What does not fit is dropped; no "
                 "request waits for it.",
                 look.SHARE, low=0, high=1),
            *ask.SDK_QUEUES,
            steps=((None, GOOD), (_FILLING, WARN)),
        ),
        lines(
            Text("Failures of telemetry, by part",
                 "Errors in the daemon's own telemetry code, per rate interval, by part. They were caught and did "
                 "not affect a request.",
                 look.COUNT, 24, 5, low=0, no_value="none"),
            ask.TELEMETRY_ERRORS,
        ),
    )  # fmt: skip


def _collector() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Received",
                 "Spans, data points and log events per second that the collector accepted.", look.PER_SECOND,
                 low=0), *ask.RECEIVED, log=True,
        ),
        lines(
            Text("Sent on",
                 "Spans, data points and log events per second that the collector passed to Tempo, Loki and its "
                 "Prometheus endpoint. There are fewer spans than received, because traces are sampled.",
                 look.PER_SECOND, low=0),
            *ask.SENT,
            log=True,
        ),
        lines(
            Text("Refused by the collector",
                 "Spans, data points and log events per rate interval that the collector refused because its memory "
                 "limit was reached, or failed to process.",
                 look.COUNT, low=0),
            *ask.TURNED_DOWN,
        ),
        lines(
            Text("Not sent by the collector",
                 "Spans, data points and log events per rate interval that the collector gave up sending, or dropped "
                 "because a queue was full.",
                 look.COUNT, low=0),
            *ask.NOT_SENT,
        ),
        lines(
            Text("Sending queues",
                 "How full the collector's queues to the stores are. They are on disk and survive a restart. What "
                 "does not fit is lost.", look.SHARE, low=0, high=1),
            ask.QUEUE_FILL,
            steps=((None, GOOD), (_FILLING, WARN)),
        ),
        lines(
            Text("Waiting to be sent",
                 "Batches in each of the collector's queues. A queue grows while its store is down.",
                 look.COUNT, low=0),
            ask.QUEUE_ITEMS,
        ),
        lines(Text("The collector's memory",
                   "Resident memory of the collector. Near its limit the collector refuses data.", look.BYTES,
                   low=0),
              ask.COLLECTOR_MEMORY),
        lines(
            Text("Scrapes",
                 "How long Prometheus took to scrape each endpoint of the collector.",
                 look.SECONDS, low=0), ask.SCRAPE_SECONDS
        ),
        lines(Text("Samples",
                   "Number of samples in each scrape of the collector's endpoints.",
                   look.COUNT, low=0), ask.SCRAPE_SAMPLES),
    )  # fmt: skip


def _traces() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Sampling decisions",
                 "Traces per minute that the collector kept (sampled), did not keep, or dropped before a decision "
                 "because too many were open.", look.PER_MINUTE, low=0),
            ask.TRACE_DECISIONS,
            ask.TRACES_LOST,
            colors={"^sampled$": GOOD, "not_sampled": "text", "dropped": BAD},
        ),
        bars(
            Text("Why traces were kept",
                 "Traces that the collector kept over the time shown, by sampling policy. Several policies may keep "
                 "the same trace.",
                 look.COUNT, low=0, decimals=0),
            ask.TRACES_KEPT,
        ),
        lines(
            Text("Requests, counted twice",
                 "Requests per minute as the daemons count them, and as the collector counts them from their spans "
                 "before sampling. If the lines differ, spans were lost.", look.PER_MINUTE, low=0),
            *ask.TOLD_TWICE,
            colors={"daemon": PLAIN, "spans": WARN},
            dashed=("spans",),
        ),
    )  # fmt: skip
