"""`draftd status` and `draftd top` on a group of ranks."""

from __future__ import annotations

from dataclasses import replace

from draftd.cli import ranks
from draftd.fronts.grpc import reply
from draftd.group import GroupState, GroupStatus, Loss, RankStatus
from draftd.v1 import control_pb2 as pb
from tests.unit.cli.top.snapshots import history, status
from tests.unit.cli.top.test_app import drawn

GROUP = GroupStatus(
    "1f3a90c2b7d4",
    GroupState.SERVING,
    "ring",
    "tensor",
    (
        RankStatus(0, "studio.local", 4_000_000_000, 16_000_000_000, 900, 0, 30.0, 0.1),
        RankStatus(1, "mini.local", 3_900_000_000, 0, 800, 100, 28.0, 4.2),
    ),
    {Loss.DIED: 1, Loss.STALLED: 2, Loss.SILENT: 0},
    "rank 1 (mini.local) is stalled: its step takes more than 20 s",
    records=900,
    record_bytes=45_000,
    starts=4,
)


def said(group: GroupStatus) -> list[str]:
    return [f"{name}: {text.plain}" for name, text in ranks.rows(pb.GetStatusResponse(group=reply.group(group)))]


def test_status_command_prints_memory_lag_and_faults_of_each_rank() -> None:
    assert ranks.rows(pb.GetStatusResponse()) == []
    assert said(GROUP) == [
        "ranks: serving, 2 of one target, tensor over ring, start 4",
        "rank 0: studio.local: 4.0 GB of 16.0 GB, 30 s exchanging data",
        "rank 1: mini.local: 3.9 GB, 28 s exchanging data, 100 behind, silent for 4 s",
        "records: 900 sent to each follower, 50 B each",
        "lost: 3: 2 stalled, 1 died · rank 1 (mini.local) is stalled: its step takes more than 20 s",
    ]
    away = replace(GROUP, state=GroupState.RESTARTING, ranks=(), records=0, restart_seconds=7.6, losses={})
    assert said(away) == ["ranks: restarting, tensor over ring, starts again in 8 s"]


def test_collective_time_share_per_rank_is_computed_between_two_status_snapshots() -> None:
    first, second = GROUP.ranks
    later = replace(GROUP, ranks=(replace(first, collective_seconds=35.0), replace(second, collective_seconds=28.5)))
    before, after = (status(group=reply.group(one)) for one in (GROUP, later))
    seen = history(before, after).now
    assert seen is not None
    assert seen.collective == {0: 0.5, 1: 0.05}
    anew = history(after, status(group=reply.group(replace(GROUP, starts=5)))).now
    assert anew is not None
    assert anew.collective == {}, "it began at zero again"


async def test_top_screen_shows_rank_panel_only_for_a_daemon_with_a_rank_group() -> None:
    shown = await drawn(status(group=reply.group(GROUP)))
    for word in ("rank 1", "studio.local: 4.0 GB of 16.0 GB", "2 stalled, 1 died"):
        assert word in shown
    assert "studio.local" not in await drawn(status())
