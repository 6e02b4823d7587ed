"""Telemetry health: what of all this was lost, where, and whether what the other dashboards show can be believed."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.boards import look
from dashboards.panels import BAD, GOOD, PLAIN, WARN, Panel, Text, bars, lines, single, states, tile
from dashboards.queries import pipeline as ask
from dashboards.settings import Alerting

_FILLING = 0.5  # of a queue


def board(alerting: Alerting) -> Board:
    return Board(
        "telemetry",
        "Telemetry health",
        "What the daemon dropped, what the collector refused, queued or could not send, and the gaps in what "
        "Prometheus "
        "has. Metrics lose nothing over a gap: counters are cumulative, and the next export carries all.",
        (
            Row("Over the time shown", _figures()),
            Row("Is it up", _up()),
            Row("Out of the daemon", _daemon()),
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
            tile("Targets", "Whether Prometheus reaches all that it scrapes of the collector.", look.LEVEL),
            ask.TARGETS_NOW,
            words=look.UP,
        ),
        single(
            tile("Covered", "Share of the time shown for which data of a daemon arrived. The rest is a gap: no "
                 "daemon, or no way from it.", look.SHARE, decimals=1),
            ask.COVERAGE,
            steps=((None, WARN), (0.999, GOOD)),
        ),
        single(
            tile("Lost by the daemon", "Spans and log events that found the daemon's queue full, or that the "
                 "collector did not take after all attempts.", look.COUNT, decimals=0),
            *ask.LOST_NOW,
            steps=well,
        ),
        single(
            tile("Lost by the collector", "Spans, data points and log events that it refused, could not queue, or "
                 "gave up sending.", look.COUNT, decimals=0),
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
            Text("Arrivals", "Whether a daemon's data arrives. It is grey where Prometheus knows nothing of it.",
                 look.LEVEL),
            (ask.ARRIVING, look.ARRIVING),
        ),
        states(Text("What Prometheus scrapes", "Whether each target answered: what the collector offers of draftd, "
                    "and its own metrics.", look.LEVEL), (ask.TARGETS, look.UP)),
        lines(
            Text("Data points exported", "Data points a second that each daemon handed over. A dip to nought is a "
                 "gap.", look.PER_SECOND, low=0),
            ask.POINTS,
        ),
    )  # fmt: skip


def _daemon() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Delivered", "Spans and log events a second that the collector took from the daemon.",
                 look.PER_SECOND, low=0),
            *ask.EXPORTED,
        ),
        lines(
            Text("Lost on the way out", "Dropped because the daemon's queue was full, or not delivered, in the "
                 "interval before. Data points that were not delivered come with the next export.", look.COUNT, low=0),
            *ask.LOST,
            colors={"^spans not": BAD, "^spans dropped": "dark-red", "^log events not": WARN,
                    "^log events dropped": "dark-orange", "^data points": "text"},
        ),
        lines(
            Text("The daemon's queues", "How full they are. What finds one full is dropped; no request waits for it.",
                 look.SHARE, low=0, high=1),
            *ask.SDK_QUEUES,
            steps=((None, GOOD), (_FILLING, WARN)),
        ),
        lines(
            Text("Failures of telemetry, by part", "Failures of telemetry itself, in the interval before.",
                 look.COUNT, 24, 5, low=0, no_value="none"),
            ask.TELEMETRY_ERRORS,
        ),
    )  # fmt: skip


def _collector() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Received", "What the collector took, a second.", look.PER_SECOND, low=0), *ask.RECEIVED, log=True,
        ),
        lines(
            Text("Sent on", "What it handed to Tempo, Loki, and Prometheus's exporter, a second. Fewer spans than "
                 "came: the sampling.", look.PER_SECOND, low=0),
            *ask.SENT,
            log=True,
        ),
        lines(
            Text("Turned down", "What it refused (memory limit) or failed to take, in the interval before.",
                 look.COUNT, low=0),
            *ask.TURNED_DOWN,
        ),
        lines(
            Text("Not sent", "What it gave up sending, or dropped because a queue was full, in the interval before.",
                 look.COUNT, low=0),
            *ask.NOT_SENT,
        ),
        lines(
            Text("Sending queues", "How full they are. They are on disk, and outlive the collector. What finds one "
                 "full is lost.", look.SHARE, low=0, high=1),
            ask.QUEUE_FILL,
            steps=((None, GOOD), (_FILLING, WARN)),
        ),
        lines(
            Text("Waiting to be sent", "Batches in each queue: while a store is down, its queue grows.",
                 look.COUNT, low=0),
            ask.QUEUE_ITEMS,
        ),
        lines(Text("The collector's memory", "Resident memory. Near its limit it refuses.", look.BYTES, low=0),
              ask.COLLECTOR_MEMORY),
        lines(
            Text("Scrapes", "How long Prometheus took to read each target.", look.SECONDS, low=0), ask.SCRAPE_SECONDS
        ),
        lines(Text("Samples", "How many samples each read gave.", look.COUNT, low=0), ask.SCRAPE_SAMPLES),
    )  # fmt: skip


def _traces() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Sampling's decisions", "Traces kept, not kept, and dropped before a decision because too many "
                 "were open.", look.PER_MINUTE, low=0),
            ask.TRACE_DECISIONS,
            ask.TRACES_LOST,
            colors={"^sampled$": GOOD, "not_sampled": "text", "dropped": BAD},
        ),
        bars(
            Text("Why traces were kept", "Over the time shown, by the policy that asked; a trace may have several.",
                 look.COUNT, low=0, decimals=0),
            ask.TRACES_KEPT,
        ),
        lines(
            Text("Requests, counted twice", "Requests as the daemon counts them and as the collector makes them of "
                 "spans, before sampling. They part where spans were lost.", look.PER_MINUTE, low=0),
            *ask.TOLD_TWICE,
            colors={"daemon": PLAIN, "spans": WARN},
            dashed=("spans",),
        ),
    )  # fmt: skip
