"""Queries of requests: counts, latencies, outcomes; and of the engine's memory and queue."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards import ratios
from dashboards.alerts_service import OWN_REFUSALS
from dashboards.queries.query import (
    ENGINE,
    FRESH,
    MACHINE,
    MODE,
    RANGE,
    RATE,
    REQUESTS,
    WORKLOAD,
    Query,
    counted,
    gauge,
    grouped,
    or_nought,
    over,
    per_minute,
    series,
    shown,
)
from dashboards.ratios import INSTANCE, label, matching, summed
from draftd.core import DaemonState
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.catalog import Metric

OUTCOME, ERROR, TOKEN_TYPE = label(a.OUTCOME), label(a.ERROR_TYPE), label(a.TOKEN_TYPE)
METHOD, STATUS = label(a.RPC_METHOD), label(a.RPC_STATUS)
ROUTE, HTTP_STATUS = label(a.HTTP_ROUTE), label(a.HTTP_STATUS)
QUANTILES: tuple[float, ...] = (0.5, 0.95, 0.99)

_FAILED = f'{OUTCOME}=~"error|deadline"'
_REFUSED, _ANSWERED = f'{OUTCOME}="refused"', f'{OUTCOME}!="refused"'
_SERVING = f'{label(a.DAEMON_STATE)}="{DaemonState.SERVING}"'
_INPUT = f'{TOKEN_TYPE}="input"'
_OUTPUT = f'{TOKEN_TYPE}="output"'


def _ended(*selectors: str) -> str:
    """Selects daemons with recent requests that match."""
    return f"{counted(catalog.REQUESTS, matching(MACHINE, *selectors), FRESH, (INSTANCE,))} > 0"


# A serving daemon accepts requests and has not refused all recent ones for a reason of its own.
_own = f'{ERROR}=~"{"|".join(OWN_REFUSALS)}"'
_refusing = f"({_ended(_REFUSED, _own)} unless on ({INSTANCE}) {_ended(_ANSWERED)})"
_loaded = f"on ({INSTANCE}) {series(catalog.QUEUE_CAPACITY, ENGINE)}"
_serving = f"{gauge(catalog.STATE, matching(MACHINE, _SERVING))} == 1 and {_loaded}"
SERVING = Query(or_nought(f"count({_serving} unless on ({INSTANCE}) {_refusing})"), "daemons", instant=True)


def share(of: str, window: str) -> str:
    """Returns the share of requests with an outcome; zero if there were requests but none with it."""
    return over(or_nought(counted(catalog.REQUESTS, matching(REQUESTS, of), window)),
                counted(catalog.REQUESTS, REQUESTS, window))  # fmt: skip


ERROR_SHARE_NOW = Query(share(_FAILED, RANGE), "errors", instant=True)
REFUSED_SHARE_NOW = Query(share(_REFUSED, RANGE), "refused", instant=True)
SHARES = (Query(share(_FAILED, RATE), "errors"), Query(share(_REFUSED, RATE), "refused"))
BY_OUTCOME = Query(per_minute(catalog.REQUESTS, REQUESTS, (OUTCOME,)), shown(OUTCOME))
BY_WORKLOAD = Query(per_minute(catalog.REQUESTS, REQUESTS, (WORKLOAD,)), shown(WORKLOAD))
BY_ERROR = Query(
    counted(catalog.REQUESTS, matching(REQUESTS, f'{ERROR}!=""'), RANGE, (OUTCOME, ERROR)),
    f"{shown(OUTCOME)}: {shown(ERROR)}",
    instant=True,
)

TOKENS_NOW = Query(summed(catalog.TOKENS, matching(REQUESTS, _OUTPUT), RATE), "tokens/s", instant=True)
TOKENS_BY_MODE = Query(summed(catalog.TOKENS, matching(REQUESTS, _OUTPUT), RATE, (MODE,)), shown(MODE))
TOKENS_BY_TYPE = Query(summed(catalog.TOKENS, REQUESTS, RATE, (TOKEN_TYPE,)), shown(TOKEN_TYPE))


def _traced(histogram: Metric) -> bool:
    """Returns True if the histogram's observations link to traces. Those of chunks do not: the engine, which counts
    them, has no spans."""
    return histogram is not catalog.INTER_CHUNK_DURATION


def quantiles(histogram: Metric, by: Sequence[str] = (MODE,)) -> tuple[Query, ...]:
    """Returns p50, p95 and p99, with the traces behind them if they are known."""
    legend = " ".join(shown(one) for one in by)
    # Leaves out requests that were refused before they had a mode.
    selector = matching(REQUESTS, *(f'{one}!=""' for one in by))
    return tuple(
        Query(
            ratios.latency(q, histogram, selector, RATE, by),
            f"p{q * 100:g} {legend}".strip(),
            exemplar=_traced(histogram),
        )
        for q in QUANTILES
    )


def quantile_now(quantile: float, histogram: Metric) -> Query:
    return Query(ratios.latency(quantile, histogram, REQUESTS, RANGE), f"p{quantile * 100:g}", instant=True)


def heatmap(histogram: Metric) -> Query:
    """Returns the number of observations per bucket, over time."""
    buckets = f"sum by (le) (increase({histogram.prometheus}_bucket{{{REQUESTS}}}[{RATE}]))"
    return Query(buckets, shown("le"), exemplar=_traced(histogram), heatmap=True)


TTFT = quantiles(catalog.TIME_TO_FIRST_TOKEN, ())
TTFT_NOW = quantile_now(0.95, catalog.TIME_TO_FIRST_TOKEN)
RPC_BY_STATUS = Query(
    f"sum by ({STATUS}) (rate({catalog.RPC_DURATION.prometheus}_count{{{MACHINE}}}[{RATE}])) * 60",
    shown(STATUS),
)
RPC_P95 = Query(
    ratios.latency(0.95, catalog.RPC_DURATION, MACHINE, RATE, (METHOD,)),
    shown(METHOD),
    exemplar=True,
)

HTTP_BY_STATUS = Query(
    f"sum by ({HTTP_STATUS}) (rate({catalog.HTTP_DURATION.prometheus}_count{{{MACHINE}}}[{RATE}])) * 60",
    f"HTTP {shown(HTTP_STATUS)}",
)
HTTP_P95 = Query(
    ratios.latency(0.95, catalog.HTTP_DURATION, matching(MACHINE, f'{ROUTE}!=""'), RATE, (ROUTE,)),
    shown(ROUTE),
    exemplar=True,
)

ACTIVE = Query(grouped(gauge(catalog.ACTIVE_REQUESTS, ENGINE)), "active")
QUEUED = Query(grouped(gauge(catalog.QUEUED_REQUESTS, ENGINE)), "queued")
CAPACITY = Query(grouped(gauge(catalog.QUEUE_CAPACITY, ENGINE)), "queue's capacity")
QUEUE_FILL_NOW = Query(
    over(grouped(gauge(catalog.QUEUED_REQUESTS, ENGINE)), grouped(gauge(catalog.QUEUE_CAPACITY, ENGINE))),
    "of the queue",
    instant=True,
)
PREFIX_READ = Query(
    over(counted(catalog.PREFIX_READ, ENGINE, RATE), counted(catalog.TOKENS, matching(ENGINE, _INPUT), RATE)),
    "of the prompt tokens",
)
PREFIX_HITS = Query(
    over(counted(catalog.PREFIX_HITS, ENGINE, RATE), counted(catalog.PREFIX_LOOKUPS, ENGINE, RATE)),
    "of the requests",
)
PREFIX_UNFIT = Query(
    over(counted(catalog.PREFIX_UNFIT, ENGINE, RATE), counted(catalog.PREFIX_LOOKUPS, ENGINE, RATE)),
    "of the requests: texts too long for it",
)
PREFIX_USAGE = Query(grouped(gauge(catalog.PREFIX_USAGE, ENGINE), (INSTANCE,)), f"held · {shown(INSTANCE)}")
PREFIX_LIMIT = Query(grouped(gauge(catalog.PREFIX_LIMIT, ENGINE), (INSTANCE,)), f"at most · {shown(INSTANCE)}")
PREFIX_ENTRIES = Query(grouped(gauge(catalog.PREFIX_ENTRIES, ENGINE), (INSTANCE,)), shown(INSTANCE))
KV_CACHE = Query(grouped(gauge(catalog.KV_CACHE, ENGINE), (INSTANCE,)), f"key-value caches · {shown(INSTANCE)}")
KV_CACHE_LIMIT = Query(
    grouped(gauge(catalog.KV_CACHE_LIMIT, ENGINE), (INSTANCE,)), f"limit of the caches · {shown(INSTANCE)}"
)
HELD_BACK = Query(grouped(gauge(catalog.HELD_BACK_REQUESTS, ENGINE)), "held back for memory")
WEIGHTS = Query(grouped(gauge(catalog.WEIGHTS, ENGINE), (INSTANCE,)), f"weights · {shown(INSTANCE)}")
