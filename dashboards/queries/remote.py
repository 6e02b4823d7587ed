"""Queries of two daemons: the round trip to the remote, its gain and cost, and this daemon as a verifier."""

from __future__ import annotations

from dashboards import ratios
from dashboards.queries.query import (
    ENGINE,
    MACHINE,
    MODEL,
    RANGE,
    RATE,
    REQUESTS,
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
from draftd.telemetry import catalog_remote as remote
from draftd.telemetry.catalog import Metric

STRATEGY, QUALITY, VERIFIER = label(a.STRATEGY), label(a.QUALITY), label(a.VERIFIER)
CURRENCY = label(a.CURRENCY)
DIRECTION, SIGNAL = label(a.IO_DIRECTION), label(a.SIGNAL)
FROM, TO = label(a.REMOTE_FROM), label(a.REMOTE_TO)
_OUTPUT = f'{label(a.TOKEN_TYPE)}="output"'
_EDGE, _VERIFIER = series(remote.UP, ENGINE), series(remote.PEERS, MACHINE)  # series that only such daemons export


def _rate(metric: Metric, *by: str) -> str:
    return summed(metric, ENGINE, RATE, by)


def _each(metric: Metric, what: str) -> Query:
    """Returns a line for each daemon."""
    return Query(grouped(gauge(metric, ENGINE), (INSTANCE,)), f"{what} · {shown(INSTANCE)}")


# The link.
UP_NOW = Query(grouped(gauge(remote.UP, ENGINE), function="min"), "lowest", instant=True)
UP = Query(grouped(gauge(remote.UP, ENGINE), (MODEL, INSTANCE), "min"), f"link · {shown(INSTANCE)}")
LEVELS = Query(grouped(gauge(remote.LEVEL, ENGINE), (MODEL, INSTANCE), "min"), f"allowed · {shown(INSTANCE)}")
LEVEL_NOW = Query(grouped(gauge(remote.LEVEL, ENGINE), function="min"), "lowest", instant=True)
CHANGES = Query(
    counted(remote.TRANSITIONS, ENGINE, RANGE, (FROM, TO, SIGNAL)),
    f"{shown(FROM)} → {shown(TO)}, {shown(SIGNAL)}",
    instant=True,
)
ROUND_TRIPS = tuple(
    Query(ratios.latency(q, remote.ROUND_TRIP, ENGINE, RATE), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)
)
ROUND_TRIP_NOW = Query(ratios.latency(0.5, remote.ROUND_TRIP, ENGINE, RANGE), "p50", instant=True)
ROUND_TRIP_SPREAD = Query(
    f"sum by (le) (increase({remote.ROUND_TRIP.prometheus}_bucket{{{ENGINE}}}[{RATE}]))", "{{le}}", heatmap=True
)
BREAK_EVEN = _each(remote.BREAK_EVEN, "break-even")
IN_FLIGHT, OPEN = _each(remote.IN_FLIGHT, "steps in flight"), _each(remote.OPEN_SEQUENCES, "open sequences")

# The gain of drafting for the remote.
SPEEDUP = Query(grouped(gauge(remote.SPEEDUP, ENGINE), (INSTANCE,), "min"), shown(INSTANCE))
SPEEDUP_NOW = Query(grouped(gauge(remote.SPEEDUP, ENGINE), function="min"), "lowest", instant=True)
PER_VERDICT = Query(over(_rate(remote.TOKENS), _rate(remote.VERDICTS)), "tokens a verdict")
HIDDEN = Query(over(_rate(remote.HIDDEN), _rate(remote.VERDICTS)), "round trips hidden")
WASTED = Query(over(_rate(remote.WASTED), _rate(remote.PROPOSED)), "proposed tokens wasted")
HIDDEN_NOW = Query(
    over(summed(remote.HIDDEN, ENGINE, RANGE), summed(remote.VERDICTS, ENGINE, RANGE)), "hidden", instant=True
)
SENT = (Query(_rate(remote.STEPS), "steps"), Query(_rate(remote.VERDICTS), "verdicts"))
PROPOSED = Query(_rate(remote.PROPOSED), "tokens proposed")
_emitted = summed(catalog.TOKENS, matching(REQUESTS, _OUTPUT), RATE)
BY_VERIFIER = (
    Query(_rate(remote.TOKENS), "remote"),
    Query(f"clamp_min({_emitted} - {or_nought(_rate(remote.TOKENS))}, 0)", "local"),
)
BY_STRATEGY = Query(summed(catalog.TOKENS, matching(REQUESTS, _OUTPUT), RATE, (STRATEGY,)), shown(STRATEGY))
BYTES_PER_TOKEN = Query(over(_rate(remote.IO), _rate(remote.TOKENS)), "bytes")
BYTES_PER_TOKEN_NOW = Query(
    over(summed(remote.IO, ENGINE, RANGE), summed(remote.TOKENS, ENGINE, RANGE)), "both ways", instant=True
)
BYTES = Query(_rate(remote.IO, DIRECTION), shown(DIRECTION))
REMOTE_TIME = (
    Query(over(_rate(remote.QUEUE_TIME), _rate(remote.VERDICTS)), "waited there"),
    Query(over(_rate(remote.TARGET_TIME), _rate(remote.VERDICTS)), "its target"),
)

# Failures.
FAILED = tuple(
    Query(none_yet(counted(metric, ENGINE, RATE), RATE, _EDGE), what)
    for metric, what in (
        (remote.ERRORS, "errors"),
        (remote.FAILOVERS, "requests failed over"),
        (remote.REOPENED, "sequences resumed"),
        (remote.CONNECTIONS, "connections"),
        (remote.LATE, "late verdicts"),
    )
)
FAILOVERS_NOW = Query(none_yet(counted(remote.FAILOVERS, ENGINE, RANGE), RANGE, _EDGE), "failed over", instant=True)

# Answers by quality, and their cost.
ANSWERS = Query(
    counted(remote.ANSWERS, ENGINE, RANGE, (STRATEGY, QUALITY)), f"{shown(STRATEGY)}, {shown(QUALITY)}", instant=True
)
COST = Query(
    summed(remote.COST, ENGINE, RATE, (VERIFIER, CURRENCY)) + " * 3600", f"{shown(VERIFIER)}, {shown(CURRENCY)}"
)
COST_NOW = Query(counted(remote.COST, ENGINE, RANGE, (CURRENCY,)), shown(CURRENCY), instant=True)
# Counts only the answers of daemons with prices in that currency; other daemons have no cost to divide.
_priced = grouped(
    f"group by ({INSTANCE}, {CURRENCY}) (last_over_time({series(remote.COST, ENGINE)}[{RANGE}])) "
    f"* on ({INSTANCE}) group_left () {counted(remote.ANSWERS, ENGINE, RANGE, (INSTANCE,))}",
    (CURRENCY,),
)
COST_OF_ANSWER_NOW = Query(over(COST_NOW.expression, _priced), shown(CURRENCY), instant=True)
_planned = matching(REQUESTS, f'{STRATEGY}!=""')  # a request that was refused before planning has none
LATENCY = Query(
    over(
        f"sum by ({STRATEGY}) (rate({catalog.REQUEST_DURATION.prometheus}_sum{{{_planned}}}[{RATE}]))",
        f"sum by ({STRATEGY}) (rate({catalog.REQUEST_DURATION.prometheus}_count{{{_planned}}}[{RATE}]))",
    ),
    shown(STRATEGY),
)

# The verifier.
PEERS = (_each(remote.PEERS, "edges"), _each(remote.SEQUENCES, "open sequences"))
VERIFIED = (
    Query(_rate(remote.VERIFY_DRAFTED), "drafted"),
    Query(_rate(remote.VERIFY_ACCEPTED), "accepted"),
    Query(_rate(remote.VERIFY_TOKENS), "decided"),
)
PER_TARGET_SECOND = Query(
    over(_rate(remote.VERIFY_TOKENS, INSTANCE), _rate(remote.VERIFY_TARGET_TIME, INSTANCE)), shown(INSTANCE)
)
TARGET_SHARE = Query(_rate(remote.VERIFY_TARGET_TIME, INSTANCE), f"for edges · {shown(INSTANCE)}")
STALE = Query(over(_rate(remote.VERIFY_STALE), _rate(remote.VERIFY_STEPS)), "steps stale")
DISCARDED = Query(over(_rate(remote.VERIFY_DISCARDED), _rate(remote.VERIFY_TOKENS)), "tokens discarded")
UNVERIFIED = Query(
    over(_rate(remote.VERIFY_WASTED), f"({_rate(remote.VERIFY_WASTED)} + {_rate(remote.VERIFY_DRAFTED)})"),
    "proposed tokens dropped",
)
VERIFY_QUEUE = Query(over(_rate(remote.VERIFY_QUEUE_TIME), _rate(remote.VERIFY_VERDICTS)), "queue")
VERIFY_EVENTS = tuple(
    Query(none_yet(counted(metric, MACHINE, RATE), RATE, _VERIFIER), what)
    for metric, what in (
        (remote.VERIFY_CONNECTIONS, "connections"),
        (remote.VERIFY_OPENED, "sequences"),
        (remote.VERIFY_REFUSED, "refused"),
    )
)
VERIFY_BYTES = Query(_rate(remote.VERIFY_IO, DIRECTION), shown(DIRECTION))
