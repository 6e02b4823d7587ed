"""The inference span and its children, by the GenAI conventions, with draftd's counts.

Spans are started and ended explicitly and never made current: a request's handler yields to its client in between.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.util.types import AttributeValue

from draftd.core import ContextTier, DecodePlan, FinishReason, SamplingParams, WorkloadClass
from draftd.errors import DraftdError
from draftd.outcome import Outcome, RequestStats
from draftd.strategies import QualityClass, Verifier
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog, catalog_spans
from draftd.telemetry import catalog_remote as remote
from draftd.telemetry.attributes import Attribute, Metric
from draftd.telemetry.attributes import Span as CatalogSpan
from draftd.telemetry.hardware import hardware_attributes
from draftd.telemetry.metrics import COUNTS, Recording
from draftd.telemetry.recording import Labels, ModelNames, attributes_of
from draftd.telemetry.remote import remote_attributes, trace_of

# The present task's call and request. A call has its own task, so neither is ever reset.
call_context: ContextVar[Context | None] = ContextVar("draftd_call", default=None)
request_context: ContextVar[Context | None] = ContextVar("draftd_request", default=None)

REFUSED = "refused"
_ERRORS = {
    FinishReason.CANCELLED: "Cancelled",
    FinishReason.DEADLINE: "DeadlineExceeded",
    FinishReason.ERROR: "EngineFailure",
}
# Part of a message in the conventions' terms: text, reasoning, tool_call or tool_call_response.
Part = Mapping[str, str]
ToldMessage = tuple[str, Sequence[Part]]  # role and parts
_CONTENTS = ("content", "arguments", "response")  # the keys of parts that hold content

_MESSAGE_LIMIT = 256  # characters of an error message on a span
CONTENT_LIMIT = (
    16_384  # characters of prompt, and of answer, on a span: spans queue up while a collector is unreachable
)


@dataclass(frozen=True, slots=True)
class InferenceStart:
    """The facts known when a request arrives. `arrival` is on the monotonic clock. `messages` leave the process only
    with content capture. `choice`: which of its `choices`, from 0."""

    operation: str
    request_id: str
    arrival: float
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    prompt_tokens: int | None = None
    messages: tuple[ToldMessage, ...] = ()
    choices: int = 1
    choice: int = 0


class InferenceSpan:
    """One request, as a span with children and on the request metrics. Never raises. A request for several choices has
    one for each that the engine decodes, and a single one if it is refused.

    Exactly one of `finish`, `refuse` and `leave` ends it; a second is ignored."""

    def __init__(self, start: InferenceStart, on: Recording) -> None:
        self._start, self._on = start, on
        self._plan: DecodePlan | None = None
        self._quality = "unknown"
        self._tier: ContextTier | None = None
        self._ended = not on.exporting  # if nothing is exported, each method returns at once
        # Monotonic to epoch, once for the whole request: setting the clock cannot separate its spans.
        self._epoch = time.time() - time.monotonic()
        self._span: Span = INVALID_SPAN
        if not on.exporting:
            return
        parent = call_context.get() or Context()
        with self._on.guard.part("span"):
            info = on.naming.info()  # None for a request that is refused while the model loads
            self._span = on.tracer.start_span(
                start.operation if info is None else f"{start.operation} {info.model}",
                context=parent,
                attributes=_request_attributes(start, on.naming),
                start_time=self._nanos(start.arrival),
            )
        self._context = set_span_in_context(self._span, parent)
        request_context.set(self._context)

    def set_plan(self, plan: DecodePlan, tier: ContextTier) -> None:
        if not self._ended:
            with self._on.guard.part("span"):
                self._plan, self._tier = plan, tier
                attributes = {
                    a.DRAFT_MODEL: self._on.naming.draft(plan),
                    a.MODE: plan.mode.value,
                    a.STRATEGY: plan.strategy.value,
                    a.CONTEXT_TIER: tier.value,
                    a.PLAN_REASON: plan.reason,
                    a.PLAN_LEVEL: plan.level.label,
                    a.PLAN_VARIANT: plan.variant,
                    a.PLAN_DRAFTER: plan.drafter or "none",
                    a.PLAN_MAX_DRAFT: plan.max_draft_tokens,
                    a.PLAN_DEPTH_MODE: plan.depth_mode.value if plan.drafter is not None else "none",
                    a.PLAN_ALTERNATIVES: tuple(sorted(plan.alternatives)) or None,
                }
                self._span.set_attributes(attributes_of(attributes))

    @property
    def trace(self) -> str:
        """The W3C `traceparent` by which another daemon makes this span the parent of its own; empty if not
        recorded."""
        return "" if self._ended else trace_of(self._span)

    def set_price(self, quality: QualityClass | None, cost: Mapping[Verifier, float], currency: str) -> None:
        """Notes the answer's quality and cost; call before `finish`. `cost`: the amount for each daemon whose target
        worked on the answer; empty if no price is known."""
        if self._ended:
            return
        with self._on.guard.part("span"):
            self._quality = self._quality if quality is None else quality.label
            self._span.set_attribute(a.QUALITY.name, self._quality)
            if cost:
                self._span.set_attributes({remote.COST.name: sum(cost.values()), a.CURRENCY.name: currency})
            for verifier, amount in cost.items():
                labels = {
                    a.MODEL.name: self._on.naming.model(),
                    a.VERIFIER.name: verifier.value,
                    a.CURRENCY.name: currency,
                }
                self._on.metrics.count(remote.COST, labels, self._context, amount)

    def set_constraint(self, kind: str, compile_seconds: float) -> None:
        """Notes that the answer must follow a grammar."""
        if not self._ended:
            with self._on.guard.part("span"):
                self._span.set_attributes(attributes_of({a.RESPONSE_FORMAT: kind, a.GRAMMAR_COMPILE: compile_seconds}))

    def finish(self, outcome: Outcome, answer: Sequence[Part] | None = None) -> None:
        """Ends the span of a request that ended in the engine. `answer`: the whole answer, used only with content
        capture."""
        if not self._ended:
            self._ended = True
            with self._on.guard.part("span"):
                self._finish(outcome, answer)

    def refuse(self, error: DraftdError) -> None:
        """Ends the span of a request that never reached the engine."""
        self._end_unanswered(REFUSED, type(error).__name__, error.message)

    def leave(self, reason: FinishReason) -> None:
        """Ends the span of a request whose client left, or whose time was up, before it reached the engine."""
        message = reason.value if reason is FinishReason.DEADLINE else None
        self._end_unanswered(reason.value, _ERRORS.get(reason), message)

    def _end_unanswered(self, outcome: str, kind: str | None, message: str | None) -> None:
        if not self._ended:
            self._ended = True
            with self._on.guard.part("span"):
                self._end(outcome, kind, message, time.monotonic())

    def _finish(self, outcome: Outcome, answer: Sequence[Part] | None) -> None:
        stats, reason = outcome.stats, outcome.reason
        end = stats.finished if stats.finished is not None else time.monotonic()
        kind = _ERRORS.get(reason)
        self._span.set_attributes(_outcome_attributes(outcome))
        self._children(stats, end)
        failed = reason in (FinishReason.DEADLINE, FinishReason.ERROR)
        self._end(reason.value, kind, (outcome.error or reason.value) if failed else None, end, answer)
        self._record(catalog.QUEUE_DURATION, stats.queue_seconds, self._labels())
        self._record(catalog.PREFILL_DURATION, stats.prefill_seconds, self._labels())
        if kind is None:
            strategy = self._plan.strategy.value if self._plan is not None else "unknown"
            worth = (self._on.naming.model(), strategy, self._quality)
            pairs = zip(remote.ANSWERS.attributes, worth, strict=True)
            self._on.metrics.count(remote.ANSWERS, {attribute.name: value for attribute, value in pairs}, self._context)
            self._record(catalog.TIME_TO_FIRST_TOKEN, stats.time_to_first_token, self._gen_ai())
            self._record(catalog.TIME_PER_OUTPUT_TOKEN, stats.time_per_output_token, self._gen_ai())

    def _end(
        self,
        outcome: str,
        kind: str | None,
        message: str | None,
        end: float,
        answer: Sequence[Part] | None = None,
    ) -> None:
        """Ends the span, with the machine's state, and counts the request."""
        if message is not None:
            self._span.set_status(Status(StatusCode.ERROR, message[:_MESSAGE_LIMIT]))
        self._content(outcome, answer)
        failed = {} if kind is None else {a.ERROR_TYPE.name: kind}
        ended = {**failed, a.OUTCOME.name: outcome}
        self._span.set_attributes({**ended, **hardware_attributes(self._on.hardware.state)})
        self._span.end(self._nanos(end))
        self._on.metrics.count(catalog.REQUESTS, self._labels() | ended, self._context)
        self._record(catalog.REQUEST_DURATION, end - self._start.arrival, {**self._gen_ai(), **failed})

    def _record(self, metric: Metric, seconds: float | None, labels: Mapping[str, AttributeValue]) -> None:
        if seconds is not None:
            self._on.metrics.record(metric, max(0.0, seconds), labels, self._context)

    def _labels(self) -> Labels:
        return self._on.naming.labels(self._plan, self._start.workload, self._tier)

    def _gen_ai(self) -> dict[str, AttributeValue]:
        """Returns the labels, and the attributes that the GenAI conventions require."""
        info = self._on.naming.info()
        more = {
            a.OPERATION: self._start.operation,
            a.PROVIDER: catalog.PROVIDER_NAME,
            a.RESPONSE_MODEL: None if info is None else info.model,
            **self._on.naming.server(),
        }
        return {**self._labels(), **attributes_of(more)}

    def _children(self, stats: RequestStats, end: float) -> None:
        if not self._span.is_recording():
            return
        counts = stats.counts
        read = {a.USAGE_INPUT: stats.prompt_tokens, a.USAGE_CACHE_READ: stats.cached_tokens}
        stages: tuple[tuple[CatalogSpan, float | None, float | None, Mapping[Attribute, int]], ...] = (
            (catalog_spans.QUEUE_SPAN, stats.arrival, stats.scheduled, {}),
            (catalog_spans.PREFILL_SPAN, stats.scheduled, stats.prefilled, read),
            (catalog_spans.DECODE_SPAN, stats.prefilled, end, {a.USAGE_OUTPUT: counts.emitted, a.STEPS: counts.steps}),
        )
        for kind, start, over, attributes in stages:
            if start is not None:
                self._on.tracer.start_span(
                    kind.name,
                    context=self._context,
                    attributes=attributes_of(attributes),
                    start_time=self._nanos(start),
                ).end(self._nanos(max(start, end if over is None else over)))
        if stats.remote is not None and stats.scheduled is not None:
            self._on.tracer.start_span(
                remote.REMOTE_SPAN.name,
                context=self._context,
                kind=SpanKind.CLIENT,
                attributes=remote_attributes(stats.remote),
                start_time=self._nanos(stats.scheduled),
            ).end(self._nanos(max(stats.scheduled, end)))

    def _content(self, finish: str, answer: Sequence[Part] | None) -> None:
        if not self._on.capture_content:
            return
        if self._start.messages:
            room, said = CONTENT_LIMIT, []
            for role, parts in self._start.messages:
                bounded, room = _limit_parts(parts, room)
                said.append({"role": role, "parts": bounded})
            self._span.set_attribute(a.INPUT_MESSAGES.name, json.dumps(said, ensure_ascii=False))
        if answer is not None:
            bounded, _ = _limit_parts(answer, CONTENT_LIMIT)
            messages = [{"role": "assistant", "parts": bounded, "finish_reason": finish}]
            self._span.set_attribute(a.OUTPUT_MESSAGES.name, json.dumps(messages, ensure_ascii=False))

    def _nanos(self, monotonic: float) -> int:
        return int((monotonic + self._epoch) * 1e9)


def _limit_parts(parts: Sequence[Part], most: int) -> tuple[list[dict[str, str]], int]:
    """Returns the parts, cut to `most` characters of content in all, and how many of the `most` characters are left
    for further parts."""
    bounded = []
    for part in parts:
        copy = dict(part)
        for name in _CONTENTS:
            if name in copy:
                copy[name] = copy[name][:most]
                most -= len(copy[name])
        bounded.append(copy)
    return bounded, most


def _request_attributes(start: InferenceStart, naming: ModelNames) -> dict[str, AttributeValue]:
    sampling, seed, info = start.sampling, start.sampling.seed, naming.info()
    model = None if info is None else info.model
    return attributes_of(
        {
            a.OPERATION: start.operation,
            a.PROVIDER: catalog.PROVIDER_NAME,
            a.MODEL: model,
            a.REQUEST_MAX_TOKENS: start.max_tokens,
            a.REQUEST_TEMPERATURE: sampling.temperature,
            a.REQUEST_TOP_P: sampling.top_p,
            a.REQUEST_TOP_K: sampling.top_k,
            a.REQUEST_MIN_P: sampling.min_p,
            # OTLP integers are signed: a seed beyond 2**63 wraps as in two's complement, so that the batch is not lost.
            a.REQUEST_SEED: None if seed is None else (seed + 2**63) % 2**64 - 2**63,
            a.REQUEST_PRESENCE: sampling.presence_penalty or None,
            a.REQUEST_FREQUENCY: sampling.frequency_penalty or None,
            a.REQUEST_CHOICES: start.choices if start.choices > 1 else None,
            a.REQUEST_CHOICE: start.choice if start.choices > 1 else None,
            a.REQUEST_STOP: start.stop or None,
            a.REQUEST_STREAM: True,
            a.RESPONSE_ID: start.request_id,
            a.RESPONSE_MODEL: model,
            a.USAGE_INPUT: start.prompt_tokens,
            a.DRAFT_MODEL: naming.draft(None),
            a.WORKLOAD: start.workload.value,
        }
    )


def _outcome_attributes(outcome: Outcome) -> dict[str, AttributeValue]:
    stats, counts = outcome.stats, outcome.stats.counts
    attributes: dict[str, AttributeValue] = {metric.name: read(counts) for metric, read in COUNTS.items()}
    if counts.drafts and counts.draft_cost is None:
        del attributes[catalog.BREAK_EVEN_TOKENS.name]
    attributes |= attributes_of(
        {
            a.RESPONSE_FINISH: (outcome.reason.value,),
            a.USAGE_INPUT: stats.prompt_tokens,
            a.USAGE_CACHE_READ: stats.cached_tokens,
            a.USAGE_OUTPUT: counts.emitted,
            a.STEPS: counts.steps,
            a.ACCEPTANCE: counts.acceptance,
            a.MEAN_ACCEPTED: counts.mean_accepted_length,
            a.SPEEDUP: counts.speedup,
            a.TOKENS_PER_SECOND: stats.decode_tokens_per_second,
            a.TTFT: stats.time_to_first_token,
            a.RESPONSE_TTFC: stats.time_to_first_token,
            a.DEGRADED: outcome.degraded or None,
            a.FAILED_OVER: outcome.failed_over or None,
        }
    )
    if stats.remote is not None:
        attributes |= remote_attributes(stats.remote)
    times = {catalog.QUEUE_DURATION: stats.queue_seconds, catalog.PREFILL_DURATION: stats.prefill_seconds}
    attributes |= {metric.name: seconds for metric, seconds in times.items() if seconds is not None}
    return attributes
