"""The one thread that owns MLX: it loads, prefills, decodes and closes.

Other threads talk to it through a bounded inbox and read its state; they never touch an MLX array.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from draftd.core import (
    DecodeRequest,
    DrafterKind,
    FinishReason,
    ModelInfo,
    Outcome,
    RequestStats,
    TokenSink,
)
from draftd.engine.model import LoadedModels, Tokenizer
from draftd.engine.observer import EngineObserver, EngineStatus, FanOut
from draftd.engine.totals import Totals
from draftd.errors import DraftdError, InvalidRequest, ModelLoadError, NotServing, QueueFull

if TYPE_CHECKING:
    from draftd.engine.scheduler import Scheduler

_log = logging.getLogger(__name__)

_JOIN_SECONDS = 10.0  # a round, even a slow one, is over by then
_IDLE_SECONDS = 0.5  # how long an idle engine sleeps when nobody wakes it
_MEASURE_ROUNDS = 32  # cache sizes are read this often
_CALIBRATION_SECONDS = 1.0  # of loading, spent on what a round costs


class EngineState(enum.StrEnum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class EngineWorker:
    """Runs the engine. `load(progress)` is called on the engine thread; `progress` takes a line for people."""

    def __init__(
        self,
        load: Callable[[Callable[[str], None]], LoadedModels],
        *,
        observer: EngineObserver,
        queue_capacity: int = 64,
        max_batch: int = 8,
        prefill_chunk: int = 512,
    ) -> None:
        self._load = load
        self._totals = Totals()
        self._observer = FanOut(self._totals, observer)
        self._capacity, self._max_batch, self._chunk = queue_capacity, max_batch, prefill_chunk
        self._thread = threading.Thread(target=self._run, name="draftd-engine", daemon=True)
        # Everything below is guarded by the lock, which no one holds while MLX works.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._settled = threading.Event()
        self._state = EngineState.LOADING
        self._progress, self._error = "", ""
        self._models: LoadedModels | None = None
        self._inbox: deque[tuple[DecodeRequest, TokenSink]] = deque()
        self._ending: dict[str, FinishReason] = {}
        self._closing = False
        self._drain_until = 0.0
        self._active = self._waiting = self._kv_bytes = 0
        self._seconds_per_request = 1.0  # moving average, for the retry delay

    # any thread

    def start(self) -> None:
        """Starts the thread; loading begins. Returns at once."""
        self._thread.start()

    def wait_ready(self, timeout: float) -> ModelInfo:
        """Waits for the models. Raises ModelLoadError with the reason, TimeoutError after `timeout` seconds."""
        if not self._settled.wait(timeout):
            raise TimeoutError(f"the model was not loaded within {timeout:g} s ({self.progress})")
        if self.state is EngineState.FAILED:
            raise ModelLoadError(self.error)
        return self.info

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def progress(self) -> str:
        return self._progress

    @property
    def error(self) -> str:
        return self._error

    @property
    def info(self) -> ModelInfo:
        return self._loaded().info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._loaded().tokenizer

    def submit(self, request: DecodeRequest, sink: TokenSink) -> None:
        """Queues a request. After this returns, `sink.on_finish` is called exactly once.

        Raises NotServing, QueueFull (with a retry delay) or InvalidRequest; then the sink hears nothing.
        """
        info = self.info
        _check(request, info)
        with self._lock:
            if self._closing or self._state is not EngineState.READY:
                raise NotServing("the daemon is draining and takes no new requests")
            queued = len(self._inbox) + self._waiting
            if queued >= self._capacity:
                wait = self._seconds_per_request * (queued + self._active) / self._max_batch
                raise QueueFull(
                    f"{queued} requests are waiting; at most {self._capacity} may",
                    retry_after=min(max(wait, 0.1), 30.0),
                )
            self._inbox.append((request, sink))
            self._wake.notify()

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Ends a request within one round. Ids that have ended already are ignored."""
        with self._lock:
            if self._state is EngineState.READY:
                self._ending.setdefault(request_id, reason)
                self._wake.notify()

    def status(self) -> EngineStatus:
        """A snapshot; never waits for the engine."""
        models = self._models
        with self._lock:
            active, queued, kv = self._active, len(self._inbox) + self._waiting, self._kv_bytes
        return self._totals.status(
            active=active,
            queued=queued,
            queue_capacity=self._capacity,
            kv_cache_bytes=kv,
            weight_bytes=0 if models is None else models.info.weight_bytes + models.info.draft_weight_bytes,
            observer_errors=self._observer.errors,
        )

    def close(self, drain_seconds: float = 0.0) -> bool:
        """Takes no more requests, lets running ones go on for `drain_seconds`, ends the rest as CANCELLED, joins.

        False when the thread did not end in time (it is a daemon thread: the process can still exit).
        """
        with self._lock:
            self._closing = True
            self._drain_until = time.monotonic() + drain_seconds
            self._wake.notify()
        if not self._thread.is_alive():
            return True
        self._thread.join(drain_seconds + _JOIN_SECONDS)
        return not self._thread.is_alive()

    def _loaded(self) -> LoadedModels:
        models = self._models
        if models is None:
            raise NotServing(self._error or f"the model is still loading ({self._progress})", retry_after=1.0)
        return models

    # the engine thread

    def _run(self) -> None:
        try:
            models = self._load(self._report)
            scheduler = self._scheduler(models)
        except Exception as error:
            self._error = error.message if isinstance(error, DraftdError) else f"{type(error).__name__}: {error}"
            self._state = EngineState.FAILED
            self._settled.set()
            return
        self._models = models
        self._progress = "ready"
        self._state = EngineState.READY
        self._settled.set()
        try:
            self._serve(scheduler, models.info.context_length)
        except BaseException as error:
            self._error = f"the engine stopped: {type(error).__name__}: {error}"
            scheduler.abort(FinishReason.ERROR, self._error)
            self._refuse_inbox(FinishReason.ERROR, self._error)
            self._state = EngineState.FAILED
            return
        self._state = EngineState.STOPPED

    def _serve(self, scheduler: Scheduler, context_length: int) -> None:
        from draftd.engine.batch import Row

        steps = 0
        while True:
            with self._lock:
                if scheduler.idle and not self._inbox and not self._closing:
                    self._wake.wait(_IDLE_SECONDS)
                arrived, self._inbox = self._inbox, deque()
                ending, self._ending = self._ending, {}
                self._waiting = scheduler.waiting + len(arrived)
                closing = self._closing
            for request, sink in arrived:
                scheduler.add(Row.of(request, sink, context_length))
            if ending:
                scheduler.end(ending)
            if closing and (scheduler.idle or time.monotonic() >= self._drain_until):
                scheduler.abort(FinishReason.CANCELLED)
                self._measure(scheduler.active, scheduler.waiting, scheduler.kv_cache_bytes)
                return
            if scheduler.idle:
                self._measure(0, 0, scheduler.kv_cache_bytes)
                continue
            members = scheduler.active
            scheduler.step()
            steps += 1
            changed = scheduler.active != members or steps % _MEASURE_ROUNDS == 0
            kv = scheduler.kv_cache_bytes if changed else self._kv_bytes
            self._measure(scheduler.active, scheduler.waiting, kv)

    def _measure(self, active: int, waiting: int, kv_bytes: int) -> None:
        with self._lock:
            self._active, self._waiting, self._kv_bytes = active, waiting, kv_bytes
            self._seconds_per_request = self._totals.seconds_per_request

    def _refuse_inbox(self, reason: FinishReason, error: str) -> None:
        with self._lock:
            arrived, self._inbox = self._inbox, deque()
            self._closing = True
        for request, sink in arrived:
            stats = RequestStats(prompt_tokens=len(request.prompt), arrival=request.arrival, finished=time.monotonic())
            outcome = Outcome(reason, stats, error=error)
            self._observer.on_finish(request, outcome)
            sink.on_finish(outcome)

    def _report(self, line: str) -> None:
        self._progress = line

    def _scheduler(self, models: LoadedModels) -> Scheduler:
        # Imported here: these bring MLX in, which must come after the BLAS that loading chose.
        from draftd.engine.calibration import measure
        from draftd.engine.costs import RoundCosts
        from draftd.engine.drafting import Drafter, DraftModel, PromptLookup
        from draftd.engine.scheduler import Scheduler
        from draftd.engine.verification import LocalVerifier

        info = models.info

        def drafters() -> dict[DrafterKind, Drafter]:
            made: dict[DrafterKind, Drafter] = {}
            if DrafterKind.DRAFT_MODEL in info.drafters and models.draft is not None:
                made[DrafterKind.DRAFT_MODEL] = DraftModel(models.draft, info.vocab_size)
            if DrafterKind.PROMPT_LOOKUP in info.drafters:
                made[DrafterKind.PROMPT_LOOKUP] = PromptLookup(info.vocab_size)
            return made

        costs = RoundCosts()
        if info.speculation_available:  # nothing else asks what a round costs
            self._report("measuring what a round costs")
            try:
                costs = RoundCosts(measure(models.target, info.vocab_size, self._max_batch, _CALIBRATION_SECONDS))
            except Exception as error:
                _log.warning("what a round costs could not be measured; it is learnt from requests", exc_info=error)
        return Scheduler(
            verifier=lambda: LocalVerifier(models.target, info.vocab_size),
            drafters=drafters,
            eos=models.tokenizer.eos_ids,
            vocabulary=info.vocab_size,
            observer=self._observer,
            max_batch=self._max_batch,
            prefill_chunk=self._chunk,
            cancelled=self._leaving,
            costs=costs,
        )

    def _leaving(self) -> dict[str, FinishReason]:
        # A look, no more: the loop takes them together with the inbox, in which one of them may still lie.
        with self._lock:
            return dict(self._ending)


def _check(request: DecodeRequest, info: ModelInfo) -> None:
    """The engine's own guard: what would corrupt a batch never enters it."""
    n = len(request.prompt)
    if not 0 < n < info.context_length:
        raise InvalidRequest("prompt", f"{n} tokens", f"1 to {info.context_length - 1} tokens")
    if request.max_tokens < 1:
        raise InvalidRequest("max_tokens", request.max_tokens, "at least 1")
    if not all(0 <= token < info.vocab_size for token in request.prompt):
        bad = next(token for token in request.prompt if not 0 <= token < info.vocab_size)
        raise InvalidRequest("prompt", bad, f"token ids from 0 to {info.vocab_size - 1}")
    drafter = request.plan.drafter
    if drafter is not None and drafter not in info.drafters:
        raise InvalidRequest("plan.drafter", drafter.value, ", ".join(d.value for d in info.drafters) or "none")
