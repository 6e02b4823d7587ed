"""A fake fallback controller whose answers a test sets."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, FallbackLevel
from draftd.fallback.ladder import Cause, Hold, Signal, highest, ladder_levels
from draftd.fallback.leases import Lease, Notice
from draftd.fallback.probes import CanaryReport, ProbeReport
from draftd.fallback.state import FallbackState
from draftd.planning.flag_file import FlagResolution
from draftd.planning.planner import FlagContext
from draftd.strategies import Strategy

T = TypeVar("T")

NOW = 1_750_000_000.0
LADDER = ladder_levels(4, (3, 2), DRAFT_MODEL, (PROMPT_LOOKUP,))


ALERT = Notice(
    "DraftdAcceptanceDrift", "ab12", firing=True, starts_at=NOW - 60, level=FallbackLevel.SHORT_BLOCK, hard=False
)
LEASE = Lease(ALERT, NOW + 600)


def fallback_state(**fields: Any) -> FallbackState:
    """Returns a state at the top level without any demand, except for `fields`."""
    found = {
        "ladder": LADDER,
        "position": 0,
        "since": NOW - 90,
        "signal": None,
        "hold": None,
        "signals": (),
        "leases": (),
        "wait": 300.0,
        "relapses": 0,
        "loaded_drafters": frozenset({DRAFT_MODEL}),
        "draft_weight_bytes": 1_400_000,
        "state_file": None,
    }
    return FallbackState(**{**found, **fields})


class FixedFlag:
    """A flag that always has the same value."""

    def __init__(self, value: bool = True, strategy: Strategy = Strategy.AUTO) -> None:
        self.value, self.way = value, strategy

    def strategy(self, context: FlagContext) -> FlagResolution:
        return FlagResolution(self.way.value, self.way.value, "STATIC")

    def evaluate(self, context: FlagContext) -> FlagResolution:
        return FlagResolution("on" if self.value else "off", self.value, "STATIC")


class FakeController:
    """Holds and releases levels as the real controller does, on the clock `NOW`. The test ends its futures."""

    def __init__(self, state: FallbackState | None = None) -> None:
        self.now = state or fallback_state()
        self.probes: list[Future[ProbeReport]] = []
        self.runs: list[Future[CanaryReport]] = []
        self.reloads: list[Future[int]] = []
        self.forgets: list[bool] = []
        self.refusal: Exception | None = None

    def state(self) -> FallbackState:
        return self.now

    def hold(self, level: FallbackLevel, expires_in: float | None) -> None:
        position = highest(self.now.ladder, level)
        until = None if expires_in is None else NOW + expires_in
        hold = Hold(position, until)
        signal = Signal(Cause.HOLD, level, hold.evidence)
        self.now = replace(self.now, position=position, signal=signal, since=NOW, hold=hold)

    def release(self) -> bool:
        held = self.now.hold is not None
        self.now = replace(self.now, hold=None)
        return held

    def probe(self) -> Future[ProbeReport]:
        return self._begun(self.probes)

    def canaries(self) -> Future[CanaryReport]:
        return self._begun(self.runs)

    def reload_draft(self, *, forget: bool = False) -> Future[int]:
        self.forgets.append(forget)
        return self._begun(self.reloads)

    def _begun(self, kept: list[Future[T]]) -> Future[T]:
        if self.refusal is not None:
            raise self.refusal
        future: Future[T] = Future()
        kept.append(future)
        return future
