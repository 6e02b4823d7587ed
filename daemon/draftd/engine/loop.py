"""The one thread that owns MLX: it loads, prefills, decodes and closes.

Other threads talk to it through a bounded inbox and read its state; they never touch an MLX array.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from draftd.core import DecodeRequest, DrafterName, FinishReason, Origin
from draftd.engine.cache.pins import LEAST, MOST_PINS, Pin, check_name
from draftd.engine.handle import EngineHandle, EngineState, check_request, check_tokens, verifier_of
from draftd.engine.inbox import IDLE_SECONDS, Arrival, Inbox, PinPrefix
from draftd.engine.limits import EXACT_SLICE, REST_SECONDS, Limits
from draftd.engine.memory import MlxMemory, mlx_memory
from draftd.engine.observer import (
    EngineObserver,
    EngineStatus,
    FanOut,
    PrefixStatus,
    PromptProgress,
    Totals,
)
from draftd.engine.pair import LoadedModels
from draftd.engine.remote.verifier_link import VerifierLink
from draftd.errors import DraftdError, EngineFailure, InvalidRequest, NoRoom, NotNow, NotServing, in_one_line
from draftd.model_info import ModelInfo
from draftd.models.fingerprint import Fingerprints
from draftd.models.folder import PairFiles
from draftd.models.grammar import Grammars
from draftd.models.tokenizer import Tokenizer
from draftd.outcome import Outcome, RequestStats, TokenSink
from draftd.strategies import Strategy

if TYPE_CHECKING:
    from draftd.engine.assembly import Engine
    from draftd.engine.cache.prefix_disk import PrefixDisk
    from draftd.engine.depth.saved import LearntCosts
    from draftd.engine.exactness.setup import PromptSource

_log = logging.getLogger(__name__)

_STEP_SECONDS = 1.0  # after the drain, for the last step to end
_MEASURE_STEPS = 32  # between two readings of cache sizes
_UNLOADED_SECONDS = 60.0  # the retry delay for a probe while the weights are unloaded
_LEARNT_SECONDS = 1.0  # between two snapshots of what was learnt
_UNFIT_SECONDS = 600.0  # between two log lines about texts that are too long for the prefix cache

_ENDED = "the daemon is draining and takes no more commands"


class EngineWorker(EngineHandle):
    """Runs the engine on a thread, which first calls `load(progress)`; `progress` takes lines of text that tell people
    how far loading is."""

    def __init__(
        self,
        load: Callable[[Callable[[str], None]], LoadedModels],
        *,
        observers: Sequence[EngineObserver] = (),
        limits: Limits | None = None,
        recall: Callable[[], LearntCosts | None] = lambda: None,
        link: VerifierLink | None = None,
        fingerprints: Fingerprints | None = None,
        exactness_prompts: PromptSource | None = None,
    ) -> None:
        """`recall` returns the step costs that an earlier process learnt for these models on this machine, or None; the
        engine thread calls it once the models are loaded. Only the machine's speed, a factor on all these costs, is
        then learnt again. `link`: to the daemon whose target decodes remote requests; its owner opens and closes it.
        `exactness_prompts`: returns the prompts that exactness is measured over, as token ids; None: do not measure."""
        super().__init__(fingerprints)
        self._load = load
        self._totals = Totals()
        self._observer = FanOut(self._totals, *observers)
        self._limits = limits or Limits()
        self._learnt: LearntCosts | None = None
        self._recall, self._learnt_at = recall, time.monotonic()
        self._thread = threading.Thread(target=self._run, name="draftd-engine", daemon=True)
        self._inbox = Inbox(self._limits.queue_capacity, self._limits.max_batch)
        self._link, self._exactness_prompts = link, exactness_prompts
        if link is not None:
            link.listen(self._inbox.wake)
        self._engine: Engine | None = None
        self._kv_bytes = self._held_back = self._resting = self._prefilled_tokens = 0
        self._prompts: tuple[PromptProgress, ...] = ()
        self._unfit, self._unfit_at = 0, -math.inf  # texts too long for the prefix cache, as last logged

    # any thread

    def start(self) -> None:
        self._thread.start()

    @property
    def info(self) -> ModelInfo:
        return self._require_engine().models.info

    @property
    def files(self) -> PairFiles:
        engine = self._require_engine()
        return PairFiles(engine.weights.files, engine.drafters.loaded.files)

    @property
    def unloaded(self) -> bool:
        engine = self._engine
        return engine is not None and engine.weights.unloaded

    @property
    def draft_bytes(self) -> Mapping[DrafterName, int]:
        return {} if self._engine is None else self._engine.drafters.loaded.sizes

    @property
    def tokenizer(self) -> Tokenizer:
        return self._require_engine().models.tokenizer

    @property
    def grammars(self) -> Grammars | None:
        return self._require_engine().models.grammars

    def submit_choices(self, choices: Sequence[tuple[DecodeRequest, TokenSink]]) -> None:
        engine, first = self._require_engine(), choices[0][0]
        assert all(request.prompt is first.prompt for request, _ in choices)
        remote = first.plan.strategy is not Strategy.LOCAL
        check_request(first, engine.models.info, verifier_of(self._link) if remote else None)
        if engine.weights.unloaded and first.origin is not Origin.CLIENT:
            raise NotServing("the weights are unloaded until a client sends a request", retry_after=_UNLOADED_SECONDS)
        if not remote:  # else it takes no memory here
            engine.admission.check(first, self._kv_bytes)
        self._inbox.submit(*(Arrival(request, sink) for request, sink in choices))

    @property
    def memory(self) -> MlxMemory | None:
        # Not while it loads: the engine's thread must be the first to import MLX.
        return mlx_memory() if self.state is EngineState.READY else None

    @property
    def waiting(self) -> frozenset[str]:
        """The ids of clients' waiting requests."""
        return self._inbox.waiting

    def pin_prefix(self, name: str, tokens: tuple[int, ...]) -> Future[Pin]:
        engine, info = self._require_engine(), self.info
        check_name(name)
        check_tokens("tokens", tokens, info)
        least, why = LEAST, ""
        if self._limits.exact:
            least, why = EXACT_SLICE, f"; engine.exact keeps prefixes in multiples of {EXACT_SLICE} tokens"
        if len(tokens) < least:
            raise InvalidRequest("tokens", f"{len(tokens)} tokens", f"at least {least} tokens{why}")
        disk = self._prefix_disk(engine)
        pins, need = disk.pins.by_name, info.position_bytes * len(tokens) + info.sequence_bytes
        if name not in pins and len(pins) >= MOST_PINS:
            raise NoRoom(f"{len(pins)} prefixes are pinned, and at most {MOST_PINS} may be: drop one first")
        if need > (most := engine.prefix.limit):
            raise NoRoom(
                f"{len(tokens)} tokens take about {need} bytes, and the prefix cache may use {most} "
                "(engine.prefix_cache_bytes)"
            )
        self._inbox.command(command := PinPrefix(name, tokens))
        return command.done

    def pins(self) -> list[tuple[Pin, int, bool]]:
        engine = self._require_engine()
        if engine.disk is None:
            return []
        model = engine.prefixes.model
        return [(pin, engine.disk.bytes_of(pin.files), pin.model == model) for pin in engine.disk.pins.oldest_first]

    def drop_prefix(self, name: str) -> Future[None]:
        disk = self._prefix_disk(self._require_engine())
        if name not in disk.pins.by_name:
            raise InvalidRequest("name", name, ", ".join(sorted(disk.pins.by_name)) or "no prefix is pinned")
        return disk.drop(name)

    def _prefix_disk(self, engine: Engine) -> PrefixDisk:
        if engine.disk is None:
            what = "engine.prefix_cache_bytes is 0" if self._limits.prefix_folder else "there is no engine.prefix_dir"
            raise NotNow(f"no prefix can be pinned: {what}")
        return engine.disk

    def status(self) -> EngineStatus:
        engine, status = self._engine, self._totals.status()
        if engine is not None:
            loaded = engine.drafters.loaded
            status = replace(
                status,
                weight_bytes=(0 if self.unloaded else engine.models.info.weight_bytes) + loaded.weight_bytes,
                unloaded=self.unloaded,
                loaded=loaded.drafters,
                draft_weight_bytes=loaded.weight_bytes,
                prefix=engine.prefix_status(status.prefix),
                kv_cache_limit_bytes=engine.admission.limit,
                exactness=engine.exactness.result,
                remote=status.remote if engine.remote is None else engine.remote.status,
            )
        active, queued = self._inbox.counts
        return replace(
            status,
            active=active,
            queued=queued,
            queue_capacity=self._limits.queue_capacity,
            kv_cache_bytes=self._kv_bytes,
            observer_errors=self._observer.errors,
            held_back=self._held_back,
            resting=self._resting,
            prompts=self._prompts,
            prefilled_tokens=self._prefilled_tokens,
        )

    def learnt(self) -> LearntCosts | None:
        return self._learnt

    def close(self, drain_seconds: float = 0.0) -> bool:
        """Returns False if a forward keeps the thread from ending in time. Its requests are then ended here, and the
        process can still exit: it is a daemon thread. It does not wait for a load, which cannot be interrupted."""
        self._inbox.close(time.monotonic() + drain_seconds)
        if not self._thread.is_alive() or self.state is EngineState.LOADING:
            return True
        self._thread.join(drain_seconds + _STEP_SECONDS)
        if not self._thread.is_alive():
            return True
        if self._engine is not None:
            self._abandon(self._engine)
        return False

    def _abandon(self, engine: Engine) -> None:
        """Ends all requests while the engine thread is inside a forward; it sends nothing more for them."""
        engine.scheduler.abandon(FinishReason.CANCELLED)
        for request, sink in self._inbox.shut(NotServing(_ENDED)):  # that came while the forward ran
            self._end(request, sink, FinishReason.CANCELLED)

    def _require_engine(self) -> Engine:
        engine = self._engine
        if engine is None:
            far = f" ({self.progress})" if self.progress else ""
            raise NotServing(self.error or f"the model is still loading{far}", retry_after=1.0)
        return engine

    # the engine thread

    def _run(self) -> None:
        began = time.monotonic()
        try:
            engine = self._engine = self._assemble()
        except (Exception, SystemExit) as error:  # an import may raise SystemExit
            _log.debug("the models could not be loaded", exc_info=error)
            if isinstance(error, DraftdError):
                self.error = error.message
            else:
                self.error = f"the models could not be loaded: {in_one_line(error)}: --log-level debug shows where"
            self.state = EngineState.FAILED
            return
        self.progress, self.load_seconds = "ready", time.monotonic() - began
        self.step_seconds = engine.local.depth.step_seconds
        self._inbox.open()
        self.state = EngineState.READY
        try:
            self._serve(engine)
        except BaseException as error:
            self.error = f"the engine stopped: {type(error).__name__}: {error}"
            engine.scheduler.abort(FinishReason.ERROR, self.error)
            engine.jobs.close(NotServing(self.error))
            engine.prefixes.close(NotServing(self.error))
            for request, sink in self._inbox.shut(NotServing(self.error)):
                self._end(request, sink, FinishReason.ERROR)
            self.state = EngineState.FAILED
            return
        finally:
            engine.prefixes.shut()
        self.state = EngineState.STOPPED

    def _serve(self, engine: Engine) -> None:
        scheduler, local, jobs, prefixes = engine.scheduler, engine.local, engine.jobs, engine.prefixes
        steps, share, drain_until = 0, 1.0, math.inf
        while True:
            if (allowed := self._limits.memory_share()) != share:
                engine.prefix.allow(allowed)
                share = allowed
                local.mark_interruption()
            idle = scheduler.idle
            pause = min(engine.pause, IDLE_SECONDS, drain_until - time.monotonic())
            measures = not jobs.busy and drain_until == math.inf and engine.measures(idle=idle)
            busy = jobs.busy or prefixes.busy or measures or (idle and drain_until < math.inf)
            rest = REST_SECONDS / 2 if engine.calibration.pending else IDLE_SECONDS
            contents = self._inbox.take(0.0 if busy else min(pause, rest))
            if contents is not None:
                engine.apply(contents, NotServing(_ENDED))
                drain_until = contents.drain_until if contents.closing else math.inf
                local.prefilling.drain_until = drain_until
                if contents.closing and (scheduler.idle or time.monotonic() >= drain_until):
                    self._stop_serving(engine)
                    return
            if jobs.busy:
                engine.stop_measuring()
                if jobs.step():
                    local.mark_interruption()
            if engine.weights.unloaded:
                self._load_again(engine)
            elif engine.weights.due(clients=any(self._inbox.counts), own=engine.has_own_work):
                engine.stop_measuring()
                engine.weights.unload()
            else:
                if prefixes.busy and prefixes.step(local.active):
                    local.mark_interruption()
                if measures and engine.measures(idle=scheduler.idle):  # unless a prompt has come since
                    engine.measure()
                    local.mark_interruption()
                    self.step_seconds = local.depth.step_seconds
                    self.prefill_seconds = engine.calibration.prefill_seconds
            members = local.active
            scheduler.step()
            steps += 1
            changed = local.idle or local.active != members or steps % _MEASURE_STEPS == 0
            self._measure(engine, local.kv_cache_bytes if changed else self._kv_bytes)

    def _stop_serving(self, engine: Engine) -> None:
        engine.scheduler.abort(FinishReason.CANCELLED)
        self._measure(engine, engine.local.kv_cache_bytes)
        self._learnt = engine.learnt()
        self._inbox.shut(NotServing(_ENDED))

    def _load_again(self, engine: Engine) -> None:
        """Loads a piece of the weights if a sequence waits for them. If they cannot be loaded, all waiting sequences
        end, and the next request tries again."""
        weights, prefixes = engine.weights, engine.prefixes
        if not (engine.scheduler.wants_weights or prefixes.busy):
            weights.rest()
            return
        try:
            if weights.step():
                prefixes.restore()
                for sequence in engine.local.not_begun:
                    prefixes.begin(sequence)
        except Exception as error:
            reason = error.message if isinstance(error, DraftdError) else in_one_line(error)
            reason = f"the weights could not be loaded again: {reason}"
            _log.warning("%s", reason)
            engine.scheduler.do_without_weights(reason)
            prefixes.end(EngineFailure(reason))

    def _measure(self, engine: Engine, kv_bytes: int) -> None:
        local = engine.local
        self._kv_bytes, self._held_back = kv_bytes, local.prefilling.held_back
        self._resting, self._prompts = local.resting, local.prefilling.progress
        self._prefilled_tokens = local.prefilling.prefilled_tokens
        now = time.monotonic()
        if now - self._learnt_at >= _LEARNT_SECONDS:
            self._learnt, self._learnt_at = engine.learnt(), now
            self.step_seconds = local.depth.step_seconds
            if engine.remote is not None:
                engine.remote.estimate()
            self._log_unfit(engine.prefix_status(self._totals.status().prefix), now)
        self._inbox.report(*engine.scheduler.request_counts, self._totals.seconds_per_request)

    def _log_unfit(self, prefix: PrefixStatus, now: float) -> None:
        """Logs a warning while more and more texts are too long for the prefix cache."""
        if prefix.warning and prefix.unfit > self._unfit and now - self._unfit_at >= _UNFIT_SECONDS:
            self._unfit, self._unfit_at = prefix.unfit, now
            _log.warning("%s", prefix.warning)

    def _end(self, request: DecodeRequest, sink: TokenSink, reason: FinishReason) -> None:
        """Ends a request that the engine did not take."""
        stats = RequestStats(prompt_tokens=len(request.prompt), arrival=request.arrival, finished=time.monotonic())
        outcome = Outcome(reason, stats, error=self.error)
        self._observer.on_finish(request, outcome)
        sink.on_finish(outcome)

    def _report(self, line: str) -> None:
        self.progress = line

    def _assemble(self) -> Engine:
        models = self._load(self._report)
        self._learnt = self._recall()
        from draftd.engine.assembly import assemble_engine  # imports MLX: after loading has chosen the BLAS

        return assemble_engine(
            models,
            self._limits,
            learnt=self._learnt,
            observer=self._observer,
            cancelled=self._inbox.endings,
            report=self._report,
            link=self._link,
            fingerprints=self.fingerprints,
            exactness_prompts=self._exactness_prompts,
        )
