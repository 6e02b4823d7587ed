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
    "draftd.group.status", "{state}", "1 for the present state of the group of ranks, 0 for the others", a.GROUP_STATE
)
RANKS = _gauge("draftd.group.ranks", "{rank}", "Ranks of the group, rank 0 included")
STARTS = _sum("draftd.group.starts", "{start}", "How often the group started, the first start included")
LOSSES = _sum("draftd.group.losses", "{loss}", "How often the group was lost, by reason", a.GROUP_LOSS)
RECORDS = _sum("draftd.group.records", "{record}", "Records (operations) that rank 0 sent to each other rank")
IO = _sum("draftd.group.io", "By", "Bytes of the records that rank 0 sent to each other rank")

# Each rank, as of its last report, about a second ago.
MEMORY = _rank_gauge("draftd.rank.memory.usage", "By", "Memory of the rank's MLX arrays")
MEMORY_LIMIT = _rank_gauge("draftd.rank.memory.limit", "By", "Most memory that the rank may use; absent if unknown")
EXECUTED = _rank_sum("draftd.rank.records", "{record}", "Records (operations sent by rank 0) that the rank executed")
LAG = _rank_gauge("draftd.rank.lag", "{record}", "Records that rank 0 has sent and the rank has not executed yet")
COLLECTIVE_TIME = _rank_sum(
    "draftd.rank.collective.time",
    "s",
    "Estimated time in collectives, in which ranks exchange data: their number times the time that one took at load",
)
SILENCE = _rank_gauge("draftd.rank.silence", "s", "Time since the rank's last report")
