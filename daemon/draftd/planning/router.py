"""Collects the present figures for the choice of a route: of the engine, the link, and finished requests.

Any thread may ask for a route. Finished requests are reported on one thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from draftd.core import DecodePlan, FinishReason, WorkloadClass
from draftd.engine.depth.costs import Batch
from draftd.engine.handle import EngineHandle
from draftd.engine.remote.verifier_link import LinkState, RemoteModel
from draftd.errors import RemoteDown, RemoteUnavailable
from draftd.outcome import Outcome
from draftd.planning.prices import AnswerPrice, PriceList, answer_price
from draftd.planning.routing import LocalState, Route, RouteRequest, VerifierState, choose
from draftd.settings import CostSettings, RemoteSettings
from draftd.strategies import QualityClass, RemoteEstimate, RemoteLevel, Strategy

EXPECTED_TOKENS = 256.0  # of an answer, before any has ended
_LATE_SECONDS = 600.0  # older measurements give way to estimates, so that a strategy is tried again
_WEIGHT = 0.2  # of the newest value
_GUESSED_STEP = 0.05  # seconds of a plain step, if nothing is known
_PREFILL = 0.07  # plain steps that a prompt token takes, if it was not measured
_LEAST_PREFILL = 16  # computed tokens of a prompt from which prefill is measured
_RETRY_SECONDS = 5.0


@dataclass(slots=True)
class Average:
    """An exponentially weighted average; None before the first value."""

    value: float | None = None
    at: float = 0.0

    def add(self, value: float, now: float) -> None:
        self.value = value if self.value is None else self.value + _WEIGHT * (value - self.value)
        self.at = now

    def recent(self, now: float) -> float | None:
        """Returns the average, or None if it is stale."""
        return self.value if now - self.at < _LATE_SECONDS else None


@dataclass(slots=True)
class ObservedAnswers:
    """Recent averages over clients' finished requests. `rates`, `lengths`: by workload class; under None, those of all
    classes. `prefill`, `request`: of requests that were decoded here."""

    rates: dict[tuple[Strategy, WorkloadClass | None], Average] = field(default_factory=dict)  # tokens per second
    lengths: dict[WorkloadClass | None, Average] = field(default_factory=dict)  # of answers
    prefill: Average = field(default_factory=Average)  # seconds to prefill one token
    request: Average = field(default_factory=Average)  # seconds from scheduling to the end

    def add(self, plan: DecodePlan, workload: WorkloadClass, outcome: Outcome, now: float) -> None:
        stats, counts = outcome.stats, outcome.stats.counts
        if outcome.reason not in (FinishReason.STOP, FinishReason.LENGTH) or outcome.failed_over or not counts.emitted:
            return
        for kind in (workload, None):
            self.lengths.setdefault(kind, Average()).add(counts.emitted, now)
            if rate := stats.decode_tokens_per_second:
                self.rates.setdefault((plan.strategy, kind), Average()).add(rate, now)
        if plan.strategy is not Strategy.LOCAL:
            return
        if stats.prefill_seconds is not None and stats.prompt_tokens - stats.cached_tokens >= _LEAST_PREFILL:
            self.prefill.add(stats.prefill_seconds / (stats.prompt_tokens - stats.cached_tokens), now)
        if stats.finished is not None and stats.scheduled is not None:
            self.request.add(stats.finished - stats.scheduled, now)

    def rate(self, strategy: Strategy, workload: WorkloadClass, now: float) -> float | None:
        """Returns recent tokens per second, or None if stale."""
        averages = (self.rates.get((strategy, kind)) for kind in (workload, None))
        return next((rate for average in averages if average is not None and (rate := average.recent(now))), None)

    def length(self, workload: WorkloadClass) -> float:
        averages = (self.lengths.get(kind) for kind in (workload, None))
        return next((average.value for average in averages if average is not None and average.value), EXPECTED_TOKENS)


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """The engine's figures for an estimate. `load`: seconds until the weights are loaded. `step`: seconds of a plain
    step. `prefill`: seconds to prefill one token. `step` and `prefill` are None if they were not measured. `remote`:
    the engine's estimates of the remote daemon's target."""

    active: int = 0
    queued: int = 0
    load: float = 0.0
    step: float | None = None
    remote: Mapping[WorkloadClass, RemoteEstimate] = field(default_factory=dict)
    prefill: float | None = None

    @classmethod
    def of(cls, worker: EngineHandle) -> EngineFigures:
        status, learnt = worker.status(), worker.learnt()
        costs = None if learnt is None else learnt.costs()
        plain = costs.plain(Batch(1, costs.prices.context)) if costs is not None and costs.measured else None
        load = (worker.load_seconds or 0.0) if worker.unloaded else 0.0
        active, prefill = status.active - status.resting, worker.prefill_seconds or None
        return cls(active, status.queued, load, plain, status.remote.estimates, prefill)


class Router:
    """Chooses between this daemon and a remote one. Without arguments there is no remote daemon."""

    def __init__(
        self,
        remote: RemoteSettings | None = None,
        cost: CostSettings | None = None,
        quality: QualityClass = QualityClass.STANDARD,
        *,
        link: Callable[[], LinkState] = LinkState,
        engine: Callable[[], EngineFigures] = EngineFigures,
        max_batch: int = 8,
        watts: Callable[[], float | None] = lambda: None,
        allowed: Callable[[], RemoteLevel] = lambda: RemoteLevel.SPECULATIVE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`quality`: of the model served here. `watts`: the measured power. `allowed`: what the fallback lets the
        remote do."""
        self._settings, self._prices = remote or RemoteSettings(), PriceList(**(cost or CostSettings()).model_dump())
        self.quality, self._link, self._engine = quality, link, engine
        self._max_batch, self._watts, self._clock, self._allowed = max_batch, watts, clock, allowed
        self._measured, self._lock = ObservedAnswers(), threading.Lock()

    @property
    def enabled(self) -> bool:
        return self._settings.enabled

    @property
    def prices(self) -> PriceList:
        return self._prices.with_measured_power(self._watts())

    @property
    def remote_quality(self) -> QualityClass | None:
        """The quality class of the remote's model; None while it is not known."""
        if self._settings.quality is not None:
            return QualityClass.of(self._settings.quality)
        model = self._link().model
        return None if model is None else model.quality

    @property
    def speculative_or_remote(self) -> Strategy:
        """The strategy that serves requests for `speculative`. It is REMOTE while the fallback lets the remote only
        stream: the text is the same, without drafts. If the fallback sends nothing to the remote, the route says so."""
        streams = self._allowed() is RemoteLevel.STREAMING and self._settings.enabled
        return Strategy.REMOTE if streams else Strategy.SPECULATIVE

    def quality_of(self, strategy: Strategy) -> QualityClass:
        return self.quality if strategy is Strategy.LOCAL else self.remote_quality or self.quality

    def relays_text(self, strategy: Strategy) -> bool:
        """Whether the remote answers in text, since its token ids are not this daemon's."""
        model = self._link().model
        return strategy is Strategy.REMOTE and model is not None and not model.shared_tokenizer

    def why_local(self, caller: str, workload: WorkloadClass) -> str:
        """Returns why a request never leaves this machine; empty if it may."""
        if not self._settings.enabled:
            return "remote.enabled is false"
        if caller and caller in self._settings.local_callers:
            return f"caller {caller} is one of remote.local_callers"
        if workload.value in self._settings.local_workloads:
            return f"workload {workload.value} is one of remote.local_workloads"
        return ""

    def expected_tokens(self, workload: WorkloadClass, max_tokens: int | None) -> float:
        """Returns the expected tokens of an answer: the average of finished answers of its class, or else of all."""
        with self._lock:
            length = self._measured.length(workload)
        return length if max_tokens is None else min(length, max_tokens)

    def route(self, request: RouteRequest, caller: str, workload: WorkloadClass) -> Route:
        engine = self._engine()
        local, remote = self._local(engine, workload), self._remote(engine, request, caller, workload)
        return choose(request, local, remote, self.prices)

    def learn_answer(self, plan: DecodePlan, workload: WorkloadClass, outcome: Outcome) -> AnswerPrice:
        """Learns from a client's request that has ended, and returns its price."""
        with self._lock:
            self._measured.add(plan, workload, outcome, self._clock())
        return answer_price(self.prices, plan, outcome, self.quality, self.remote_quality)

    def _local(self, engine: EngineFigures, workload: WorkloadClass) -> LocalState:
        now = self._clock()
        with self._lock:
            answers = self._measured
            step = engine.step or _GUESSED_STEP
            full = engine.active >= self._max_batch
            waiting = (engine.queued + 1) / self._max_batch if full else 0.0
            return LocalState(
                self.quality,
                step,
                answers.prefill.value or engine.prefill or _PREFILL * step,
                engine.load,
                waiting * (answers.request.value or EXPECTED_TOKENS * step),
                answers.rate(Strategy.LOCAL, workload, now),
                min(engine.active + 1, self._max_batch),
            )

    def _remote(
        self, engine: EngineFigures, request: RouteRequest, caller: str, workload: WorkloadClass
    ) -> VerifierState:
        state, now = self._link(), self._clock()
        if pinned := self.why_local(caller, workload) or request.local_only:
            return VerifierState(pinned, quality=self.remote_quality or self.quality)
        model, allowed = state.model, self._allowed()
        if allowed is RemoteLevel.LOCAL:
            why = "the fallback sends nothing to the remote for now (draftd level)"
            return VerifierState(
                why, down=True, retry_after=_RETRY_SECONDS, quality=self.remote_quality or self.quality
            )
        if not state.up or model is None:
            why = f"the remote cannot be reached{f' ({state.why})' if state.why else ''}"
            retry = state.retry_after if state.retry_after is not None else _RETRY_SECONDS
            return VerifierState(why, down=True, retry_after=retry, quality=self.remote_quality or self.quality)
        with self._lock:
            ways = (Strategy.REMOTE, Strategy.SPECULATIVE)
            rates = {strategy: self._measured.rate(strategy, workload, now) for strategy in ways}
        step = model.step_seconds or _GUESSED_STEP
        return VerifierState(
            _too_long(request, model) or (request.token_ids_only if not model.shared_tokenizer else ""),
            _no_speculation(model, allowed),
            quality=self.remote_quality or self.quality,
            step=step,
            prefill=model.prefill_seconds or _PREFILL * step,
            round_trip=state.round_trip,
            busy=state.load or 0.0,
            measured={strategy: rate for strategy, rate in rates.items() if rate is not None},
            expected=engine.remote.get(workload),
        )


def refusal(route: Route) -> RemoteUnavailable:
    """Returns the error for a request that no strategy can serve."""
    if route.down:
        return RemoteDown(route.refusal, retry_after=route.retry_after)
    return RemoteUnavailable(route.refusal)


def _no_speculation(model: RemoteModel, allowed: RemoteLevel) -> str:
    """Returns why the remote cannot verify for this daemon; empty if it can."""
    if not model.shared_tokenizer:
        return f"another tokenizer: {model.difference or 'ids differ'}"
    return (
        "" if allowed is RemoteLevel.SPECULATIVE else "the fallback lets the remote only stream for now (draftd level)"
    )


def _too_long(request: RouteRequest, model: RemoteModel) -> str:
    if request.prompt_tokens < model.context_length:
        return ""
    return f"a prompt of {request.prompt_tokens} tokens has no room in the remote's context of {model.context_length}"
