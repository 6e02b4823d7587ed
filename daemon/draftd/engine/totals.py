"""The engine's own count of all it did since it started."""

from __future__ import annotations

import copy
import threading

from draftd.core import DecodeRequest, DraftCounts, DrafterKind, FinishReason, Outcome, RoundResult
from draftd.engine.observer import EngineStatus


class Totals:
    """Kept by listening as everyone else does: an `EngineObserver`. Written on the engine thread, read on any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = DraftCounts()
        self._finished: dict[FinishReason, int] = {}
        self._drafter_errors = self._verifier_errors = 0
        self.seconds_per_request = 1.0

    def on_round(self, request: DecodeRequest, result: RoundResult, gap: float | None) -> None:
        with self._lock:
            self._counts.add(result)

    def on_drafter_error(self, request: DecodeRequest, message: str) -> None:
        with self._lock:
            self._drafter_errors += 1

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        with self._lock:
            self._verifier_errors += 1

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        stats = outcome.stats
        with self._lock:
            self._finished[outcome.reason] = self._finished.get(outcome.reason, 0) + 1
            if stats.finished is not None and stats.scheduled is not None:
                self.seconds_per_request += 0.1 * (stats.finished - stats.scheduled - self.seconds_per_request)

    def status(
        self,
        *,
        active: int,
        queued: int,
        queue_capacity: int,
        kv_cache_bytes: int,
        weight_bytes: int,
        observer_errors: int,
        loaded: frozenset[DrafterKind],
        draft_weight_bytes: int,
    ) -> EngineStatus:
        with self._lock:
            return EngineStatus(
                active=active,
                queued=queued,
                queue_capacity=queue_capacity,
                kv_cache_bytes=kv_cache_bytes,
                weight_bytes=weight_bytes,
                counts=copy.deepcopy(self._counts),
                finished=dict(self._finished),
                drafter_errors=self._drafter_errors,
                verifier_errors=self._verifier_errors,
                observer_errors=observer_errors,
                loaded=loaded,
                draft_weight_bytes=draft_weight_bytes,
            )
