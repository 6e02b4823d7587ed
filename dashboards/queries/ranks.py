"""Queries of several ranks of one target: the group's state and losses, and each rank's memory, waits and lag."""

from __future__ import annotations

from dashboards.queries.query import (
    ENGINE,
    MODEL,
    RANGE,
    RATE,
    Query,
    counted,
    gauge,
    grouped,
    none_yet,
    over,
    series,
    shown,
)
from dashboards.ratios import INSTANCE, label, matching, summed
from draftd.group import GroupState
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog_ranks as ranks
from draftd.telemetry.catalog import Metric

STATE, LOSS, RANK, HOST = label(a.GROUP_STATE), label(a.GROUP_LOSS), label(a.RANK), label(a.RANK_HOST)
#: States as numbers; the worst is the lowest.
FIGURES = {GroupState.FAILED: 0, GroupState.RESTARTING: 1, GroupState.STARTING: 2, GroupState.SERVING: 3}
SILENT_SECONDS = 10  # a rank reports every second; after this silence it counts as gone
_BY_RANK = (INSTANCE, RANK, HOST)
_GROUP = series(ranks.STATE, ENGINE)
_RANK = f"rank {shown(RANK)} · {shown(HOST)} · {shown(INSTANCE)}"


def _state() -> str:
    """Returns the number in FIGURES of each group's state."""
    selectors = ((matching(ENGINE, f'{STATE}="{state}"'), figure) for state, figure in FIGURES.items())
    return " or ".join(f"({gauge(ranks.STATE, selector)} == 1) * {figure}" for selector, figure in selectors)


def _reported(metric: Metric) -> str:
    """Returns a gauge by rank, for groups that serve and ranks whose last report is recent."""
    serving = series(ranks.STATE, matching(ENGINE, f'{STATE}="{GroupState.SERVING}"'))
    heard = f"{series(ranks.SILENCE, ENGINE)} < {SILENT_SECONDS}"
    return f"{gauge(metric, ENGINE)} and on ({INSTANCE}) {serving} == 1 and on ({', '.join(_BY_RANK)}) {heard}"


def _each(metric: Metric) -> Query:
    return Query(grouped(_reported(metric), _BY_RANK, "max"), _RANK)


# The group.
STATES = Query(grouped(_state(), (MODEL, INSTANCE), "min"), f"group · {shown(INSTANCE)}")
STATE_NOW = Query(grouped(_state(), function="min"), "worst", instant=True)
RANKS_NOW = Query(grouped(gauge(ranks.RANKS, ENGINE)), "ranks", instant=True)
LOSSES_NOW = Query(none_yet(counted(ranks.LOSSES, ENGINE, RANGE), RANGE, _GROUP), "lost", instant=True)
LOSSES = Query(counted(ranks.LOSSES, ENGINE, RANGE, (LOSS,)), shown(LOSS), instant=True)
LAG_NOW = Query(grouped(_reported(ranks.LAG), function="max"), "the last", instant=True)
SILENCE_NOW = Query(grouped(gauge(ranks.SILENCE, ENGINE), function="max"), "the longest", instant=True)
EVENTS = tuple(
    Query(none_yet(counted(metric, ENGINE, RATE), RATE, _GROUP), what)
    for metric, what in ((ranks.STARTS, "begun"), (ranks.LOSSES, "lost"))
)

# Each rank.
MEMORY = _each(ranks.MEMORY)
MEMORY_LIMIT = Query(grouped(_reported(ranks.MEMORY_LIMIT), _BY_RANK, "max"), f"limit of {_RANK}")
# An estimate, which may exceed the whole time.
COLLECTIVE = Query(f"clamp_max({summed(ranks.COLLECTIVE_TIME, ENGINE, RATE, _BY_RANK)}, 1)", _RANK)
COLLECTIVE_NOW = Query(
    f"clamp_max({grouped(summed(ranks.COLLECTIVE_TIME, ENGINE, RANGE, _BY_RANK), function='max')}, 1)",
    "at most",
    instant=True,
)
LAG = _each(ranks.LAG)
SILENCE = Query(grouped(gauge(ranks.SILENCE, ENGINE), _BY_RANK, "max"), _RANK)
EXECUTED = Query(summed(ranks.EXECUTED, ENGINE, RATE, _BY_RANK), _RANK)

# What rank 0 sends.
SENT = Query(summed(ranks.RECORDS, ENGINE, RATE, (INSTANCE,)), f"to each follower · {shown(INSTANCE)}")
EACH = Query(over(summed(ranks.IO, ENGINE, RATE), summed(ranks.RECORDS, ENGINE, RATE)), "bytes a record")
EACH_NOW = Query(over(summed(ranks.IO, ENGINE, RANGE), summed(ranks.RECORDS, ENGINE, RANGE)), "a record", instant=True)
BYTES = Query(summed(ranks.IO, ENGINE, RATE, (INSTANCE,)), f"to each follower · {shown(INSTANCE)}")
