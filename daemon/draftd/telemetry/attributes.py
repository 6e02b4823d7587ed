"""What the catalog is made of: metrics, spans, log events, and every attribute that one of them has.

Names from the OpenTelemetry conventions are used as they stand; what those do not cover lives under `draftd.`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: its name, its type in OpenTelemetry's words, what it says."""

    name: str
    type: str
    brief: str


class Kind(enum.StrEnum):
    """Kinds of instrument. The observable ones are read when metrics are collected."""

    COUNTER = "counter"
    OBSERVABLE_COUNTER = "observable counter"
    GAUGE = "observable gauge"
    UP_DOWN_COUNTER = "observable up-down counter"  # a gauge whose series may be added up
    HISTOGRAM = "histogram"


# How the collector spells units in Prometheus: https://github.com/prometheus/otlptranslator
_SUFFIXES = {"s": "_seconds", "By": "_bytes", "Cel": "_celsius", "W": "_watts", "rpm": "_rpm"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `buckets` are a histogram's upper bounds, in its unit."""

    name: str
    kind: Kind
    unit: str
    brief: str
    attributes: tuple[Attribute, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """The name in Prometheus, as the OpenTelemetry collector writes it."""
        name = self.name.replace(".", "_")
        suffix = _SUFFIXES.get(self.unit, "")
        if self.unit == "1" and self.kind is Kind.GAUGE:
            suffix = "_ratio"
        total = "_total" if self.kind in (Kind.COUNTER, Kind.OBSERVABLE_COUNTER) else ""
        return name + suffix + total


@dataclass(frozen=True, slots=True)
class Span:
    """One kind of span. `name` shows attributes in braces."""

    name: str
    kind: str
    brief: str
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One log event."""

    name: str
    brief: str
    attributes: tuple[Attribute, ...] = ()


# Common to the GenAI span and the metrics.
OPERATION = Attribute(
    "gen_ai.operation.name", "string", "`chat`, `text_completion` (raw prompt) or `generate_content` (token ids)"
)
PROVIDER = Attribute("gen_ai.provider.name", "string", "Always `draftd`: the model runs in this process")
MODEL = Attribute("gen_ai.request.model", "string", "The target model")
ERROR_TYPE = Attribute(
    "error.type",
    "string",
    "Class of what went wrong: `Cancelled`, `DeadlineExceeded`, `EngineFailure`, or that of the refusal, as "
    "`QueueFull`; absent on success. On an RPC, the status",
)
DRAFT_MODEL = Attribute(
    "draftd.draft_model",
    "string",
    "The draft model of the loaded pair, in both modes; `prompt_lookup` where the plan drafts without weights; "
    "`none` without either",
)
MODE = Attribute(
    "draftd.mode", "string", "`speculative` or `autoregressive`, as the request started; absent if refused before"
)
WORKLOAD = Attribute(
    "draftd.workload", "string", "Workload class: `code`, `tool_call`, `chat`, `prose` or `unspecified`"
)
CONTEXT_TIER = Attribute(
    "draftd.context_tier", "string", "Prompt length: `short` below 512 tokens, `medium` below 4,096, `long` from there"
)
OUTCOME = Attribute("draftd.outcome", "string", "`stop`, `length`, `cancelled`, `deadline`, `error` or `refused`")

# Metrics only.
TOKEN_TYPE = Attribute("gen_ai.token.type", "string", "`input` or `output`")
POSITION = Attribute("draftd.position", "int", "Position in the draft, counted from 0")
TELEMETRY_PART = Attribute("draftd.telemetry.part", "string", "Where telemetry itself failed, as `observer` or `span`")
READING = Attribute("draftd.hardware.reading", "string", "The reading that failed, as `gpu` or `macmon`")
MLX_STATE = Attribute(
    "draftd.memory.mlx.state",
    "string",
    "`active` (held by arrays), `cache` (freed and kept for reuse) or `peak` (the most that was active)",
)
MEMORY_STATE = Attribute(
    "system.memory.state",
    "string",
    "Linux: `used`, `free`, `cached`, `buffers`. macOS: `free`, `active`, `inactive`, `wired`, `compressed`. They add "
    "up to about the total",
)
PAGING_STATE = Attribute("system.paging.state", "string", "`used` or `free`")
PAGING_DIRECTION = Attribute("system.paging.direction", "string", "Always `in`")
HW_ID = Attribute("hw.id", "string", "The sensor, as `cpu`, `gpu` or `fan0`")
HW_TYPE = Attribute("hw.type", "string", "The kind of part: `cpu`, `gpu`, `memory`, `enclosure` (all of it) or `ane`")

# The machine when the request ended, on the inference span.
MEMORY_PRESSURE = Attribute("draftd.memory.pressure", "int", "0 normal, 1 warn, 2 critical; absent where not known")
MEMORY_HEADROOM = Attribute(
    "draftd.memory.headroom", "int", "Bytes available beyond the floor, negative below it; absent where not known"
)
THERMAL_LEVEL = Attribute(
    "draftd.thermal.level", "int", "0 nominal, 1 moderate, 2 heavy, 3 trapping, 4 sleeping; absent where not known"
)

# The request, on the inference span.
REQUEST_MAX_TOKENS = Attribute("gen_ai.request.max_tokens", "int", "Most tokens to emit")
REQUEST_TEMPERATURE = Attribute("gen_ai.request.temperature", "double", "Sampling temperature; 0 is greedy")
REQUEST_TOP_P = Attribute("gen_ai.request.top_p", "double", "Nucleus; 1 is off")
REQUEST_TOP_K = Attribute("gen_ai.request.top_k", "int", "Most likely tokens kept; 0 is off")
REQUEST_MIN_P = Attribute("draftd.request.min_p", "double", "Least probability relative to the best; 0 is off")
REQUEST_SEED = Attribute("gen_ai.request.seed", "int", "Seed, where the caller gave one")
REQUEST_STOP = Attribute("gen_ai.request.stop_sequences", "string[]", "Stop strings, where the caller gave some")
REQUEST_STREAM = Attribute("gen_ai.request.stream", "boolean", "Always true")

# The answer, on the inference span.
RESPONSE_ID = Attribute("gen_ai.response.id", "string", "The request's id, as the client received it")
RESPONSE_MODEL = Attribute("gen_ai.response.model", "string", "The target model")
RESPONSE_FINISH = Attribute("gen_ai.response.finish_reasons", "string[]", "One reason, as in `draftd.outcome`")
RESPONSE_TTFC = Attribute(
    "gen_ai.response.time_to_first_chunk", "double", "Seconds from arrival until the first tokens"
)
USAGE_INPUT = Attribute("gen_ai.usage.input_tokens", "int", "Prompt tokens")
USAGE_CACHE_READ = Attribute(
    "gen_ai.usage.cache_read.input_tokens",
    "int",
    "Input tokens that were not computed: their keys and values were cached by an earlier request",
)
USAGE_OUTPUT = Attribute("gen_ai.usage.output_tokens", "int", "Emitted tokens, the end-of-text token included")
INPUT_MESSAGES = Attribute(
    "gen_ai.input.messages", "string", "The prompt as JSON, its first 16,384 characters; only when opted in"
)
OUTPUT_MESSAGES = Attribute("gen_ai.output.messages", "string", "The answer, likewise")

# The plan, on the inference span.
PLAN_REASON = Attribute("draftd.plan.reason", "string", "Why the request was decoded the way it was")
PLAN_LEVEL = Attribute("draftd.plan.level", "string", "Fallback level in force, as `full`")
PLAN_VARIANT = Attribute("draftd.plan.variant", "string", "Variant of the feature flag")
PLAN_DRAFTER = Attribute("draftd.plan.drafter", "string", "`draft_model`, `prompt_lookup` or `none`")
PLAN_MAX_DRAFT = Attribute("draftd.plan.max_draft_tokens", "int", "Most tokens to draft in a step; 0 is none")
PLAN_DEPTH_MODE = Attribute(
    "draftd.plan.depth_mode",
    "string",
    "`automatic` (each step drafts as much as pays), `fixed` (as much as the plan allows) or `none`",
)
PLAN_ALTERNATIVES = Attribute(
    "draftd.plan.alternatives",
    "string[]",
    "Drafters that might be used in place of the plan's in steps where they paid more; absent where there were none",
)
DEGRADED = Attribute(
    "draftd.degraded_reason", "string", "Why a speculative request went on autoregressively; absent where it did not"
)

# The counts, on the inference span.
STEPS = Attribute("draftd.steps", "int", "Decode steps of any depth")
DRAFTS = Attribute("draftd.spec_decode.drafts", "int", "Steps with at least one drafted token")
DRAFT_TOKENS = Attribute("draftd.spec_decode.draft_tokens", "int", "Drafted tokens")
ACCEPTED_TOKENS = Attribute("draftd.spec_decode.accepted_tokens", "int", "Accepted draft tokens")
ACCEPTED_PER_POS = Attribute(
    "draftd.spec_decode.accepted_tokens_per_pos", "int[]", "The same by position in the draft, from 0"
)
DRAFTED_PER_POS = Attribute("draftd.spec_decode.draft_tokens_per_pos", "int[]", "Drafted tokens by position, from 0")
ROLLBACKS = Attribute("draftd.spec_decode.rollbacks", "int", "Steps in which the target rejected a drafted token")
ROLLED_BACK = Attribute("draftd.spec_decode.rolled_back_tokens", "int", "Rejected draft tokens")
DRAFT_FORWARDS = Attribute("draftd.spec_decode.draft_forwards", "int", "Forward passes of the draft model")
TARGET_FORWARDS = Attribute(
    "draftd.spec_decode.target_forwards",
    "int",
    "Forward passes of the target; of prefill, the one that gives the first token",
)
DRAFT_TIME = Attribute("draftd.spec_decode.draft.time", "double", "Seconds its steps spent drafting")
VERIFY_TIME = Attribute(
    "draftd.spec_decode.verify.time", "double", "Seconds its steps spent in the target's forward pass"
)
BREAK_EVEN_TOKENS = Attribute(
    "draftd.spec_decode.break_even_tokens",
    "double",
    "Accepted tokens that would have made its speculative steps just as fast as autoregressive ones",
)
PARKED_STEPS = Attribute("draftd.spec_decode.parked_steps", "int", "Steps that drafted nothing because it did not pay")
CAPPED_STEPS = Attribute(
    "draftd.spec_decode.capped_steps",
    "int",
    "Steps in which more drafted tokens would have paid than the plan allowed",
)
ACCEPTANCE = Attribute(
    "draftd.spec_decode.acceptance", "double", "accepted / drafted; absent where nothing was drafted"
)
MEAN_ACCEPTED = Attribute(
    "draftd.spec_decode.mean_accepted_length",
    "double",
    "1 + accepted / drafts, the bonus token counted; absent where nothing was drafted",
)

SPEEDUP = Attribute(
    "draftd.spec_decode.speedup",
    "double",
    "(drafts + accepted) / (drafts + break-even tokens): its speculative steps against autoregressive ones, measured; "
    "absent where nothing was drafted",
)

# The times, on the inference span.
TOKENS_PER_SECOND = Attribute(
    "draftd.tokens_per_second", "double", "Tokens after the first chunk, over the time since it"
)
TTFT = Attribute("draftd.time_to_first_token", "double", "Seconds from arrival until the first token")
QUEUE_SECONDS = Attribute("draftd.queue.duration", "double", "Seconds from arrival until scheduled")
PREFILL_SECONDS = Attribute("draftd.prefill.duration", "double", "Seconds from scheduled until the prompt was cached")

# The RPC.
RPC_SYSTEM = Attribute("rpc.system.name", "string", "Always `grpc`")
RPC_METHOD = Attribute(
    "rpc.method",
    "string",
    "Full name, as `draftd.v1.InferenceService/Generate`; `_OTHER` where there is no such method",
)
RPC_STATUS = Attribute("rpc.response.status_code", "string", "gRPC status by name, as `OK` or `CANCELLED`")

# The SDK's own metrics.
COMPONENT_TYPE = Attribute("otel.component.type", "string", "The part of the SDK, as `batching_span_processor`")
COMPONENT_NAME = Attribute("otel.component.name", "string", "The same with its number, as `batching_span_processor/0`")
SERVER_ADDRESS = Attribute("server.address", "string", "Host of the collector")
SERVER_PORT = Attribute("server.port", "int", "Port of the collector")

# What changed.
TRANSITION_SUBJECT = Attribute("draftd.transition.subject", "string", "`flag` or `level`")
TRANSITION_FROM = Attribute("draftd.transition.from", "string", "The variant or level before")
TRANSITION_TO = Attribute("draftd.transition.to", "string", "The variant or level from then on")
TRANSITION_CAUSE = Attribute("draftd.transition.cause", "string", "Why")
TRANSITION_EVIDENCE = Attribute("draftd.transition.evidence", "string", "The figures behind it, and their window")

# The fallback.
SIGNAL = Attribute("draftd.signal", "string", "What asks for a level, as `acceptance_floor`, `memory` or `alert`")
RESULT = Attribute("draftd.result", "string", "The result")
ORIGIN = Attribute("draftd.origin", "string", "`probe` or `canary`: the daemon's own requests")

# The feature flag.
FLAG_KEY = Attribute("feature_flag.key", "string", "The flag's key")
FLAG_VARIANT = Attribute("feature_flag.result.variant", "string", "The variant chosen")
FLAG_VALUE = Attribute("feature_flag.result.value", "boolean", "The value, where the provider names no variant")
FLAG_REASON = Attribute("feature_flag.result.reason", "string", "Why, as `static` or `targeting_match`")
FLAG_PROVIDER = Attribute("feature_flag.provider.name", "string", "The provider that answered")
FLAG_CONTEXT = Attribute("feature_flag.context.id", "string", "The targeting key: the caller, where one was named")
FLAG_ERROR_MESSAGE = Attribute("feature_flag.error.message", "string", "What went wrong, where something did")
FLAG_SET = Attribute("feature_flag.set.id", "string", "The flag set, where the provider names one")
FLAG_VERSION = Attribute("feature_flag.version", "string", "Version of the rules, where the provider names one")
