"""Dashboard of latency and load: the parts of a request's time, and the number of requests."""

from __future__ import annotations

from dashboards.board import Board, Row, traces
from dashboards.boards import look
from dashboards.panels import BAD, GOOD, PLAIN, WARN, Panel, Text, bars, lines, spread
from dashboards.queries import serving as ask
from dashboards.queries import traces as tempo
from dashboards.settings import Alerting
from draftd.telemetry import catalog
from draftd.telemetry.catalog import Metric


def board(alerting: Alerting) -> Board:
    return Board(
        "latency",
        "Latency and load",
        "Where a request's time goes, by decoding mode; the load; refused requests. Exemplars (the points) are single "
        "requests and lead to their traces.",
        (
            Row("Latency by mode", _latency(alerting)),
            Row("Spread of latencies", _spread()),
            Row("Load", _load()),
            Row("How requests ended", _ended()),
            Row("Engine and server", _engine()),
            Row("Prefix cache", _prefix()),
        ),
    )


def _quantiles(title: str, what: str, metric: Metric, line: float | None = None) -> Panel:
    text = Text(title, f"{what}. Median, 95th and 99th percentile, by decoding mode.", look.SECONDS, low=0)
    steps = ((None, GOOD), (line, WARN)) if line is not None else ()
    return traces(lines(text, *ask.quantiles(metric), colors=look.QUANTILES, steps=steps), tempo.ENDED)


def _latency(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        _quantiles("Whole request",
                   "Time from a request's arrival to its end; failed and cancelled requests are included",
                   catalog.REQUEST_DURATION),
        _quantiles("Time to first token",
                   "Time from a request's arrival to its first token, successful requests only. Users hardly notice "
                   "waits below the dashed line",
                   catalog.TIME_TO_FIRST_TOKEN, alerting.ttft_floor_seconds),
        _quantiles("Time for each further token",
                   "A request's mean time per output token after the first, successful requests only",
                   catalog.TIME_PER_OUTPUT_TOKEN),
        _quantiles("In the queue",
                   "Time from a request's arrival until the scheduler takes it from the queue",
                   catalog.QUEUE_DURATION),
        _quantiles("Prefill",
                   "Time from leaving the queue until the whole prompt is in the KV cache",
                   catalog.PREFILL_DURATION),
        _quantiles("Between chunks",
                   "Time between successive chunks of a request. Each step sends one chunk of one or more tokens",
                   catalog.INTER_CHUNK_DURATION),
    )  # fmt: skip


def _spread() -> tuple[Panel, ...]:
    return (
        spread(Text("Spread of times to first token",
                    "Number of successful requests by time from arrival to first token, over time.", look.SECONDS, 12),
               ask.heatmap(catalog.TIME_TO_FIRST_TOKEN)),
        spread(Text("Spread of times between chunks",
                    "Number of chunks by time since the request's previous chunk, over time. Each step sends one "
                    "chunk of one or more tokens.", look.SECONDS, 12),
               ask.heatmap(catalog.INTER_CHUNK_DURATION)),
    )  # fmt: skip


def _load() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Active and queued",
                 "Active: requests in prefill or decoding. Queued: requests that wait. Held back: queued although "
                 "the batch has room, because memory is short. Dashed: how many may wait; beyond it, requests are "
                 "refused.", look.COUNT, low=0),
            ask.ACTIVE,
            ask.QUEUED,
            ask.HELD_BACK,
            ask.CAPACITY,
            colors={"^active": GOOD, "^queued": WARN, "^held": "purple", "capacity": BAD},
            dashed=("capacity",),
        ),
        lines(
            Text("Tokens in and out",
                 "Prompt tokens (input) per second, counted when their request ends, and output tokens per second, "
                 "counted as they are emitted.",
                 look.TOKENS_PER_SECOND, low=0),
            ask.TOKENS_BY_TYPE,
            colors={"input": "purple", "output": PLAIN},
        ),
        lines(
            Text("Requests by workload",
                 "Requests that ended, per minute, by kind of text as their caller labelled it.",
                 look.PER_MINUTE, low=0),
            ask.BY_WORKLOAD,
            stacked=True,
        ),
    )  # fmt: skip


def _ended() -> tuple[Panel, ...]:
    return (
        traces(
            lines(
                Text("Requests by outcome",
                     "Requests that ended, per minute, by outcome. stop and length are successes; refused requests "
                     "are included.",
                     look.PER_MINUTE, low=0),
                ask.BY_OUTCOME,
                stacked=True,
                colors=look.OUTCOMES,
            ),
            tempo.FAILED,
            "Requests that failed",
        ),
        lines(
            Text("Errors and refusals",
                 "Errors: share of all requests that failed or passed their deadline. Refused: share of all requests "
                 "that were refused.",
                 look.SHARE, low=0),
            *ask.SHARES,
            colors={"errors": BAD, "refused": WARN},
        ),
        bars(
            Text("What went wrong",
                 "Requests that failed, passed their deadline, were cancelled or were refused, over the time shown, "
                 "by outcome and class of error.", look.COUNT, low=0, decimals=0, no_value="none"),
            ask.BY_ERROR,
            steps=((None, WARN),),
        ),
    )  # fmt: skip


def _engine() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Key-value caches and weights",
                 "Memory of MLX arrays, for each daemon: the key-value caches of running requests, their limit "
                 "(dashed), and the weights, draft included.", look.BYTES, low=0),
            ask.KV_CACHE,
            ask.KV_CACHE_LIMIT,
            ask.WEIGHTS,
            dashed=("limit",),
        ),
        lines(
            Text("Calls by status",
                 "Calls per minute on the gRPC and the HTTP server, by status. Health checks, reflection and scrapes "
                 "are left out.", look.PER_MINUTE, low=0),
            ask.RPC_BY_STATUS,
            ask.HTTP_BY_STATUS,
            stacked=True,
            colors=look.STATUSES,
        ),
        lines(
            Text("Calls, p95",
                 "95 % of calls ended within this time, by gRPC method or HTTP path. A call that generates lasts "
                 "until its answer ends.", look.SECONDS, low=0),
            ask.RPC_P95,
            ask.HTTP_P95,
        ),
    )  # fmt: skip


def _prefix() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Prefix cache, hits",
                 "Share of the prompt tokens that came from the prefix cache and need no prefill, share of the "
                 "requests that found a cached prefix, and share of the requests whose text is too long for the "
                 "cache.", look.SHARE, low=0),
            ask.PREFIX_READ,
            ask.PREFIX_HITS,
            ask.PREFIX_UNFIT,
        ),
        lines(
            Text("Prefix cache, bytes",
                 "Memory of the prefix cache, for each daemon: keys and values kept from earlier requests, and their "
                 "limit. The limit falls under memory pressure.", look.BYTES, low=0),
            ask.PREFIX_USAGE,
            ask.PREFIX_LIMIT,
        ),
        lines(
            Text("Prefix cache, texts",
                 "Texts in the prefix cache of each daemon. A text that is the beginning of another is not counted.",
                 look.COUNT, low=0, decimals=0),
            ask.PREFIX_ENTRIES,
        ),
    )  # fmt: skip
