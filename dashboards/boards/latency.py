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
        "Where a request's time goes, by decoding mode; the load; refused requests. Points on the lines are traces.",
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
    text = Text(title, f"{what}: the median, the 95th and the 99th percentile.", look.SECONDS, low=0)
    steps = ((None, GOOD), (line, WARN)) if line is not None else ()
    return traces(lines(text, *ask.quantiles(metric), colors=look.QUANTILES, steps=steps), tempo.ENDED)


def _latency(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        _quantiles("Whole request", "From arrival to the end", catalog.REQUEST_DURATION),
        _quantiles("Time to first token", "From arrival to the first token, successes only; the line is where waiting "
                   "begins to be felt", catalog.TIME_TO_FIRST_TOKEN, alerting.ttft_floor_seconds),
        _quantiles("Time for each further token", "Time after the first token, for each further one, successes only",
                   catalog.TIME_PER_OUTPUT_TOKEN),
        _quantiles("In the queue", "From arrival until scheduled", catalog.QUEUE_DURATION),
        _quantiles("Prefill", "From scheduled until the whole prompt was in the cache", catalog.PREFILL_DURATION),
        _quantiles("Between chunks", "Between successive chunks of a request. Each step sends one chunk of one or "
                   "more tokens",
                   catalog.INTER_CHUNK_DURATION),
    )  # fmt: skip


def _spread() -> tuple[Panel, ...]:
    return (
        spread(Text("First tokens", "Number of requests by time to their first token.", look.SECONDS, 12),
               ask.heatmap(catalog.TIME_TO_FIRST_TOKEN)),
        spread(Text("Chunks", "Number of chunks by time since the chunk before.", look.SECONDS, 12),
               ask.heatmap(catalog.INTER_CHUNK_DURATION)),
    )  # fmt: skip


def _load() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Active and queued", "Requests in prefill or decoding, requests in the queue, those held back for "
                 "lack of memory, and the queue's capacity.", look.COUNT, low=0),
            ask.ACTIVE,
            ask.QUEUED,
            ask.HELD_BACK,
            ask.CAPACITY,
            colors={"^active": GOOD, "^queued": WARN, "^held": "purple", "capacity": BAD},
            dashed=("capacity",),
        ),
        lines(
            Text("Tokens in and out", "Prompt tokens, counted when their request ends, and tokens emitted.",
                 look.TOKENS_PER_SECOND, low=0),
            ask.TOKENS_BY_TYPE,
            colors={"input": "purple", "output": PLAIN},
        ),
        lines(
            Text("Requests by workload", "Requests that ended, by kind of text.", look.PER_MINUTE, low=0),
            ask.BY_WORKLOAD,
            stacked=True,
        ),
    )  # fmt: skip


def _ended() -> tuple[Panel, ...]:
    return (
        traces(
            lines(
                Text("Requests by outcome", "Requests that ended, by outcome, refused ones included.",
                     look.PER_MINUTE, low=0),
                ask.BY_OUTCOME,
                stacked=True,
                colors=look.OUTCOMES,
            ),
            tempo.FAILED,
            "Requests that failed",
        ),
        lines(
            Text("Errors and refusals", "Share of requests that failed or ran out of time, and share refused.",
                 look.SHARE, low=0),
            *ask.SHARES,
            colors={"errors": BAD, "refused": WARN},
        ),
        bars(
            Text("What went wrong", "Requests over the time shown that did not end well, by outcome and class of "
                 "error.", look.COUNT, low=0, decimals=0, no_value="none"),
            ask.BY_ERROR,
            steps=((None, WARN),),
        ),
    )  # fmt: skip


def _engine() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Key-value caches and weights", "Bytes of MLX arrays in the caches of running requests, their limit, "
                 "and the bytes of the weights, draft included.", look.BYTES, low=0),
            ask.KV_CACHE,
            ask.KV_CACHE_LIMIT,
            ask.WEIGHTS,
            dashed=("limit",),
        ),
        lines(
            Text("Calls by status", "Calls on the gRPC and the HTTP server, by status, without health checks, "
                 "reflection and scrapes.", look.PER_MINUTE, low=0),
            ask.RPC_BY_STATUS,
            ask.HTTP_BY_STATUS,
            stacked=True,
            colors=look.STATUSES,
        ),
        lines(
            Text("Calls, p95", "95 % of calls ended within this time, by method or path.", look.SECONDS, low=0),
            ask.RPC_P95,
            ask.HTTP_P95,
        ),
    )  # fmt: skip


def _prefix() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Prefix cache, hits", "Share of prompt tokens read from the prefix cache, share of requests that "
                 "read any, and share of requests whose text is too long for the cache.", look.SHARE, low=0),
            ask.PREFIX_READ,
            ask.PREFIX_HITS,
            ask.PREFIX_UNFIT,
        ),
        lines(
            Text("Prefix cache, bytes", "Bytes of keys and values kept from finished requests, and their limit. "
                 "Memory pressure lowers the limit.", look.BYTES, low=0),
            ask.PREFIX_USAGE,
            ask.PREFIX_LIMIT,
        ),
        lines(
            Text("Prefix cache, texts", "Texts whose keys and values are kept. A text that is the beginning of "
                 "another is not counted.",
                 look.COUNT, low=0, decimals=0),
            ask.PREFIX_ENTRIES,
        ),
    )  # fmt: skip
