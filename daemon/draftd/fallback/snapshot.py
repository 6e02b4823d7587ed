"""The fallback at one moment, for those who ask: operators, and the gauges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from draftd.core import DecodeMode, DrafterName, FallbackLevel
from draftd.fallback.ladder import Demand, Hold, Rung
from draftd.fallback.leases import Lease
from draftd.fallback.reports import CanaryReport, ProbeReport


@dataclass(frozen=True, slots=True)
class FallbackState:
    """Times are seconds since 1970, `wait` is how long this rung must be stood on before a step up. `state_file` None:
    nothing is kept over a restart. `absent`: drafters of the ladder that cannot be had here, and why."""

    ladder: tuple[Rung, ...]
    rung: int
    since: float
    cause: str
    hold: Hold | None
    demands: tuple[Demand, ...]
    leases: tuple[Lease, ...]
    wait: float
    relapses: int
    loaded_drafters: frozenset[DrafterName]
    draft_weight_bytes: int
    state_file: Path | None
    absent: Mapping[DrafterName, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Readings:
    """What the gauges show. `demands` by signal, `drift` by workload class, `canary_scores` by decode mode; None is not
    known yet."""

    level: FallbackLevel
    rung: int = 0
    held: bool = False
    demands: Mapping[str, FallbackLevel] = field(default_factory=dict)
    drift: Mapping[str, float] = field(default_factory=dict)
    leases: int = 0
    probe_acceptance: float | None = None
    probe_speedup: float | None = None
    canary_scores: Mapping[str, float] = field(default_factory=dict)


def readings(
    state: FallbackState, drift: Mapping[str, float], probe: ProbeReport | None, canaries: CanaryReport | None
) -> Readings:
    """The same moment in figures."""
    demands: dict[str, FallbackLevel] = {}
    for demand in state.demands:
        lower = demands.get(demand.signal.value, FallbackLevel.FULL)
        demands[demand.signal.value] = min(lower, demand.level)
    scores: dict[str, float] = {}
    if canaries is not None and canaries.outcomes:
        scores[DecodeMode.AUTOREGRESSIVE.value] = canaries.score_autoregressive
        scores[DecodeMode.SPECULATIVE.value] = canaries.score_speculative
    return Readings(
        level=state.ladder[state.rung].level,
        rung=state.rung,
        held=state.hold is not None,
        demands=demands,
        drift=drift,
        leases=len(state.leases),
        probe_acceptance=None if probe is None else probe.acceptance,
        probe_speedup=None if probe is None else probe.speedup,
        canary_scores=scores,
    )
