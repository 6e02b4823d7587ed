"""What the engine tells the world: the one seam between decoding and everything that watches it.

Every method is called on the engine thread, must not block, and what it raises is caught, counted and dropped by the
engine: a watcher can never hurt a request."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from draftd.core import DecodeRequest, DrafterName, FinishReason, Origin, Outcome, WorkloadClass
from draftd.counts import DraftCounts, StepCounts
from draftd.group import GroupStatus
from draftd.strategies import RemoteCounts, RemoteEstimate

_log = logging.getLogger(__name__)

_FEW_UNFIT, _UNFIT_SHARE = 3, 0.1  # of the requests: fewer texts that are too long are no reason for another setting


class EngineObserver:
    """Hears of each request's steps and end; this one does nothing. What is refused never reaches the engine."""

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        """One sequence's step; `gap` is the time in seconds since its previous chunk, None for its first."""

    def on_round_trip(self, request: DecodeRequest, seconds: float) -> None:
        """A verdict on a step that was sent to another daemon came so long after it, the verifier's own time left
        out."""

    def on_drafter_error(self, request: DecodeRequest, drafter: DrafterName | None, message: str) -> None:
        """This drafter failed for this sequence, which goes on autoregressively."""

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        """A step with this sequence failed: it is prefilled anew and goes on autoregressively, or ends in an error."""

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        """The request's end, exactly once for each request that was accepted into the inbox."""


class FanOut(EngineObserver):
    """Tells several observers, in order. One that raises does not silence the others; the first time is logged.

    None hears of the daemon's own probes and canaries: whatever is counted or shown is of clients' requests.
    """

    def __init__(self, *observers: EngineObserver) -> None:
        self._observers = observers
        self.errors = 0

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        if request.origin is not Origin.CLIENT:
            return
        for observer in self._observers:  # not by `_tell`: this one is heard for each sequence of each step
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
                "an observer failed; requests are not affected, further failures are only counted", exc_info=error
            )


@dataclass(frozen=True, slots=True)
class PrefixStatus:
    """What is kept of finished requests' caches. `lookups`, `hits` and `read_tokens` are of clients' requests, since
    the engine started, counted as they end: those that looked for a prefix, those that found one, and the prompt tokens
    that were not computed because of it. `limit_bytes` is what may be held now, less while the machine's memory is
    short; 0 keeps nothing. `limit_tokens`: of the longest text that has room in it. `unfit`: those of them whose texts
    are longer than there is room for even while memory is not short, the longest of which has `longest_unfit_tokens`;
    `warning` says so if it happens often. `entries`: texts that are kept, those not counted that others continue. On
    disk: of all files, of which those of the `pins` are beyond `disk_limit_bytes`; `disk_errors` and `pin_errors` are
    writes that failed since the start."""

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
        """For people, where it is so for many requests. `tokens`: of the longest text that it has room for;
        `needed_bytes`: of the longest that there was."""
        if self.unfit < _FEW_UNFIT or self.unfit < self.lookups * _UNFIT_SHARE:
            return ""
        return (
            f"{self.unfit} of {self.lookups} requests had texts too long for the prefix cache, which has room for "
            f"{tokens:,} tokens: a request that begins with the same tokens computes the rest again; "
            f"engine.prefix_cache_bytes={needed_bytes} has room for the longest, {self.longest_unfit_tokens:,} tokens"
        )


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """Of sequences of another daemon's target, clients' or not: `open_sequences`, and `counts` of all that are over.
    Late verdicts' tokens: that were drafted, and of these accepted. As of about a second ago: steps `in_flight`, that
    have no verdict yet; `estimates`, by workload class, for a draft model and greedy text; and the round trip, in
    seconds, below which drafting one step at a time is expected to pay (`break_even`), None until anything was
    drafted."""

    counts: RemoteCounts = field(default_factory=RemoteCounts)
    late_drafted: int = 0
    late_accepted: int = 0
    estimates: Mapping[WorkloadClass, RemoteEstimate] = field(default_factory=dict)
    open_sequences: int = 0
    in_flight: int = 0
    break_even: float | None = None


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far the prompt of one client's request is prefilled: `processed_tokens` of its `prompt_tokens`, among them
    the `cached_tokens`, which the prefix store had. `began`: when the first of them were, in monotonic seconds."""

    request: str
    prompt_tokens: int
    cached_tokens: int
    processed_tokens: int
    began: float


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot of the engine and clients' requests. `counts` and `finished` are sums since it started; bytes are of
    MLX arrays held, the `draft_weight_bytes` among the `weight_bytes`. `kv_cache_bytes` are of running requests,
    `kv_cache_limit_bytes` is what they may take, 0 without a limit; `held_back` are those of the queued for whose
    caches there is no memory. `loaded`: drafters whose weights are held. `unloaded`: no weights are, until the
    next request. `resting`: of the active ones, those of peers without a step in hand. `prompts`: those that are being
    prefilled; `prefilled_tokens`: of all prompts, computed by the target since it started."""

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
        """What this counts; the rest is 0."""
        with self._lock:
            return replace(self._sums, counts=copy.deepcopy(self._sums.counts))
