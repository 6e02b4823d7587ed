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
        "What the daemon dropped, what the collector refused, queued or could not send, and the gaps in what "
        "Prometheus "
        "has. Metrics lose nothing over a gap: counters are cumulative, so the next export is complete.",
        (
            Row("Over the time shown", _figures()),
            Row("Is it up", _up()),
            Row("From the daemon", _daemon()),
            Row("Through the collector", _collector()),
            Row("Traces", _traces()),
        ),
    )


def _figures() -> tuple[Panel, ...]:
    well = look.NONE_IS_WELL
    return (
        single(
            tile("Daemons that export", "Daemons whose own count of exported data points has just grown.",
                 look.COUNT, decimals=0),
            ask.EXPORTING_NOW,
            steps=((None, BAD), (1, GOOD)),
        ),
        single(
            tile("Targets", "Whether Prometheus reaches every endpoint that it scrapes on the collector.", look.LEVEL),
            ask.TARGETS_NOW,
            words=look.UP,
        ),
        single(
            tile("Covered", "Share of the time shown for which a daemon's data arrived. The rest is a gap: no daemon "
                 "ran, or its data did not get through.", look.SHARE, decimals=1),
            ask.COVERAGE,
            steps=((None, WARN), (0.999, GOOD)),
        ),
        single(
            tile("Lost by the daemon", "Spans and log events dropped because the daemon's queue was full, or not "
                 "accepted by the collector after all attempts.", look.COUNT, decimals=0),
            *ask.LOST_NOW,
            steps=well,
        ),
        single(
            tile("Lost by the collector", "Spans, data points and log events that the collector refused, could not "
                 "queue, or gave up sending.", look.COUNT, decimals=0),
            ask.LOST_BY_COLLECTOR_NOW,
            steps=well,
        ),
        single(
            tile("Failures of telemetry", "Failures of telemetry itself, caught before they reached a request.",
                 look.COUNT, decimals=0),
            ask.TELEMETRY_ERRORS_NOW,
            steps=well,
        ),
    )  # fmt: skip


def _up() -> tuple[Panel, ...]:
    return (
        states(
            Text("Arrivals", "Whether a daemon's data arrives. Grey: Prometheus has nothing about it.",
                 look.LEVEL),
            (ask.ARRIVING, look.ARRIVING),
        ),
        states(Text("What Prometheus scrapes", "Whether each target answered: the collector's endpoint for draftd's "
                    "metrics, and the one for its own.", look.LEVEL), (ask.TARGETS, look.UP)),
        lines(
            Text("Data points exported", "Data points per second that each daemon exported. A dip to zero is a gap.",
                 look.PER_SECOND, low=0),
            ask.POINTS,
        ),
    )  # fmt: skip


def _daemon() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Delivered", "Spans and log events per second that the collector took from the daemon.",
                 look.PER_SECOND, low=0),
            *ask.EXPORTED,
        ),
        lines(
            Text("Lost on the way out", "Dropped because the daemon's queue was full, or not delivered, in each "
                 "interval. The next export makes up for data points that were not delivered.", look.COUNT, low=0),
            *ask.LOST,
            colors={"^spans not": BAD, "^spans dropped": "dark-red", "^log events not": WARN,
                    "^log events dropped": "dark-orange", "^data points": "text"},
        ),
        lines(
            Text("The daemon's queues", "How full the queues are. Entries that do not fit are dropped; no request "
                 "waits for them.",
                 look.SHARE, low=0, high=1),
            *ask.SDK_QUEUES,
            steps=((None, GOOD), (_FILLING, WARN)),
        ),
        lines(
            Text("Failures of telemetry, by part", "Failures of telemetry itself, in each interval.",
                 look.COUNT, 24, 5, low=0, no_value="none"),
            ask.TELEMETRY_ERRORS,
        ),
    )  # fmt: skip


def _collector() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Received", "Spans, data points and log events that the collector took, per second.", look.PER_SECOND,
                 low=0), *ask.RECEIVED, log=True,
        ),
        lines(
            Text("Sent on", "Spans, data points and log events handed to Tempo, Loki and Prometheus's exporter, per "
                 "second. Sampling makes the spans fewer than those received.", look.PER_SECOND, low=0),
            *ask.SENT,
            log=True,
        ),
        lines(
            Text("Turned down", "Spans, data points and log events that the collector refused (memory limit) or "
                 "failed to take, in each interval.",
                 look.COUNT, low=0),
            *ask.TURNED_DOWN,
        ),
        lines(
            Text("Not sent", "Spans, data points and log events that the collector gave up sending, or dropped "
                 "because a queue was full, in each interval.",
                 look.COUNT, low=0),
            *ask.NOT_SENT,
        ),
        lines(
            Text("Sending queues", "How full the queues are. They are on disk and survive a restart of the collector. "
                 "Batches that do not fit are lost.", look.SHARE, low=0, high=1),
            ask.QUEUE_FILL,
            steps=((None, GOOD), (_FILLING, WARN)),
        ),
        lines(
            Text("Waiting to be sent", "Batches in each queue: while a store is down, its queue grows.",
                 look.COUNT, low=0),
            ask.QUEUE_ITEMS,
        ),
        lines(Text("The collector's memory", "Resident memory. Near its limit the collector refuses data.", look.BYTES,
                   low=0),
              ask.COLLECTOR_MEMORY),
        lines(
            Text("Scrapes", "How long Prometheus took to read each target.", look.SECONDS, low=0), ask.SCRAPE_SECONDS
        ),
        lines(Text("Samples", "Samples that each scrape returned.", look.COUNT, low=0), ask.SCRAPE_SAMPLES),
    )  # fmt: skip


def _traces() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Sampling decisions", "Traces kept, not kept, and dropped before a decision because too many "
                 "were open.", look.PER_MINUTE, low=0),
            ask.TRACE_DECISIONS,
            ask.TRACES_LOST,
            colors={"^sampled$": GOOD, "not_sampled": "text", "dropped": BAD},
        ),
        bars(
            Text("Why traces were kept", "Over the time shown, by the policy that kept them. Several policies may "
                 "keep one trace.",
                 look.COUNT, low=0, decimals=0),
            ask.TRACES_KEPT,
        ),
        lines(
            Text("Requests, counted twice", "Requests as the daemon counts them, and as the collector counts them "
                 "from spans before sampling. The lines differ where spans were lost.", look.PER_MINUTE, low=0),
            *ask.TOLD_TWICE,
            colors={"daemon": PLAIN, "spans": WARN},
            dashed=("spans",),
        ),
    )  # fmt: skip
