"""The inference span and its children, by the GenAI conventions, with draftd's counts beside them.

Spans are started and ended explicitly and never held current: a request's handler yields to its client between them.
"""

from __future__ import annotations

import json
import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

from draftd.core import ContextTier, DecodePlan, FinishReason, Outcome, RequestStats, SamplingParams, WorkloadClass
from draftd.errors import DraftdError
from draftd.hardware.state import HardwareView
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.hardware import hardware_attributes
from draftd.telemetry.metrics import Metrics
from draftd.telemetry.recording import Guard, Naming, draft_label

# What this task works for: the call, and within it the request. A call has a task to itself, so neither is ever reset.
call_context: ContextVar[Context | None] = ContextVar("draftd_call", default=None)
request_context: ContextVar[Context | None] = ContextVar("draftd_request", default=None)

REFUSED = "refused"
_ERRORS = {
    FinishReason.CANCELLED: "Cancelled",
    FinishReason.DEADLINE: "DeadlineExceeded",
    FinishReason.ERROR: "EngineFailure",
}
_MESSAGE_LIMIT = 256  # characters of an error message on a span
CONTENT_LIMIT = 16_384  # characters of prompt, and of answer, on a span: spans queue up while a collector is away


@dataclass(frozen=True, slots=True)
class InferenceStart:
    """What is known of a request when it arrives. `arrival` is on the monotonic clock. `messages` are (role, content)
    pairs and leave the process only when content capture was opted in."""

    operation: str
    model: str
    draft_model: str | None
    request_id: str
    arrival: float
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    prompt_tokens: int | None = None
    messages: tuple[tuple[str, str], ...] = ()


class InferenceSpan:
    """One request, as a span with children and on the request metrics. Never raises.

    Exactly one of `finished` and `refused` ends it; a second is ignored.
    """

    def __init__(
        self,
        start: InferenceStart,
        tracer: Tracer,
        metrics: Metrics,
        naming: Naming,
        hardware: HardwareView,
        guard: Guard,
        *,
        exporting: bool = True,
        capture_content: bool = False,
    ) -> None:
        self._start, self._tracer, self._metrics = start, tracer, metrics
        self._naming, self._hardware, self._guarded = naming, hardware, guard.part("span")
        self._capture = capture_content
        self._plan: DecodePlan | None = None
        self._tier: ContextTier | None = None
        self._answer: str | None = None
        self._ended = not exporting  # then the rest is a few comparisons
        # Monotonic to epoch, once for the whole request: its spans cannot be torn apart by a clock that is set.
        self._epoch = time.time() - time.monotonic()
        self._span: Span = INVALID_SPAN
        if not exporting:
            return
        parent = call_context.get() or Context()
        with self._guarded:
            self._span = tracer.start_span(
                f"{start.operation} {start.model}".rstrip(),
                context=parent,
                attributes=_request_attributes(start),
                start_time=self._nanos(start.arrival),
            )
        self._context = set_span_in_context(self._span, parent)
        request_context.set(self._context)

    def planned(self, plan: DecodePlan, tier: ContextTier) -> None:
        """How it will be decoded."""
        if self._ended:
            return
        with self._guarded:
            self._plan, self._tier = plan, tier
            self._span.set_attributes(_plan_attributes(self._start, plan, tier))

    def captured(self, text: str) -> None:
        """The whole answer; kept only when content capture was opted in. Before `finished`."""
        if self._capture:
            self._answer = text

    def finished(self, outcome: Outcome) -> None:
        """It ended in the engine."""
        if self._ended:
            return
        self._ended = True
        with self._guarded:
            self._finish(outcome)

    def refused(self, error: DraftdError) -> None:
        """It never reached the engine."""
        if self._ended:
            return
        self._ended = True
        with self._guarded:
            end = time.monotonic()
            kind = type(error).__name__
            self._span.set_attributes({a.ERROR_TYPE.name: kind, a.OUTCOME.name: REFUSED})
            self._span.set_status(Status(StatusCode.ERROR, error.message[:_MESSAGE_LIMIT]))
            self._content(REFUSED)
            self._close(end)
            self._count(REFUSED, kind, end - self._start.arrival)

    def _close(self, end: float) -> None:
        """Ends the span, with what the machine is like then."""
        self._span.set_attributes(hardware_attributes(self._hardware.state))
        self._span.end(self._nanos(end))

    def _finish(self, outcome: Outcome) -> None:
        stats, reason = outcome.stats, outcome.reason
        end = stats.finished if stats.finished is not None else time.monotonic()
        kind = _ERRORS.get(reason)
        self._span.set_attributes(_outcome_attributes(self._start, outcome))
        if kind is not None:
            self._span.set_attribute(a.ERROR_TYPE.name, kind)
        if reason in (FinishReason.DEADLINE, FinishReason.ERROR):
            self._span.set_status(Status(StatusCode.ERROR, (outcome.error or reason.value)[:_MESSAGE_LIMIT]))
        self._content(reason.value)
        self._children(stats, end)
        self._close(end)
        self._count(reason.value, kind, end - stats.arrival)
        self._times(stats, success=kind is None)

    def _count(self, outcome: str, kind: str | None, seconds: float) -> None:
        labels = self._naming.labels(self._plan, self._start.workload, self._tier)
        error = {} if kind is None else {a.ERROR_TYPE.name: kind}
        self._metrics.count(catalog.REQUESTS, {**labels, a.OUTCOME.name: outcome, **error}, self._context)
        duration = {**labels, **self._gen_ai(), **error}
        self._metrics.record(catalog.REQUEST_DURATION, max(0.0, seconds), duration, self._context)

    def _times(self, stats: RequestStats, *, success: bool) -> None:
        labels = self._naming.labels(self._plan, self._start.workload, self._tier)
        found = [
            (catalog.QUEUE_DURATION, stats.queue_seconds, labels),
            (catalog.PREFILL_DURATION, stats.prefill_seconds, labels),
        ]
        if success:
            gen_ai = {**labels, **self._gen_ai()}
            found += [
                (catalog.TIME_TO_FIRST_TOKEN, stats.time_to_first_token, gen_ai),
                (catalog.TIME_PER_OUTPUT_TOKEN, stats.time_per_output_token, gen_ai),
            ]
        for metric, seconds, attributes in found:
            if seconds is not None:
                self._metrics.record(metric, max(0.0, seconds), attributes, self._context)

    def _gen_ai(self) -> dict[str, str]:
        return {a.OPERATION.name: self._start.operation, a.PROVIDER.name: catalog.PROVIDER_NAME}

    def _children(self, stats: RequestStats, end: float) -> None:
        if not self._span.is_recording():
            return
        scheduled, prefilled = stats.scheduled, stats.prefilled
        self._child(catalog.QUEUE_SPAN, stats.arrival, scheduled if scheduled is not None else end, {})
        if scheduled is None:
            return
        prompt: dict[str, AttributeValue] = {
            a.USAGE_INPUT.name: stats.prompt_tokens,
            a.USAGE_CACHE_READ.name: stats.cached_tokens,
        }
        self._child(catalog.PREFILL_SPAN, scheduled, prefilled if prefilled is not None else end, prompt)
        if prefilled is None:
            return
        counts = stats.counts
        emitted: dict[str, AttributeValue] = {a.USAGE_OUTPUT.name: counts.emitted, a.STEPS.name: counts.steps}
        self._child(catalog.DECODE_SPAN, prefilled, end, emitted)

    def _child(self, kind: catalog.Span, start: float, end: float, attributes: dict[str, AttributeValue]) -> None:
        span = self._tracer.start_span(
            kind.name, context=self._context, attributes=attributes, start_time=self._nanos(start)
        )
        span.end(self._nanos(max(start, end)))

    def _content(self, finish: str) -> None:
        if not self._capture:
            return
        if self._start.messages:
            left, said = CONTENT_LIMIT, []
            for role, text in self._start.messages:
                said.append({"role": role, "parts": [{"type": "text", "content": text[:left]}]})
                left -= len(text[:left])
            self._span.set_attribute(a.INPUT_MESSAGES.name, json.dumps(said, ensure_ascii=False))
        if self._answer is not None:
            parts = [{"type": "text", "content": self._answer[:CONTENT_LIMIT]}]
            answer = [{"role": "assistant", "parts": parts, "finish_reason": finish}]
            self._span.set_attribute(a.OUTPUT_MESSAGES.name, json.dumps(answer, ensure_ascii=False))

    def _nanos(self, monotonic: float) -> int:
        return int((monotonic + self._epoch) * 1e9)


def _request_attributes(start: InferenceStart) -> dict[str, AttributeValue]:
    sampling = start.sampling
    found: dict[str, AttributeValue] = {
        a.OPERATION.name: start.operation,
        a.PROVIDER.name: catalog.PROVIDER_NAME,
        a.REQUEST_TEMPERATURE.name: sampling.temperature,
        a.REQUEST_TOP_P.name: sampling.top_p,
        a.REQUEST_TOP_K.name: sampling.top_k,
        a.REQUEST_MIN_P.name: sampling.min_p,
        a.REQUEST_STREAM.name: True,
        a.RESPONSE_ID.name: start.request_id,
        a.DRAFT_MODEL.name: draft_label(start.draft_model, None),
        a.WORKLOAD.name: start.workload.value,
    }
    if start.model:  # not yet known to a request that is refused while the model loads
        found[a.MODEL.name] = found[a.RESPONSE_MODEL.name] = start.model
    if start.max_tokens is not None:
        found[a.REQUEST_MAX_TOKENS.name] = start.max_tokens
    if sampling.seed is not None:
        # OTLP integers are signed: a seed past 2**63 wraps as two's complement does rather than losing the batch.
        found[a.REQUEST_SEED.name] = (sampling.seed + 2**63) % 2**64 - 2**63
    if start.stop:
        found[a.REQUEST_STOP.name] = start.stop
    if start.prompt_tokens is not None:
        found[a.USAGE_INPUT.name] = start.prompt_tokens
    return found


def _plan_attributes(start: InferenceStart, plan: DecodePlan, tier: ContextTier) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        a.DRAFT_MODEL.name: draft_label(start.draft_model, plan),
        a.MODE.name: plan.mode.value,
        a.CONTEXT_TIER.name: tier.value,
        a.PLAN_REASON.name: plan.reason,
        a.PLAN_LEVEL.name: plan.level.label,
        a.PLAN_VARIANT.name: plan.variant,
        a.PLAN_DRAFTER.name: plan.drafter or "none",
        a.PLAN_MAX_DRAFT.name: plan.max_draft_tokens,
        a.PLAN_DEPTH_MODE.name: plan.depth_mode.value if plan.drafter is not None else "none",
    }
    if plan.alternatives:
        found[a.PLAN_ALTERNATIVES.name] = tuple(sorted(plan.alternatives))
    return found


def _outcome_attributes(start: InferenceStart, outcome: Outcome) -> dict[str, AttributeValue]:
    stats, counts = outcome.stats, outcome.stats.counts
    found: dict[str, AttributeValue] = {
        a.OUTCOME.name: outcome.reason.value,
        a.RESPONSE_FINISH.name: (outcome.reason.value,),
        a.USAGE_INPUT.name: stats.prompt_tokens,
        a.USAGE_CACHE_READ.name: stats.cached_tokens,
        a.USAGE_OUTPUT.name: counts.emitted,
        a.STEPS.name: counts.steps,
        a.DRAFTS.name: counts.drafts,
        a.DRAFT_TOKENS.name: counts.drafted,
        a.ACCEPTED_TOKENS.name: counts.accepted,
        a.ACCEPTED_PER_POS.name: tuple(counts.accepted_per_position),
        a.DRAFTED_PER_POS.name: tuple(counts.drafted_per_position),
        a.ROLLBACKS.name: counts.rollbacks,
        a.ROLLED_BACK.name: counts.rolled_back,
        a.DRAFT_FORWARDS.name: counts.draft_forwards,
        a.TARGET_FORWARDS.name: counts.target_forwards,
        a.DRAFT_TIME.name: counts.draft_seconds,
        a.VERIFY_TIME.name: counts.verify_seconds,
        a.BREAK_EVEN_TOKENS.name: counts.break_even_tokens,
        a.PARKED_STEPS.name: counts.parked_steps,
        a.CAPPED_STEPS.name: counts.capped_steps,
    }
    optional: tuple[tuple[a.Attribute, float | str | None], ...] = (
        (a.ACCEPTANCE, counts.acceptance),
        (a.MEAN_ACCEPTED, counts.mean_accepted_length),
        (a.SPEEDUP, counts.speedup),
        (a.TOKENS_PER_SECOND, stats.decode_tokens_per_second),
        (a.TTFT, stats.time_to_first_token),
        (a.RESPONSE_TTFC, stats.time_to_first_token),
        (a.QUEUE_SECONDS, stats.queue_seconds),
        (a.PREFILL_SECONDS, stats.prefill_seconds),
        (a.DEGRADED, outcome.degraded or None),
    )
    found.update({attribute.name: value for attribute, value in optional if value is not None})
    return found
