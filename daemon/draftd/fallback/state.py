"""The fallback at one moment: the level in force for those who plan requests, all of it for operators and gauges."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from draftd.core import DrafterName
from draftd.fallback.journal import Journal, Subject
from draftd.fallback.ladder import Hold, LadderLevel, Signal
from draftd.fallback.leases import Lease
from draftd.fallback.probes import CanaryReport, ProbeReport

log = logging.getLogger(__name__)


class LevelInForce:
    """Which level of `ladder` is in force: what plans ask for as their ceiling; the top at first. Each change is
    recorded. One thread moves it, any thread may ask."""

    def __init__(self, ladder: Sequence[LadderLevel], journal: Journal | None = None) -> None:
        self.ladder = tuple(ladder)
        self._journal = journal if journal is not None else Journal()
        self._now: tuple[int, Signal | None] = (0, None)

    @property
    def position(self) -> int:
        """Counted from the top, 0."""
        return self._now[0]

    @property
    def signal(self) -> Signal | None:
        """What the last change was made for; None until there was one."""
        return self._now[1]

    @property
    def level(self) -> LadderLevel:
        return self.ladder[self._now[0]]

    def move(self, position: int, signal: Signal) -> bool:
        """Acts on the next plan. False where that level is in force already: its first cause is kept."""
        before, after = self.level, self.ladder[position]
        if position == self._now[0]:
            return False
        self._now = position, signal
        self._journal.record(Subject.LEVEL, before.label, after.label, signal.cause, signal.evidence)
        log.info("level %s, was %s: %s", after.label, before.label, signal.text)
        return True

    def restore(self, position: int, signal: Signal | None) -> None:
        """Back to where an earlier run was: no transition, for nothing has changed."""
        self._now = position, signal


@dataclass(frozen=True, slots=True)
class FallbackState:
    """Times are seconds since 1970; `wait` is how long this level must have been in force before a step up.
    `state_file` None: nothing is kept over a restart. `missing`: drafters of the ladder that cannot be had here, and
    why. `drift`: by workload class, the CUSUM over its limit. `probe` and `canaries` are the last ones."""

    ladder: tuple[LadderLevel, ...]
    position: int
    since: float
    signal: Signal | None  # of the last step
    hold: Hold | None
    signals: tuple[Signal, ...]  # now
    leases: tuple[Lease, ...]
    wait: float
    relapses: int
    loaded_drafters: frozenset[DrafterName]
    draft_weight_bytes: int
    state_file: Path | None
    missing: Mapping[DrafterName, str] = field(default_factory=dict)
    drift: Mapping[str, float] = field(default_factory=dict)
    probe: ProbeReport | None = None
    canaries: CanaryReport | None = None
