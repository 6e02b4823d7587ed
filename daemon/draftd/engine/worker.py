"""The one thread that owns MLX: it loads, prefills, decodes and closes.

Other threads talk to it through a bounded inbox and read its state; they never touch an MLX array.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from draftd.core import DecodeRequest, DrafterKind, FinishReason, ModelInfo, Outcome, RequestStats, TokenSink
from draftd.engine.batch import Row
from draftd.engine.inbox import Inbox, Taken
from draftd.engine.model import LoadedModels
from draftd.engine.observer import EngineObserver, EngineStatus, FanOut
from draftd.engine.orders import Keep, LogitGap, Lower, Reload
from draftd.engine.tokenizer import Tokenizer
from draftd.engine.totals import Totals
from draftd.errors import DraftdError, InvalidRequest, ModelLoadError, NotServing

if TYPE_CHECKING:
    from draftd.engine.drafters import Drafters
    from draftd.engine.scheduler import Scheduler
    from draftd.engine.upkeep import Upkeep

_log = logging.getLogger(__name__)

_JOIN_SECONDS = 10.0  # a round, even a slow one, is over by then
_MEASURE_ROUNDS = 32  # cache sizes are read this often
_CALIBRATION_SECONDS = 1.0  # of loading, spent on what a round costs

_ENDED = "the daemon is draining and takes no more orders"


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
        self._inbox = Inbox(queue_capacity, max_batch)
        self._settled = threading.Event()
        # What follows the engine thread writes, whole, and any thread reads.
        self._state = EngineState.LOADING
        self._progress, self._error = "", ""
        self._models: LoadedModels | None = None  # without the draft: `Drafters` holds that alone
        self._drafters: Drafters | None = None
        self._kv_bytes = 0

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
        _check(request, self.info)
        self._inbox.submit(request, sink)

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Ends a request within one round. Ids that have ended already are ignored."""
        self._inbox.end(request_id, reason)

    def keep(self, drafters: frozenset[DrafterKind]) -> Future[int]:
        """Holds exactly these drafters' weights; ends with the bytes of draft weights then held.

        Weights that are wanted are read in pieces between rounds. Others go once no running request drafts with them;
        meanwhile newcomers no longer get them. A request whose drafter is not held goes on autoregressively, and says
        why. Unknown kinds are ignored. A call that another overtakes ends together with it. The future raises
        ModelLoadError where weights cannot be had: then that drafter is not held. All orders raise NotServing and
        QueueFull, and all futures end with NotServing when the engine ends.
        """
        self._loaded()
        order = Keep(drafters)
        self._inbox.order(order)
        return order.done

    def reload_draft(self) -> Future[int]:
        """Reads the draft's weights anew, and the light draft's if they are held; ends with their bytes.

        Both are in memory until the new draft has taken in the texts of the rows that draft, which go on drafting with
        the old one meanwhile. Weights that are not held are read and checked, and not kept. The future raises
        ModelLoadError where the new ones cannot be had or do not fit: then the old ones stay.
        """
        self._loaded()
        order = Reload()
        self._inbox.order(order)
        return order.done

    def lower(self, max_draft_tokens: int, drafters: frozenset[DrafterKind], reason: str) -> None:
        """From the next round on no request that is here now drafts more, or with another drafter: one whose drafter is
        not allowed changes to prompt lookup where that is, or goes on autoregressively. Probes are bound as well."""
        self._loaded()
        if max_draft_tokens < 0:
            raise InvalidRequest("max_draft_tokens", max_draft_tokens, "0 or more")
        self._inbox.lower(max_draft_tokens=max_draft_tokens, drafters=drafters, reason=reason)

    def logit_gap(self, tokens: tuple[int, ...], chosen: int, other: int) -> Future[float]:
        """The target's logit of `chosen` less that of `other` after `tokens`, by a forward of its own."""
        _check_tokens("tokens", tokens, self.info)
        _check_tokens("chosen", (chosen,), self.info)
        _check_tokens("other", (other,), self.info)
        order = LogitGap(tokens, chosen, other)
        self._inbox.order(order)
        return order.done

    def status(self) -> EngineStatus:
        """A snapshot; never waits for the engine."""
        models, drafters = self._models, self._drafters
        held = None if drafters is None else drafters.held
        drafts = 0 if held is None else held.weight_bytes
        active, queued = self._inbox.counts
        return self._totals.status(
            active=active,
            queued=queued,
            queue_capacity=self._capacity,
            kv_cache_bytes=self._kv_bytes,
            weight_bytes=0 if models is None else models.info.weight_bytes + drafts,
            observer_errors=self._observer.errors,
            loaded=frozenset() if held is None else held.drafters,
            draft_weight_bytes=drafts,
        )

    def close(self, drain_seconds: float = 0.0) -> bool:
        """Takes no more requests, lets running ones go on for `drain_seconds`, ends the rest as CANCELLED, joins.

        False when the thread did not end in time (it is a daemon thread: the process can still exit).
        """
        self._inbox.close(time.monotonic() + drain_seconds)
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
            scheduler, upkeep, info = self._loaded_engine()
        except Exception as error:
            self._error = error.message if isinstance(error, DraftdError) else f"{type(error).__name__}: {error}"
            self._state = EngineState.FAILED
            self._settled.set()
            return
        self._progress = "ready"
        self._inbox.open()
        self._state = EngineState.READY
        self._settled.set()
        try:
            self._serve(scheduler, upkeep, info.context_length)
        except BaseException as error:
            self._error = f"the engine stopped: {type(error).__name__}: {error}"
            scheduler.abort(FinishReason.ERROR, self._error)
            upkeep.close(NotServing(self._error))
            self._refuse(FinishReason.ERROR, self._error)
            self._state = EngineState.FAILED
            return
        self._state = EngineState.STOPPED

    def _serve(self, scheduler: Scheduler, upkeep: Upkeep, context_length: int) -> None:
        steps = 0
        while True:
            taken = self._inbox.take(idle=scheduler.idle and not upkeep.busy)
            if taken is not None:
                _hand_over(taken, scheduler, upkeep, context_length)
                if taken.closing and (scheduler.idle or time.monotonic() >= taken.drain_until):
                    scheduler.abort(FinishReason.CANCELLED)
                    self._measure(scheduler, scheduler.kv_cache_bytes)
                    self._inbox.shut(NotServing(_ENDED))
                    return
            if upkeep.busy and upkeep.step():
                scheduler.interrupted()
            if scheduler.idle:
                self._measure(scheduler, scheduler.kv_cache_bytes)
                continue
            members = scheduler.active
            scheduler.step()
            steps += 1
            changed = scheduler.active != members or steps % _MEASURE_ROUNDS == 0
            self._measure(scheduler, scheduler.kv_cache_bytes if changed else self._kv_bytes)

    def _measure(self, scheduler: Scheduler, kv_bytes: int) -> None:
        self._kv_bytes = kv_bytes
        self._inbox.report(*scheduler.clients, scheduler.own, self._totals.seconds_per_request)

    def _refuse(self, reason: FinishReason, error: str) -> None:
        for request, sink in self._inbox.shut(NotServing(error)):
            stats = RequestStats(prompt_tokens=len(request.prompt), arrival=request.arrival, finished=time.monotonic())
            outcome = Outcome(reason, stats, error=error)
            self._observer.on_finish(request, outcome)
            sink.on_finish(outcome)

    def _report(self, line: str) -> None:
        self._progress = line

    def _loaded_engine(self) -> tuple[Scheduler, Upkeep, ModelInfo]:
        models = self._load(self._report)
        # Imported here: these bring MLX in, which must come after the BLAS that loading chose.
        from draftd.engine.calibration import measure
        from draftd.engine.costs import RoundCosts
        from draftd.engine.drafters import Drafters
        from draftd.engine.scheduler import Scheduler
        from draftd.engine.upkeep import Upkeep
        from draftd.engine.verification import LocalVerifier

        drafters = Drafters(models)
        models = replace(models, draft=None, sources={})
        target, info = models.target, models.info
        costs = RoundCosts()
        if info.speculation_available:  # nothing else asks what a round costs
            self._report("measuring what a round costs")
            try:
                costs = RoundCosts(measure(target, info.vocab_size, self._max_batch, _CALIBRATION_SECONDS))
            except Exception as error:
                _log.warning("what a round costs could not be measured; it is learnt from requests", exc_info=error)
        scheduler = Scheduler(
            verifier=lambda: LocalVerifier(target, info.vocab_size),
            drafters=drafters.make,
            eos=models.tokenizer.eos_ids,
            vocabulary=info.vocab_size,
            observer=self._observer,
            max_batch=self._max_batch,
            prefill_chunk=self._chunk,
            cancelled=self._inbox.endings,
            costs=costs,
        )
        self._models, self._drafters = models, drafters
        return scheduler, Upkeep(scheduler, drafters, target, self._chunk), info


def _hand_over(taken: Taken, scheduler: Scheduler, upkeep: Upkeep, context_length: int) -> None:
    """Requests and orders in the order in which they came, then who leaves."""
    admitted = 0
    for order in taken.orders:
        if isinstance(order, Lower):
            _admit(taken, admitted, order.arrivals, scheduler, context_length)
            admitted = order.arrivals
        upkeep.take(order)
    _admit(taken, admitted, len(taken.arrivals), scheduler, context_length)
    if taken.endings:
        scheduler.end(taken.endings)
    if taken.closing:
        upkeep.close(NotServing(_ENDED))


def _admit(taken: Taken, first: int, end: int, scheduler: Scheduler, context_length: int) -> None:
    for request, sink in taken.arrivals[first:end]:
        scheduler.add(Row.of(request, sink, context_length))


def _check(request: DecodeRequest, info: ModelInfo) -> None:
    """The engine's own guard: what would corrupt a batch never enters it."""
    _check_tokens("prompt", request.prompt, info)
    if request.max_tokens < 1:
        raise InvalidRequest("max_tokens", request.max_tokens, "at least 1")
    drafter = request.plan.drafter
    if drafter is not None and drafter not in info.drafters:
        raise InvalidRequest("plan.drafter", drafter.value, ", ".join(d.value for d in info.drafters) or "none")


def _check_tokens(field: str, tokens: Sequence[int], info: ModelInfo) -> None:
    if not 0 < len(tokens) < info.context_length:
        raise InvalidRequest(field, f"{len(tokens)} tokens", f"1 to {info.context_length - 1} tokens")
    if not all(0 <= token < info.vocab_size for token in tokens):
        bad = next(token for token in tokens if not 0 <= token < info.vocab_size)
        raise InvalidRequest(field, bad, f"token ids from 0 to {info.vocab_size - 1}")
