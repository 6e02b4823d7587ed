"""A fallback controller whose every answer a test sets: the seam's fake."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, FallbackLevel
from draftd.fallback.ladder import Hold, highest, rungs
from draftd.fallback.leases import Lease, Notice
from draftd.fallback.reports import CanaryReport, ProbeReport
from draftd.fallback.snapshot import FallbackState

T = TypeVar("T")

NOW = 1_750_000_000.0
LADDER = rungs(4, (3, 2), DRAFT_MODEL, (PROMPT_LOOKUP,))


ALERT = Notice(
    "DraftdAcceptanceDrift", "ab12", firing=True, starts_at=NOW - 60, level=FallbackLevel.SHORT_BLOCK, hard=False
)
LEASE = Lease(ALERT, NOW + 600)


def standing(**fields: Any) -> FallbackState:
    """At the top, with nothing asked, but for `fields`."""
    found = {
        "ladder": LADDER,
        "rung": 0,
        "since": NOW - 90,
        "cause": "",
        "hold": None,
        "demands": (),
        "leases": (),
        "wait": 300.0,
        "relapses": 0,
        "loaded_drafters": frozenset({DRAFT_MODEL}),
        "draft_weight_bytes": 1_400_000,
        "state_file": None,
    }
    return FallbackState(**{**found, **fields})


class FakeController:
    """Holds and releases as the real one would, on `NOW`; its futures are the test's to end."""

    def __init__(self, state: FallbackState | None = None) -> None:
        self.now = state or standing()
        self.probes: list[Future[ProbeReport]] = []
        self.runs: list[Future[CanaryReport]] = []
        self.reloads: list[Future[int]] = []
        self.forgets: list[bool] = []
        self.refusal: Exception | None = None

    def state(self) -> FallbackState:
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

    def reload_draft(self, *, forget: bool = False) -> Future[int]:
        self.forgets.append(forget)
        return self._begun(self.reloads)

    def _begun(self, kept: list[Future[T]]) -> Future[T]:
        if self.refusal is not None:
            raise self.refusal
        future: Future[T] = Future()
        kept.append(future)
        return future
