"""A group of ranks on the metrics and on the resource."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.otlp import OtlpReceiver
from tests.unit.telemetry.scene import GROUP, STATUS, Scene


def test_rank_group_metrics_are_exported_per_rank_and_host(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    scene = open_scene(receiver.environ(), group=GROUP.id)
    scene.serve()
    scene.telemetry.shutdown(30.0)

    assert receiver.by("draftd.group.status", "draftd.group.state") == {
        "starting": 0, "serving": 1, "restarting": 0, "failed": 0,
    }  # fmt: skip
    losses = receiver.by("draftd.group.losses", "draftd.group.loss")
    assert losses == {"died": 2, "silent": 0, "stalled": 1, "behind": 0, "failed": 0}, "each begins at 0"
    totals = [receiver.total(f"draftd.group.{name}") for name in ("ranks", "starts", "records", "io")]
    assert totals == [2, 4, 812, 40_600]
    ranks = {"lag": {0: 0, 1: 2}, "records": {0: 812, 1: 810}, "memory.limit": {0: 16_000}}
    assert {name: receiver.by(f"draftd.rank.{name}", "draftd.rank.number") for name in ranks} == ranks
    assert receiver.by("draftd.rank.silence", "draftd.rank.host") == {"studio.local": 0.1, "mini.local": 0.8}
    (span,) = receiver.spans("chat nano")
    assert span.resource["draftd.group.id"] == GROUP.id, "spans are of the group as well"


def test_daemon_without_ranks_exports_no_group_metrics(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    scene = open_scene(receiver.environ(), status=replace(STATUS, group=None))
    scene.serve()
    scene.telemetry.shutdown(30.0)
    assert not [name for name in receiver.metric_names() if name.startswith(("draftd.group.", "draftd.rank."))]
    (span,) = receiver.spans("chat nano")
    assert "draftd.group.id" not in span.resource
