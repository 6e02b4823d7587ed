"""The engine's own count of all it did since it started."""

from __future__ import annotations

import copy
import threading

from draftd.core import DecodeRequest, DraftCounts, FinishReason, Outcome, RoundResult
from draftd.engine.observer import EngineStatus, PrefixStatus


class Totals:
    """Kept by listening as everyone else does: an `EngineObserver`. Written on the engine thread, read on any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = DraftCounts()
        self._finished: dict[FinishReason, int] = {}
        self._drafter_errors = self._verifier_errors = 0
        self._lookups = self._hits = self._read = 0  # of prefixes, and tokens
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
            self._lookups += stats.looked_up
            self._hits += stats.cached_tokens > 0
            self._read += stats.cached_tokens
            if stats.finished is not None and stats.scheduled is not None:
                self.seconds_per_request += 0.1 * (stats.finished - stats.scheduled - self.seconds_per_request)

    def status(
        self,
        *,
        active: int,
        queued: int,
        queue_capacity: int,
        kv_cache_bytes: int,
        observer_errors: int,
        held_back: int,
    ) -> EngineStatus:
        """What this counts, and what is told; of what is held only the running requests' caches."""
        with self._lock:
            return EngineStatus(
                active=active,
                queued=queued,
                queue_capacity=queue_capacity,
                kv_cache_bytes=kv_cache_bytes,
                weight_bytes=0,
                counts=copy.deepcopy(self._counts),
                finished=dict(self._finished),
                drafter_errors=self._drafter_errors,
                verifier_errors=self._verifier_errors,
                observer_errors=observer_errors,
                prefix=PrefixStatus(lookups=self._lookups, hits=self._hits, read_tokens=self._read),
                held_back=held_back,
            )
