"""Latency and load: what a request waits for, and how much there is to do."""

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
        "What a request waits for, by how it was decoded; the load, and refused requests. Points on "
        "the lines are traces.",
        (
            Row("Latency by mode", _latency(alerting)),
            Row("Where it fell", _spread()),
            Row("Load", _load()),
            Row("How requests ended", _ended()),
            Row("Engine and server", _engine()),
            Row("Prompts that were known", _prefix()),
        ),
    )


def _quantiles(title: str, what: str, metric: Metric, line: float | None = None) -> Panel:
    text = Text(title, f"{what}: what half, 95 % and 99 % of the requests kept below.", look.SECONDS, low=0)
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
        _quantiles("Between chunks", "Between successive chunks of a request, one a step, which may hold several "
                                     "tokens",
                   catalog.INTER_CHUNK_DURATION),
    )  # fmt: skip


def _spread() -> tuple[Panel, ...]:
    return (
        spread(Text("First tokens", "How many first tokens came after how long.", look.SECONDS, 12),
               ask.heatmap(catalog.TIME_TO_FIRST_TOKEN)),
        spread(Text("Chunks", "How many chunks came how long after the one before.", look.SECONDS, 12),
               ask.heatmap(catalog.INTER_CHUNK_DURATION)),
    )  # fmt: skip


def _load() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Active and queued", "Requests in prefill or decoding, those that wait, those of them that wait for "
                 "memory, and how many may wait.", look.COUNT, low=0),
            ask.ACTIVE,
            ask.QUEUED,
            ask.HELD_BACK,
            ask.CAPACITY,
            colors={"^active": GOOD, "^queued": WARN, "^held": "purple", "capacity": BAD},
            dashed=("capacity",),
        ),
        lines(
            Text("Tokens in and out", "Tokens of prompts, counted when their request ends, and tokens emitted.",
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
                Text("Requests by outcome", "Requests that ended, by how. Refused ones are counted too.",
                     look.PER_MINUTE, low=0),
                ask.BY_OUTCOME,
                stacked=True,
                colors=look.OUTCOMES,
            ),
            tempo.FAILED,
            "Requests that failed",
        ),
        lines(
            Text("Errors and refusals", "Share of the requests that failed or ran out of time, and of those refused.",
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
            Text("Key-value caches and weights", "Bytes of MLX arrays that the caches of the running requests hold, "
                 "how much they may, and the bytes of the weights, draft included.", look.BYTES, low=0),
            ask.KV_CACHE,
            ask.KV_CACHE_LIMIT,
            ask.WEIGHTS,
            dashed=("limit",),
        ),
        lines(
            Text("Calls by status", "Calls on the gRPC and the HTTP server, by status; health checks, reflection and "
                 "scrapes left out.", look.PER_MINUTE, low=0),
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
            Text("Known prompts", "Share of the prompt tokens that were not computed, since an earlier "
                 "request had left their keys and values; share of the requests that found such, and of those whose "
                 "texts are longer than the prefix cache has room for.", look.SHARE, low=0),
            ask.PREFIX_READ,
            ask.PREFIX_HITS,
            ask.PREFIX_UNFIT,
        ),
        lines(
            Text("Prefix cache, bytes", "Bytes held by keys and values of finished requests, and the most that may be: "
                 "less than was set while the machine's memory is under pressure.", look.BYTES, low=0),
            ask.PREFIX_USAGE,
            ask.PREFIX_LIMIT,
        ),
        lines(
            Text("Prefix cache, texts", "Texts whose keys and values are kept, those not counted that others continue.",
                 look.COUNT, low=0, decimals=0),
            ask.PREFIX_ENTRIES,
        ),
    )  # fmt: skip
