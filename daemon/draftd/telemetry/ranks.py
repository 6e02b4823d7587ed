"""Metrics of a group of ranks, from the engine's status; none for a target within the daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftd.engine.observer import EngineStatus
from draftd.group import GroupState, GroupStatus, Loss, RankStatus
from draftd.telemetry import catalog_ranks as catalog
from draftd.telemetry.attributes import Metric
from draftd.telemetry.metrics import Observe, Values, observe_each
from draftd.telemetry.recording import ModelNames

_GROUP: Mapping[Metric, Callable[[GroupStatus], Values]] = {
    catalog.STATE: lambda g: {state.value: state is g.state for state in GroupState},
    catalog.RANKS: lambda g: len(g.ranks),
    catalog.STARTS: lambda g: g.starts,
    # All of them from the start: a counter that appears with its first loss shows no increase.
    catalog.LOSSES: lambda g: {loss.value: g.losses.get(loss, 0) for loss in Loss},
    catalog.RECORDS: lambda g: g.records,
    catalog.IO: lambda g: g.record_bytes,
}
_RANK: Mapping[Metric, Callable[[RankStatus], float | None]] = {
    catalog.MEMORY: lambda r: r.memory_bytes,
    catalog.MEMORY_LIMIT: lambda r: r.limit_bytes or None,
    catalog.EXECUTED: lambda r: r.records,
    catalog.LAG: lambda r: r.lag,
    catalog.COLLECTIVE_TIME: lambda r: r.collective_seconds,
    catalog.SILENCE: lambda r: r.seconds_silent,
}


def observed_ranks(status: Callable[[], EngineStatus | None], naming: ModelNames) -> dict[str, Observe]:
    """Returns the observers of a group's metrics by name."""

    def group() -> GroupStatus | None:
        engine_status = status()
        return None if engine_status is None else engine_status.group

    ranks = {metric: _each(read) for metric, read in _RANK.items()}
    return observe_each(group, {**_GROUP, **ranks}, naming.model_label)


def _each(read: Callable[[RankStatus], float | None]) -> Callable[[GroupStatus], Values]:
    return lambda group: {(rank.rank, rank.host): read(rank) for rank in group.ranks}
