"""A group of ranks in words: its state, each rank, and why it was lost."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from draftd.cli.figures import percent, size
from draftd.cli.output import BAD, DIM, GOOD, WARN, Row
from draftd.group import GroupState
from draftd.v1 import control_pb2 as pb

_STYLES = {GroupState.SERVING: GOOD, GroupState.STARTING: WARN, GroupState.RESTARTING: BAD, GroupState.FAILED: BAD}
_SILENT_SECONDS = 3.0  # ranks report each second
_BEHIND = 64  # records; followers wait for the forward before the last
_MOST_RANKS = 8  # lines


def rows(status: pb.GetStatusResponse, collective: Mapping[int, float] | None = None) -> list[Row]:
    """Returns names and values; none for a target within the daemon. An empty name continues the line above.
    `collective`: the recent share of each rank's time in collectives."""
    if not status.HasField("group"):
        return []
    group = status.group
    lines = [("ranks", _state(group))]
    lines += [
        (f"rank {rank.rank}", _rank(rank, (collective or {}).get(rank.rank))) for rank in group.ranks[:_MOST_RANKS]
    ]
    if len(group.ranks) > _MOST_RANKS:
        lines.append(("", Text(f"and {len(group.ranks) - _MOST_RANKS} more", DIM)))
    if group.records:
        each = size(round(group.record_bytes / group.records))
        lines.append(("records", Text(f"{group.records} sent to each follower, {each} each")))
    if group.losses:
        times = sum(group.losses.values())
        whys = ", ".join(f"{count} {why}" for why, count in sorted(group.losses.items(), key=lambda rank: -rank[1]))
        lines.append(
            ("lost", Text.assemble((f"{times}: {whys}", WARN), (f" · {group.reason}" if group.reason else "", DIM)))
        )
    return lines


def _state(group: pb.GroupStatus) -> Text:
    sharing = f"{group.parallel} over " if group.parallel and group.backend else ""
    ranks = f"{len(group.ranks)} of one target" if group.ranks else ""
    how = ", ".join(filter(None, (ranks, sharing + group.backend)))
    shown = Text.assemble((group.state, _STYLES.get(GroupState(group.state), "")), f", {how}" if how else "")
    if group.HasField("restart"):
        shown.append(f", starts again in {group.restart.ToTimedelta().total_seconds():.0f} s", WARN)
    elif group.starts > 1:
        shown.append(f", start {group.starts}", DIM)
    return shown


def _rank(rank: pb.RankStatus, share: float | None) -> Text:
    memory = size(rank.memory_bytes) + (f" of {size(rank.limit_bytes)}" if rank.limit_bytes else "")
    seconds = rank.collective.ToTimedelta().total_seconds()
    together = f"{seconds:.0f} s exchanging data" if share is None else f"{percent(share)} of the time exchanging data"
    shown = Text(f"{rank.host}: {memory}, {together}")
    if rank.rank:
        shown.append(f", {rank.lag} behind", BAD if rank.lag > _BEHIND else "")
    silent = rank.silent.ToTimedelta().total_seconds()
    if silent >= _SILENT_SECONDS:
        shown.append(f", silent for {silent:.0f} s", BAD)
    return shown
