"""Metrics of a target that runs on several ranks; absent with one.

Counts of records, bytes and time in collectives start at 0 with each start of the group.
"""

from __future__ import annotations

from draftd.telemetry import attributes as a
from draftd.telemetry.attributes import InstrumentKind, metrics_of

_sum, _gauge = metrics_of(InstrumentKind.OBSERVABLE_COUNTER, a.MODEL), metrics_of(InstrumentKind.GAUGE, a.MODEL)
_rank_sum = metrics_of(InstrumentKind.OBSERVABLE_COUNTER, a.MODEL, a.RANK, a.RANK_HOST)
_rank_gauge = metrics_of(InstrumentKind.GAUGE, a.MODEL, a.RANK, a.RANK_HOST)

# The group.
STATE = _gauge(
    "draftd.group.status", "{state}", "1 for the state that the group of ranks is in, 0 for the others", a.GROUP_STATE
)
RANKS = _gauge("draftd.group.ranks", "{rank}", "Ranks of the group, rank 0 among them")
STARTS = _sum("draftd.group.starts", "{start}", "Times that the group began, the first among them")
LOSSES = _sum("draftd.group.losses", "{loss}", "Times that the group was lost, by why", a.GROUP_LOSS)
RECORDS = _sum("draftd.group.records", "{record}", "Records that rank 0 sent to each follower")
IO = _sum("draftd.group.io", "By", "Bytes of records that rank 0 sent to each follower")

# Each rank, as of its last report, about a second ago.
MEMORY = _rank_gauge("draftd.rank.memory.usage", "By", "MLX arrays that the rank holds")
MEMORY_LIMIT = _rank_gauge("draftd.rank.memory.limit", "By", "What it may hold; absent where that is not known")
EXECUTED = _rank_sum("draftd.rank.records", "{record}", "Records that the rank executed")
LAG = _rank_gauge("draftd.rank.lag", "{record}", "Records that rank 0 had sent and the rank had not executed")
COLLECTIVE_TIME = _rank_sum(
    "draftd.rank.collective.time",
    "s",
    "Time in collectives, as estimated from their number and the time that one took at load",
)
SILENCE = _rank_gauge("draftd.rank.silence", "s", "Time since the rank's last report")
