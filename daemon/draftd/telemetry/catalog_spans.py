"""The catalog of spans and log events; metrics are in catalog.py."""

from __future__ import annotations

from draftd.telemetry import attributes as a
from draftd.telemetry import catalog_remote as remote
from draftd.telemetry.attributes import Event, Span
from draftd.telemetry.catalog import (
    ACCEPTED_PER_POS,
    ACCEPTED_TOKENS,
    BREAK_EVEN_TOKENS,
    CAPPED_STEPS,
    CUT_TOKENS,
    DRAFT_FORWARDS,
    DRAFT_TIME,
    DRAFT_TOKENS,
    DRAFTED_PER_POS,
    DRAFTS,
    MEMORY_HEADROOM,
    MEMORY_PRESSURE,
    PARKED_STEPS,
    PREFILL_DURATION,
    QUEUE_DURATION,
    ROLLBACKS,
    ROLLED_BACK_TOKENS,
    SERVER,
    TARGET_FORWARDS,
    THERMAL_LEVEL,
    UNPRICED_DRAFTS,
    VERIFY_TIME,
)

RPC_SPAN = Span(
    "{rpc.method}",
    "One gRPC call, a child of the caller's span if `traceparent` names one. Status is an error for UNKNOWN, "
    "DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE and DATA_LOSS, and unset otherwise: a cancelled or "
    "invalid call is not the server's error",
    (a.RPC_SYSTEM, a.RPC_METHOD, *SERVER, a.RPC_STATUS, a.ERROR_TYPE),
    "SERVER",
)
HTTP_SPAN = Span(
    "{http.request.method} {http.route}",
    "One request on the HTTP server, a child of the caller's span if `traceparent` names one. Status is an error for "
    "5xx, and if an answer failed after it had begun; it is unset if the error is the client's, or the client left",
    (a.HTTP_METHOD, a.HTTP_ROUTE, a.URL_SCHEME, *SERVER, a.HTTP_STATUS, a.ERROR_TYPE),
    "SERVER",
)
INFERENCE_SPAN = Span(
    "{gen_ai.operation.name} {gen_ai.request.model}",
    "One request, or one of its choices if it asked for several; a child of the gRPC call's or the HTTP request's "
    "span. Status is an error if the request was refused, failed or passed its deadline, and unset if it succeeded "
    "or its caller cancelled it",
    (
        a.OPERATION, a.PROVIDER, a.MODEL, a.REQUEST_MAX_TOKENS, a.REQUEST_TEMPERATURE, a.REQUEST_TOP_P,
        a.REQUEST_TOP_K, a.REQUEST_MIN_P, a.REQUEST_SEED, a.REQUEST_PRESENCE,
        a.REQUEST_FREQUENCY, a.REQUEST_CHOICES, a.REQUEST_CHOICE, a.REQUEST_STOP, a.REQUEST_STREAM, a.RESPONSE_ID,
        a.RESPONSE_MODEL, a.RESPONSE_FINISH, a.RESPONSE_TTFC, a.USAGE_INPUT, a.USAGE_CACHE_READ, a.USAGE_OUTPUT,
        a.ERROR_TYPE, a.INPUT_MESSAGES, a.OUTPUT_MESSAGES, a.DRAFT_MODEL, a.MODE, a.WORKLOAD, a.CONTEXT_TIER, a.OUTCOME,
        a.PLAN_REASON, a.PLAN_LEVEL, a.PLAN_VARIANT, a.PLAN_DRAFTER, a.PLAN_MAX_DRAFT, a.PLAN_DEPTH_MODE,
        a.PLAN_ALTERNATIVES, a.RESPONSE_FORMAT, a.GRAMMAR_COMPILE, a.DEGRADED, a.STEPS, a.ACCEPTANCE, a.MEAN_ACCEPTED,
        a.SPEEDUP, a.TOKENS_PER_SECOND, a.TTFT, a.STRATEGY, a.QUALITY, a.FAILED_OVER, a.CURRENCY,
        remote.COST.on_span("double"), *remote.ON_SPAN,
        *(metric.on_span() for metric in (
            DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS, CUT_TOKENS, ROLLBACKS, ROLLED_BACK_TOKENS, DRAFT_FORWARDS,
            TARGET_FORWARDS, PARKED_STEPS, CAPPED_STEPS, UNPRICED_DRAFTS, MEMORY_PRESSURE, MEMORY_HEADROOM,
            THERMAL_LEVEL,
        )),
        *(metric.on_span("int[]") for metric in (ACCEPTED_PER_POS, DRAFTED_PER_POS)),
        *(metric.on_span("double") for metric in (
            DRAFT_TIME, VERIFY_TIME, BREAK_EVEN_TOKENS, QUEUE_DURATION, PREFILL_DURATION,
        )),
    ),
)  # fmt: skip
QUEUE_SPAN = Span(
    "queue",
    "Time from a request's arrival until the scheduler takes it from the queue, or until its end if that never happens",
)
PREFILL_SPAN = Span(
    "prefill",
    "Time from leaving the queue until the whole prompt is in the KV cache",
    (a.USAGE_INPUT, a.USAGE_CACHE_READ),
)
PROBE_SPAN = Span(
    "probe {draftd.plan.level}",
    "One probe of a level, or one run of the canaries. Their requests are the daemon's own; no metric of requests "
    "counts them",
    (a.ORIGIN, a.PLAN_LEVEL, a.RESULT, a.ACCEPTANCE, a.SPEEDUP),
)
DECODE_SPAN = Span("decode", "Time from the end of prefill to the end of the request", (a.USAGE_OUTPUT, a.STEPS))

FLAG_EVALUATION = Event(
    "feature_flag.evaluation",
    "One evaluation of a feature flag, in the trace of the request that needed it",
    (
        a.FLAG_KEY, a.FLAG_VARIANT, a.FLAG_VALUE, a.FLAG_REASON, a.FLAG_PROVIDER, a.FLAG_CONTEXT, a.FLAG_SET,
        a.FLAG_VERSION, a.ERROR_TYPE, a.FLAG_ERROR_MESSAGE,
    ),
)  # fmt: skip

TRANSITION = Event(
    "draftd.transition",
    "A change of the feature flag's default variant, of the fallback level, of what the fallback allows of the "
    "remote, or of the link to the remote",
    (a.TRANSITION_SUBJECT, a.TRANSITION_FROM, a.TRANSITION_TO, a.TRANSITION_CAUSE, a.TRANSITION_EVIDENCE),
)

SPANS = tuple(found for found in (*globals().values(), *vars(remote).values()) if isinstance(found, Span))
EVENTS = tuple(found for found in list(globals().values()) if isinstance(found, Event))
