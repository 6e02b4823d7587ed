"""The fallback's state as users see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from draftd.core import DrafterName, LadderLevel
from draftd.fallback.ladder import Hold, Signal
from draftd.fallback.leases import Lease
from draftd.fallback.probes import CanaryReport, ProbeReport
from draftd.fallback.remote_guard import RemoteState


@dataclass(frozen=True, slots=True)
class FallbackState:
    """The state shown to users. Times are seconds since 1970 by the present wall clock.

    `wait`: seconds that this level must be in force before a step up. `state_file` None: nothing survives a restart;
    `unsaved`: why the file is not up to date. `missing`: unavailable drafters of the ladder, and why. `drift`: see
    `SignalState.drift`. `remote` None: no remote. `since` 0: the ladder has never moved. `loading`: loaded and missing
    drafters are unknown yet."""

    ladder: tuple[LadderLevel, ...]
    position: int
    since: float
    signal: Signal | None  # the signal of the last step
    hold: Hold | None
    signals: tuple[Signal, ...]  # the active ones
    leases: tuple[Lease, ...]
    wait: float
    relapses: int
    loaded_drafters: frozenset[DrafterName]
    draft_weight_bytes: int
    state_file: Path | None
    unsaved: str = ""
    missing: Mapping[DrafterName, str] = field(default_factory=dict)
    drift: Mapping[str, float] = field(default_factory=dict)
    probe: ProbeReport | None = None
    canaries: CanaryReport | None = None
    remote: RemoteState | None = None
    loading: bool = False
