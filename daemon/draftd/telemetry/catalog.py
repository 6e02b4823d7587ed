"""The catalog: every metric, span and log event that draftd emits, as data.

Instruments are made from it, `docs/telemetry.md` is written from it, and dashboards read their names here.
"""

from __future__ import annotations

from draftd.telemetry import attributes as a
from draftd.telemetry import fallback, machine
from draftd.telemetry.kinds import Event as Event
from draftd.telemetry.kinds import Kind as Kind
from draftd.telemetry.kinds import Metric as Metric
from draftd.telemetry.kinds import Span as Span

SCOPE = "draftd"  # name of the instrumentation scope
PROVIDER_NAME = "draftd"  # value of gen_ai.provider.name


LABELS = (a.MODEL, a.DRAFT_MODEL, a.MODE, a.WORKLOAD, a.CONTEXT_TIER, a.PLAN_LEVEL)
_GEN_AI = (a.OPERATION, a.PROVIDER, *LABELS)

_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_RPC = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_WAIT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_GAP = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0,
)  # fmt: skip

REQUEST_DURATION = Metric(
    "gen_ai.server.request.duration",
    Kind.HISTOGRAM,
    "s",
    "From a request's arrival until its end; `error.type` tells failures apart",
    (*_GEN_AI, a.ERROR_TYPE),
    _DURATION,
)
TIME_TO_FIRST_TOKEN = Metric(
    "gen_ai.server.time_to_first_token",
    Kind.HISTOGRAM,
    "s",
    "From arrival until the first token; successes only",
    _GEN_AI,
    _TTFT,
)
TIME_PER_OUTPUT_TOKEN = Metric(
    "gen_ai.server.time_per_output_token",
    Kind.HISTOGRAM,
    "s",
    "(duration - time to first token) / (output tokens - 1); successes only",
    _GEN_AI,
    _TPOT,
)
RPC_DURATION = Metric(
    "rpc.server.call.duration",
    Kind.HISTOGRAM,
    "s",
    "Calls on the gRPC server, health checks and reflection left out",
    (a.RPC_SYSTEM, a.RPC_METHOD, a.RPC_STATUS, a.ERROR_TYPE),
    _RPC,
)
QUEUE_DURATION = Metric("draftd.queue.duration", Kind.HISTOGRAM, "s", "From arrival until scheduled", LABELS, _WAIT)
PREFILL_DURATION = Metric(
    "draftd.prefill.duration",
    Kind.HISTOGRAM,
    "s",
    "From scheduled until the whole prompt was in the cache",
    LABELS,
    _WAIT,
)
INTER_CHUNK_DURATION = Metric(
    "draftd.inter_chunk.duration",
    Kind.HISTOGRAM,
    "s",
    "Between successive chunks of one request: one per round, which may hold several tokens",
    LABELS,
    _GAP,
)

DRAFTS = Metric(
    "draftd.spec_decode.drafts",
    Kind.OBSERVABLE_COUNTER,
    "{draft}",
    "Rounds with at least one drafted token",
    LABELS,
)
DRAFT_TOKENS = Metric("draftd.spec_decode.draft_tokens", Kind.OBSERVABLE_COUNTER, "{token}", "Drafted tokens", LABELS)
ACCEPTED_TOKENS = Metric(
    "draftd.spec_decode.accepted_tokens",
    Kind.OBSERVABLE_COUNTER,
    "{token}",
    "Drafted tokens that stand in the text",
    LABELS,
)
ACCEPTED_PER_POS = Metric(
    "draftd.spec_decode.accepted_tokens_per_pos",
    Kind.OBSERVABLE_COUNTER,
    "{token}",
    "Drafted tokens that stand in the text, by place in the draft; over those of "
    "`draftd.spec_decode.draft_tokens_per_pos` it is the acceptance at that place",
    (*LABELS, a.POSITION),
)
DRAFTED_PER_POS = Metric(
    "draftd.spec_decode.draft_tokens_per_pos",
    Kind.OBSERVABLE_COUNTER,
    "{token}",
    "Drafted tokens, by place in the draft",
    (*LABELS, a.POSITION),
)
ROLLBACKS = Metric(
    "draftd.spec_decode.rollbacks",
    Kind.OBSERVABLE_COUNTER,
    "{rollback}",
    "Rounds in which the target turned a drafted token down",
    LABELS,
)
ROLLED_BACK_TOKENS = Metric(
    "draftd.spec_decode.rolled_back_tokens",
    Kind.OBSERVABLE_COUNTER,
    "{token}",
    "Drafted tokens that do not stand in the text: drafted less accepted",
    LABELS,
)
DRAFT_FORWARDS = Metric(
    "draftd.spec_decode.draft_forwards",
    Kind.OBSERVABLE_COUNTER,
    "{forward}",
    "Forward passes of the draft model, counted for each request that took part",
    LABELS,
)
TARGET_FORWARDS = Metric(
    "draftd.spec_decode.target_forwards",
    Kind.OBSERVABLE_COUNTER,
    "{forward}",
    "Forward passes of the target in decode rounds of either mode, counted for each request that took part",
    LABELS,
)
DRAFT_TIME = Metric(
    "draftd.spec_decode.draft.time",
    Kind.OBSERVABLE_COUNTER,
    "s",
    "Time that rounds spent drafting, counted for each request that took part",
    LABELS,
)
VERIFY_TIME = Metric(
    "draftd.spec_decode.verify.time",
    Kind.OBSERVABLE_COUNTER,
    "s",
    "Time that rounds of either mode spent in the target's forward pass, counted for each request that took part",
    LABELS,
)
BREAK_EVEN_TOKENS = Metric(
    "draftd.spec_decode.break_even_tokens",
    Kind.OBSERVABLE_COUNTER,
    "{token}",
    "Accepted tokens that would have made the drafted rounds just as fast as autoregressive ones, both measured at the "
    "same batch size",
    LABELS,
)
PARKED_ROUNDS = Metric(
    "draftd.spec_decode.parked_rounds",
    Kind.OBSERVABLE_COUNTER,
    "{round}",
    "Rounds that drafted nothing, although a drafter was to be had, because it did not pay",
    LABELS,
)
CAPPED_ROUNDS = Metric(
    "draftd.spec_decode.capped_rounds",
    Kind.OBSERVABLE_COUNTER,
    "{round}",
    "Rounds in which more drafted tokens would have paid than the plan allowed",
    LABELS,
)
TOKENS = Metric(
    "draftd.tokens",
    Kind.OBSERVABLE_COUNTER,
    "{token}",
    "Tokens: output as they are emitted, input when their request ends",
    (*LABELS, a.TOKEN_TYPE),
)
DRAFTER_ERRORS = Metric(
    "draftd.drafter.errors",
    Kind.OBSERVABLE_COUNTER,
    "{error}",
    "Requests for which drafting failed; they went on autoregressively",
    LABELS,
)
VERIFIER_ERRORS = Metric(
    "draftd.verifier.errors",
    Kind.OBSERVABLE_COUNTER,
    "{error}",
    "Requests that were in a decode round that failed; they were taken in anew and went on autoregressively, or ended "
    "in an error",
    LABELS,
)
REQUESTS = Metric(
    "draftd.requests",
    Kind.COUNTER,
    "{request}",
    "Requests that ended, refused ones included",
    (*LABELS, a.OUTCOME, a.ERROR_TYPE),
)

FLAG_ENABLED = Metric(
    "draftd.flag.enabled",
    Kind.GAUGE,
    "{flag}",
    "1 where the feature flag's default variant lets requests speculate, else 0; targeting may decide otherwise",
    (a.MODEL,),
)
ACTIVE_REQUESTS = Metric(
    "draftd.engine.active_requests", Kind.GAUGE, "{request}", "Requests in prefill or decoding", (a.MODEL,)
)
QUEUED_REQUESTS = Metric(
    "draftd.engine.queued_requests", Kind.GAUGE, "{request}", "Requests that wait to be scheduled", (a.MODEL,)
)
QUEUE_CAPACITY = Metric(
    "draftd.engine.queue_capacity", Kind.GAUGE, "{request}", "Requests that may wait; beyond it, refused", (a.MODEL,)
)
KV_CACHE = Metric("draftd.engine.kv_cache", Kind.GAUGE, "By", "MLX arrays held by key-value caches", (a.MODEL,))
KV_CACHE_LIMIT = Metric(
    "draftd.engine.kv_cache_limit", Kind.GAUGE, "By", "What key-value caches may take; 0 without a limit", (a.MODEL,)
)
HELD_BACK_REQUESTS = Metric(
    "draftd.engine.held_back_requests",
    Kind.GAUGE,
    "{request}",
    "Requests that wait although the batch has a place, because there is no memory for their key-value caches",
    (a.MODEL,),
)
WEIGHTS = Metric(
    "draftd.engine.weights", Kind.GAUGE, "By", "MLX arrays held by the weights, draft included", (a.MODEL,)
)
PREFIX_USAGE = Metric(
    "draftd.prefix_cache.usage",
    Kind.GAUGE,
    "By",
    "MLX arrays held by keys and values of finished requests, kept for those that begin with the same tokens",
    (a.MODEL,),
)
PREFIX_LIMIT = Metric(
    "draftd.prefix_cache.limit",
    Kind.GAUGE,
    "By",
    "The most that they may hold now: less than was set while the machine's memory is under pressure",
    (a.MODEL,),
)
PREFIX_ENTRIES = Metric(
    "draftd.prefix_cache.entries", Kind.GAUGE, "{entry}", "Texts of which they are kept", (a.MODEL,)
)
PREFIX_LOOKUPS = Metric(
    "draftd.prefix_cache.lookups",
    Kind.OBSERVABLE_COUNTER,
    "{request}",
    "Requests that looked for what was kept of their prompts' beginnings, counted when they end",
    (a.MODEL,),
)
PREFIX_HITS = Metric(
    "draftd.prefix_cache.hits", Kind.OBSERVABLE_COUNTER, "{request}", "Of those, the requests that found it", (a.MODEL,)
)
PREFIX_READ = Metric(
    "draftd.prefix_cache.read_tokens",
    Kind.OBSERVABLE_COUNTER,
    "{token}",
    "Prompt tokens that were not computed because of it; they are among the input tokens",
    (a.MODEL,),
)
TELEMETRY_ERRORS = Metric(
    "draftd.telemetry.errors",
    Kind.OBSERVABLE_COUNTER,
    "{error}",
    "Failures of telemetry itself, caught before they reached a request",
    (a.TELEMETRY_PART,),
)

METRICS: tuple[Metric, ...] = (
    REQUEST_DURATION,
    TIME_TO_FIRST_TOKEN,
    TIME_PER_OUTPUT_TOKEN,
    DRAFTS,
    DRAFT_TOKENS,
    ACCEPTED_TOKENS,
    ACCEPTED_PER_POS,
    DRAFTED_PER_POS,
    ROLLBACKS,
    ROLLED_BACK_TOKENS,
    DRAFT_FORWARDS,
    TARGET_FORWARDS,
    DRAFT_TIME,
    VERIFY_TIME,
    BREAK_EVEN_TOKENS,
    PARKED_ROUNDS,
    CAPPED_ROUNDS,
    TOKENS,
    REQUESTS,
    DRAFTER_ERRORS,
    VERIFIER_ERRORS,
    *fallback.METRICS,
    FLAG_ENABLED,
    QUEUE_DURATION,
    PREFILL_DURATION,
    INTER_CHUNK_DURATION,
    ACTIVE_REQUESTS,
    QUEUED_REQUESTS,
    QUEUE_CAPACITY,
    KV_CACHE,
    KV_CACHE_LIMIT,
    HELD_BACK_REQUESTS,
    WEIGHTS,
    PREFIX_USAGE,
    PREFIX_LIMIT,
    PREFIX_ENTRIES,
    PREFIX_LOOKUPS,
    PREFIX_HITS,
    PREFIX_READ,
    *machine.METRICS,
    RPC_DURATION,
    TELEMETRY_ERRORS,
)

RPC_SPAN = Span(
    "{rpc.method}",
    "SERVER",
    "One call, a child of the caller's span where `traceparent` names one. Status is an error for UNKNOWN, "
    "DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE and DATA_LOSS, and unset for the rest: a caller that "
    "cancels or asks for nonsense is no fault of the server",
    (a.RPC_SYSTEM, a.RPC_METHOD, a.RPC_STATUS, a.ERROR_TYPE),
)
INFERENCE_SPAN = Span(
    "{gen_ai.operation.name} {gen_ai.request.model}",
    "INTERNAL",
    "One request, a child of the RPC's span. Status is an error when it was refused, failed or ran out of time, and "
    "unset when it succeeded or its caller cancelled it",
    (
        a.OPERATION, a.PROVIDER, a.MODEL, a.REQUEST_MAX_TOKENS, a.REQUEST_TEMPERATURE, a.REQUEST_TOP_P,
        a.REQUEST_TOP_K, a.REQUEST_MIN_P, a.REQUEST_SEED, a.REQUEST_STOP, a.REQUEST_STREAM, a.RESPONSE_ID,
        a.RESPONSE_MODEL, a.RESPONSE_FINISH, a.RESPONSE_TTFC, a.USAGE_INPUT, a.USAGE_CACHE_READ, a.USAGE_OUTPUT,
        a.ERROR_TYPE,
        a.INPUT_MESSAGES, a.OUTPUT_MESSAGES, a.DRAFT_MODEL, a.MODE, a.WORKLOAD, a.CONTEXT_TIER, a.OUTCOME,
        a.PLAN_REASON, a.PLAN_LEVEL, a.PLAN_VARIANT, a.PLAN_DRAFTER, a.PLAN_MAX_DRAFT,
        a.PLAN_DEPTH_MODE, a.PLAN_ALTERNATIVES, a.DEGRADED, a.ROUNDS,
        a.DRAFTS, a.DRAFT_TOKENS, a.ACCEPTED_TOKENS, a.ACCEPTED_PER_POS, a.DRAFTED_PER_POS, a.ROLLBACKS,
        a.ROLLED_BACK, a.DRAFT_FORWARDS, a.TARGET_FORWARDS, a.DRAFT_TIME, a.VERIFY_TIME, a.BREAK_EVEN_TOKENS,
        a.PARKED_ROUNDS, a.CAPPED_ROUNDS, a.ACCEPTANCE, a.MEAN_ACCEPTED, a.SPEEDUP, a.TOKENS_PER_SECOND, a.TTFT,
        a.QUEUE_SECONDS, a.PREFILL_SECONDS, a.MEMORY_PRESSURE, a.MEMORY_HEADROOM, a.THERMAL_LEVEL,
    ),
)  # fmt: skip
QUEUE_SPAN = Span("queue", "INTERNAL", "From arrival until scheduled, or until the end of what never was")
PREFILL_SPAN = Span(
    "prefill", "INTERNAL", "From scheduled until the prompt was cached", (a.USAGE_INPUT, a.USAGE_CACHE_READ)
)
PROBE_SPAN = Span(
    "probe {draftd.plan.level}",
    "INTERNAL",
    "One probe of a rung, or one run of the canaries: the daemon's own requests, which no metric of requests counts",
    (a.ORIGIN, a.PLAN_LEVEL, a.RESULT, a.ACCEPTANCE, a.SPEEDUP),
)
DECODE_SPAN = Span("decode", "INTERNAL", "From then until the end", (a.USAGE_OUTPUT, a.ROUNDS))

SPANS: tuple[Span, ...] = (RPC_SPAN, INFERENCE_SPAN, QUEUE_SPAN, PREFILL_SPAN, DECODE_SPAN, PROBE_SPAN)

FLAG_EVALUATION = Event(
    "feature_flag.evaluation",
    "One evaluation of a feature flag, in the trace of the request that asked",
    (
        a.FLAG_KEY, a.FLAG_VARIANT, a.FLAG_VALUE, a.FLAG_REASON, a.FLAG_PROVIDER, a.FLAG_CONTEXT, a.FLAG_SET,
        a.FLAG_VERSION, a.ERROR_TYPE, a.FLAG_ERROR_MESSAGE,
    ),
)  # fmt: skip

TRANSITION = Event(
    "draftd.transition",
    "What the daemon allows has changed: the flag's default variant, or the fallback level",
    (a.TRANSITION_SUBJECT, a.TRANSITION_FROM, a.TRANSITION_TO, a.TRANSITION_CAUSE, a.TRANSITION_EVIDENCE),
)

EVENTS: tuple[Event, ...] = (FLAG_EVALUATION, TRANSITION)
