"""The engine's observers, the one seam between decoding and everything that watches it, and the engine's status.

The engine calls every method on its thread; none may block. It catches, counts and drops what they raise: an observer
can never hurt a request."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from draftd.core import DecodeRequest, DrafterName, FinishReason, Origin, WorkloadClass
from draftd.counts import DraftCounts, StepCounts
from draftd.exactness import Exactness
from draftd.group import GroupStatus
from draftd.outcome import Outcome
from draftd.strategies import RemoteCounts, RemoteEstimate

_log = logging.getLogger(__name__)

_FEW_UNFIT, _UNFIT_SHARE = 3, 0.1  # of the requests: fewer texts that are too long need no other setting


class EngineObserver:
    """Receives each request's steps and end; this base class does nothing. Refused requests never reach the engine."""

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        """One sequence's step; `gap` is the time in seconds since its previous chunk, None for its first."""

    def on_round_trip(self, request: DecodeRequest, seconds: float) -> None:
        """A verdict came from the verifier: `seconds` after its step was sent, less the verifier's own time."""

    def on_drafter_error(self, request: DecodeRequest, drafter: DrafterName | None, message: str) -> None:
        """This drafter failed for this sequence, which goes on autoregressively."""

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        """A step with this sequence failed: it is prefilled again and goes on autoregressively, or ends in an error."""

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        """The request ended; called exactly once for each request that the inbox accepted."""


class FanOut(EngineObserver):
    """Calls several observers, in order. One that raises does not silence the others; the first error is logged.

    The daemon's own probes and canaries are not forwarded: only clients' requests are counted and shown."""

    def __init__(self, *observers: EngineObserver) -> None:
        self._observers = observers
        self.errors = 0

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        if request.origin is not Origin.CLIENT:
            return
        for observer in self._observers:  # not by `_tell`: this is called for each sequence of each step
            try:
                observer.on_step(request, result, gap)
            except Exception as error:
                self._count_failure(error)

    def on_round_trip(self, request: DecodeRequest, seconds: float) -> None:
        self._tell(request, lambda observer: observer.on_round_trip(request, seconds))

    def on_drafter_error(self, request: DecodeRequest, drafter: DrafterName | None, message: str) -> None:
        self._tell(request, lambda observer: observer.on_drafter_error(request, drafter, message))

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        self._tell(request, lambda observer: observer.on_verifier_error(request, message))

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        self._tell(request, lambda observer: observer.on_finish(request, outcome))

    def _tell(self, request: DecodeRequest, what: Callable[[EngineObserver], None]) -> None:
        if request.origin is not Origin.CLIENT:
            return
        for observer in self._observers:
            try:
                what(observer)
            except Exception as error:
                self._count_failure(error)

    def _count_failure(self, error: Exception) -> None:
        self.errors += 1
        if self.errors == 1:
            _log.warning(
                "a listener to the engine's events failed; requests go on, further failures are only counted",
                exc_info=error,
            )


@dataclass(frozen=True, slots=True)
class PrefixStatus:
    """The prefix cache, in memory and on disk. Clients' requests that ended since the engine started: `lookups`
    searched for a prefix, `hits` found one, `unfit` had a text too long for the store (the longest:
    `longest_unfit_tokens`). `read_tokens`: prompt tokens that the store supplied. `limit_bytes` falls while memory is
    short; 0 keeps nothing. `limit_tokens`: the longest text that fits. `entries`: stored texts that no other stored
    text continues. `disk_limit_bytes` does not bound pinned files. `disk_errors`, `pin_errors`: failed writes."""

    bytes: int = 0
    limit_bytes: int = 0
    entries: int = 0
    lookups: int = 0
    hits: int = 0
    read_tokens: int = 0
    disk_bytes: int = 0
    disk_limit_bytes: int = 0
    disk_files: int = 0
    pins: int = 0
    pinned_bytes: int = 0
    disk_errors: int = 0
    pin_errors: int = 0
    limit_tokens: int = 0
    unfit: int = 0
    longest_unfit_tokens: int = 0
    warning: str = ""

    def too_small(self, tokens: int, needed_bytes: int) -> str:
        """Returns a warning if many requests' texts were too long, else an empty text. `tokens`: the longest text that
        fits. `needed_bytes`: the store that the longest text so far would need."""
        if self.unfit < _FEW_UNFIT or self.unfit < self.lookups * _UNFIT_SHARE:
            return ""
        return (
            f"{self.unfit} of {self.lookups} requests had texts too long for the prefix cache, which has room for "
            f"{tokens:,} tokens: a request that begins with the same tokens computes the rest again; "
            f"engine.prefix_cache_bytes={needed_bytes} has room for the longest, {self.longest_unfit_tokens:,} tokens"
        )


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """The sequences that another daemon's target decodes, for clients or for this daemon itself. `counts`: sums over
    ended sequences. `late_drafted`, `late_accepted`: tokens of verdicts that came after the request's end. About a
    second old: `in_flight`, steps sent that have no verdict yet; `estimates`, expected speeds of a greedy text with the
    drafter in use, by workload class; `break_even`, the round trip in seconds below which drafting one step at a time
    is expected to pay, None before any draft."""

    counts: RemoteCounts = field(default_factory=RemoteCounts)
    late_drafted: int = 0
    late_accepted: int = 0
    estimates: Mapping[WorkloadClass, RemoteEstimate] = field(default_factory=dict)
    open_sequences: int = 0
    in_flight: int = 0
    break_even: float | None = None


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far the prompt of one client's request is prefilled: `processed_tokens` of its `prompt_tokens`, including
    `cached_tokens` from the prefix cache. `began`: when prefill began, in monotonic seconds."""

    request: str
    prompt_tokens: int
    cached_tokens: int
    processed_tokens: int
    began: float


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot of the engine and clients' requests. Counts are sums since the start; bytes are of MLX arrays.
    `weight_bytes` include `draft_weight_bytes`. `kv_cache_limit_bytes`: for running requests, 0 without a limit.
    `held_back`: queued requests that lack memory for their caches. `loaded`: drafters whose weights are loaded.
    `unloaded`: whether all weights are unloaded until the next request. `resting`: active sequences that wait for a
    step of their peer. `prefilled_tokens`: prompt tokens that the target computed. `exactness`: once it was
    measured."""

    counts: DraftCounts
    finished: Mapping[FinishReason, int]
    active: int = 0
    queued: int = 0
    queue_capacity: int = 0
    kv_cache_bytes: int = 0
    weight_bytes: int = 0
    drafter_errors: int = 0
    verifier_errors: int = 0
    observer_errors: int = 0  # what observers raised
    loaded: frozenset[DrafterName] = frozenset()
    draft_weight_bytes: int = 0
    prefix: PrefixStatus = PrefixStatus()
    kv_cache_limit_bytes: int = 0
    held_back: int = 0
    unloaded: bool = False
    resting: int = 0
    remote: RemoteStatus = field(default_factory=RemoteStatus)
    group: GroupStatus | None = None  # of a target over several ranks
    prompts: tuple[PromptProgress, ...] = ()
    prefilled_tokens: int = 0
    exactness: Exactness | None = None


class Totals(EngineObserver):
    """Sums since the engine started. Written on the engine thread, read on any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums = EngineStatus(DraftCounts(), {})
        self.seconds_per_request = 1.0

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        with self._lock:
            self._sums.counts.add(result)

    def on_drafter_error(self, request: DecodeRequest, drafter: DrafterName | None, message: str) -> None:
        with self._lock:
            self._sums = replace(self._sums, drafter_errors=self._sums.drafter_errors + 1)

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        with self._lock:
            self._sums = replace(self._sums, verifier_errors=self._sums.verifier_errors + 1)

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        stats, finished, prefix = outcome.stats, self._sums.finished, self._sums.prefix
        finished = {**finished, outcome.reason: finished.get(outcome.reason, 0) + 1}
        prefix = replace(
            prefix,
            lookups=prefix.lookups + stats.looked_up,
            hits=prefix.hits + (stats.cached_tokens > 0),
            read_tokens=prefix.read_tokens + stats.cached_tokens,
            unfit=prefix.unfit + (stats.unfit_tokens > 0),
            longest_unfit_tokens=max(prefix.longest_unfit_tokens, stats.unfit_tokens),
        )
        with self._lock:
            self._sums = replace(self._sums, finished=finished, prefix=prefix)
            if stats.finished is not None and stats.scheduled is not None:
                self.seconds_per_request += 0.1 * (stats.finished - stats.scheduled - self.seconds_per_request)

    def status(self) -> EngineStatus:
        """The sums counted here; all else is 0."""
        with self._lock:
            return replace(self._sums, counts=copy.deepcopy(self._sums.counts))
