"""A fallback controller whose every answer a test sets: the seam's fake."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from draftd.core import DrafterKind, FallbackLevel
from draftd.policy.ladder import Demand, Hold, Rung, highest, rungs
from draftd.policy.reports import CanaryReport, ProbeReport

T = TypeVar("T")

NOW = 1_750_000_000.0
LADDER = rungs(4, (3, 2), DrafterKind.DRAFT_MODEL, (DrafterKind.PROMPT_LOOKUP,))


@dataclass(frozen=True)
class Alert:
    name: str = "DraftdAcceptanceDrift"
    fingerprint: str = "ab12"
    starts_at: float = NOW - 60
    level: FallbackLevel = FallbackLevel.SHORT_BLOCK


@dataclass(frozen=True)
class Leased:
    notice: Alert = field(default_factory=Alert)
    until: float = NOW + 600


@dataclass(frozen=True)
class State:
    """At the top, with nothing asked."""

    ladder: tuple[Rung, ...] = LADDER
    rung: int = 0
    since: float = NOW - 90
    cause: str = ""
    hold: Hold | None = None
    demands: tuple[Demand, ...] = ()
    leases: tuple[Leased, ...] = ()
    wait: float = 300.0
    relapses: int = 0
    loaded_drafters: frozenset[DrafterKind] = frozenset({DrafterKind.DRAFT_MODEL})
    draft_weight_bytes: int = 1_400_000
    state_file: Path | None = None


class FakeController:
    """Holds and releases as the real one would, on `NOW`; its futures are the test's to end."""

    def __init__(self, state: State | None = None) -> None:
        self.now = state or State()
        self.probes: list[Future[ProbeReport]] = []
        self.runs: list[Future[CanaryReport]] = []
        self.reloads: list[Future[int]] = []
        self.refusal: Exception | None = None

    def state(self) -> State:
        return self.now

    def hold(self, level: FallbackLevel, expires_in: float | None) -> None:
        rung = highest(self.now.ladder, level)
        until = None if expires_in is None else NOW + expires_in
        self.now = replace(self.now, rung=rung, cause="hold: an operator's word", since=NOW, hold=Hold(rung, until))

    def release(self) -> bool:
        held = self.now.hold is not None
        self.now = replace(self.now, hold=None)
        return held

    def probe(self) -> Future[ProbeReport]:
        return self._begun(self.probes)

    def canaries(self) -> Future[CanaryReport]:
        return self._begun(self.runs)

    def reload_draft(self) -> Future[int]:
        return self._begun(self.reloads)

    def _begun(self, kept: list[Future[T]]) -> Future[T]:
        if self.refusal is not None:
            raise self.refusal
        future: Future[T] = Future()
        kept.append(future)
        return future
