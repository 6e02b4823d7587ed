"""The types of the catalog (metrics, spans, log events), and all attributes.

Names from the OpenTelemetry conventions are used unchanged; names for anything else begin with `draftd.`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from draftd.core import (
    ContextTier,
    DaemonState,
    DecodeMode,
    DepthMode,
    FallbackLevel,
    FinishReason,
    Origin,
    WorkloadClass,
)
from draftd.group import GroupState, Loss
from draftd.strategies import QualityClass, RemoteLevel, Strategy, Verifier


@dataclass(frozen=True, slots=True, eq=False)  # one object each: compared by identity, which is fast
class Attribute:
    """One attribute: its name, its type in OpenTelemetry's terms, its meaning.

    For a text attribute of draftd's own, `values` lists all possible values. If `values` is empty, `examples`, or words
    in backticks in `brief`, show some. `condition`: when a metric or an event has the attribute; empty: always."""

    type: str
    name: str
    brief: str
    values: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    condition: str = ""


class InstrumentKind(enum.StrEnum):
    """Kinds of instruments. The observable ones are read when metrics are collected."""

    COUNTER = "counter"
    OBSERVABLE_COUNTER = "observable counter"
    GAUGE = "observable gauge"
    UP_DOWN_COUNTER = "observable up-down counter"  # a gauge whose series may be summed
    HISTOGRAM = "histogram"


# The collector's spelling of units in Prometheus: https://github.com/prometheus/otlptranslator
_SUFFIXES = {"s": "_seconds", "By": "_bytes", "Cel": "_celsius", "W": "_watts", "rpm": "_rpm"}
_SPELT_OUT = {"s": " (seconds)", "By": " (bytes)"}


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric. `buckets`: a histogram's upper bounds, in its unit."""

    name: str
    kind: InstrumentKind
    unit: str
    brief: str
    attributes: tuple[Attribute, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """The name in Prometheus, as the OpenTelemetry collector writes it."""
        name = self.name.replace(".", "_")
        suffix = _SUFFIXES.get(self.unit, "")
        if self.unit == "1" and self.kind is InstrumentKind.GAUGE:
            suffix = "_ratio"
        total = "_total" if self.kind in (InstrumentKind.COUNTER, InstrumentKind.OBSERVABLE_COUNTER) else ""
        return name + suffix + total

    def on_span(self, type: str = "int") -> Attribute:
        """Returns the attribute for the same figure of one request, on its span."""
        return Attribute(type, self.name, self.brief + _SPELT_OUT.get(self.unit, ""))


def metrics_of(kind: InstrumentKind, *shared: Attribute) -> Callable[..., Metric]:
    """Returns a function that makes metrics of one kind from name, unit, meaning, and attributes besides the shared
    ones."""

    def make(name: str, unit: str, brief: str, *attributes: Attribute) -> Metric:
        return Metric(name, kind, unit, brief, (*shared, *attributes))

    return make


@dataclass(frozen=True, slots=True)
class Span:
    """One kind of span. `name` shows attributes in braces."""

    name: str
    brief: str
    attributes: tuple[Attribute, ...] = ()
    kind: str = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Event:
    """One log event."""

    name: str
    brief: str
    attributes: tuple[Attribute, ...] = ()


_string, _strings, _boolean = (partial(Attribute, type) for type in ("string", "string[]", "boolean"))
_int, _double = partial(Attribute, "int"), partial(Attribute, "double")
_LEVELS = tuple(level.label for level in FallbackLevel)
_PLANNED = "if the request was not refused before it was planned"
_FAILED = "if something went wrong"

# Common to the GenAI span and the metrics.
OPERATION = _string("gen_ai.operation.name", "`chat`, or `text_completion` if the prompt is raw text or token ids")
PROVIDER = _string("gen_ai.provider.name", "Always `draftd`: the model runs in this process")
MODEL = _string("gen_ai.request.model", "The target model")
ERROR_TYPE = _string(
    "error.type",
    "Class of the error: `Cancelled`, `DeadlineExceeded`, `EngineFailure`, or the class of a refusal, such as "
    "`QueueFull`; absent on success. On an RPC, the status; between two daemons, a reason of remote.md",
    condition=_FAILED,
)
DRAFT_MODEL = _string(
    "draftd.draft_model",
    "The draft model of the loaded pair, in both modes; `draft_head` if the model's own draft head drafts, in both "
    "modes if there is no draft model; `prompt_lookup` if the plan drafts without weights; `none` if there is none of "
    "them",
    examples=("draftd-nano-draft", "draft_head", "prompt_lookup", "none"),
)
MODE = _string(
    "draftd.mode",
    "Decoding mode, `speculative` or `autoregressive`, when the request started; absent if it was refused before",
    values=tuple(DecodeMode),
    condition=_PLANNED,
)
WORKLOAD = _string(
    "draftd.workload",
    "Kind of text, as the caller labelled it: `code`, `tool_call`, `chat`, `prose`, `edit` or `unspecified`",
    values=(*WorkloadClass,),
)
CONTEXT_TIER = _string(
    "draftd.context_tier",
    "Prompt length: `short` below 512 tokens, `medium` below 4,096, `long` from there on",
    values=tuple(ContextTier),
    condition=_PLANNED,
)
OUTCOME = _string(
    "draftd.outcome",
    "How the request ended: `stop`, `length`, `cancelled`, `deadline`, `error` or `refused`",
    values=(*FinishReason, "refused"),
)

# Metrics only.
TOKEN_TYPE = _string("gen_ai.token.type", "`input` or `output`")
POSITION = _int("draftd.position", "Position in the draft, counted from 0")
STATE_FILE = _string(
    "draftd.state.file",
    "The file of saved state: `ladder` (level, holds, leases, baselines), `events`, `learnt` (costs of drafting), "
    "`flag`, `prefixes` or `pins`",
)
TELEMETRY_PART = _string("draftd.telemetry.part", "The part of telemetry that failed, such as `observer` or `span`")
READING = _string("draftd.hardware.reading", "The reading that failed, such as `gpu` or `macmon`")
MLX_STATE = _string(
    "draftd.memory.mlx.state",
    "`active` (held by arrays), `cache` (freed and kept for reuse) or `peak` (the most that was active)",
    values=("active", "cache", "peak"),
)
MEMORY_STATE = _string(
    "system.memory.state",
    "Use of the memory. Linux: `used`, `free`, `cached`, `buffers`. macOS: `free`, `active`, `inactive`, `wired`, "
    "`compressed`. The uses add up to about the total",
)
PAGING_STATE = _string("system.paging.state", "`used` or `free`")
PAGING_DIRECTION = _string("system.paging.direction", "Always `in`")
HW_ID = _string("hw.id", "The sensor, such as `cpu`, `gpu` or `fan0`")
HW_TYPE = _string("hw.type", "The kind of part: `cpu`, `gpu`, `memory`, `enclosure` (the whole machine) or `ane`")

# The request, on the inference span.
REQUEST_MAX_TOKENS = _int("gen_ai.request.max_tokens", "Most tokens that the request may emit")
REQUEST_TEMPERATURE = _double("gen_ai.request.temperature", "Sampling temperature; 0 is greedy")
REQUEST_TOP_P = _double("gen_ai.request.top_p", "Nucleus sampling: the share of probability to sample from; 1 is off")
REQUEST_TOP_K = _int("gen_ai.request.top_k", "Number of most likely tokens to sample from; 0 is off")
REQUEST_MIN_P = _double("draftd.request.min_p", "Least probability relative to the most likely token's; 0 is off")
REQUEST_SEED = _int("gen_ai.request.seed", "Seed, if the caller set one")
REQUEST_PRESENCE = _double("gen_ai.request.presence_penalty", "Presence penalty, if the caller set one")
REQUEST_FREQUENCY = _double("gen_ai.request.frequency_penalty", "Frequency penalty, if the caller set one")
REQUEST_CHOICES = _int("gen_ai.request.choice.count", "Number of choices, if several; each has a span")
REQUEST_CHOICE = _int("draftd.request.choice", "Number of this choice among several, from 0")
REQUEST_STOP = _strings("gen_ai.request.stop_sequences", "Stop strings, if the caller set some")
REQUEST_STREAM = _boolean("gen_ai.request.stream", "Always true")

# The answer, on the inference span.
RESPONSE_ID = _string("gen_ai.response.id", "The request's id, as the client received it")
RESPONSE_MODEL = _string("gen_ai.response.model", "The target model")
RESPONSE_FINISH = _strings("gen_ai.response.finish_reasons", "Why the answer ended, as in `draftd.outcome`")
RESPONSE_TTFC = _double("gen_ai.response.time_to_first_chunk", "Seconds from arrival until the first chunk")
USAGE_INPUT = _int("gen_ai.usage.input_tokens", "Prompt tokens")
USAGE_CACHE_READ = _int(
    "gen_ai.usage.cache_read.input_tokens", "Prompt tokens that came from the prefix cache and were not computed"
)
USAGE_OUTPUT = _int("gen_ai.usage.output_tokens", "Emitted tokens, the end-of-text token included")
INPUT_MESSAGES = _string("gen_ai.input.messages", "The prompt as JSON, 16,384 characters at most; only if opted in")
OUTPUT_MESSAGES = _string("gen_ai.output.messages", "The answer as JSON, 16,384 characters at most; only if opted in")

# The plan, on the inference span.
PLAN_REASON = _string(
    "draftd.plan.reason",
    "Why the request was decoded as it was",
    examples=("flag: on (default variant)", "request: autoregressive"),
)
PLAN_LEVEL = _string(
    "draftd.plan.level", "Fallback level of the plan, or that a probe tried", values=_LEVELS[::-1], condition=_PLANNED
)
PLAN_VARIANT = _string("draftd.plan.variant", "Variant of the feature flag", examples=("on", "off"))
PLAN_DRAFTER = _string(
    "draftd.plan.drafter",
    "The drafter: `draft_model`, `draft_head`, `light_draft_model`, `prompt_lookup`, `grammar` or `none`",
)
PLAN_MAX_DRAFT = _int("draftd.plan.max_draft_tokens", "Most tokens to draft in a step; 0 is none")
PLAN_DEPTH_MODE = _string(
    "draftd.plan.depth_mode",
    "How many tokens a step drafts: `automatic` (as many as pay), `fixed` (as many as the plan allows) or `none`",
    values=(*DepthMode, "none"),
)
PLAN_ALTERNATIVES = _strings(
    "draftd.plan.alternatives",
    "Drafters that may replace the plan's drafter in steps in which they pay more; absent if there are none",
    examples=("prompt_lookup",),
)
RESPONSE_FORMAT = _string(
    "draftd.response_format",
    "The format that the answer must have; absent if any is allowed",
    values=("json_object", "json_schema", "regex", "choice", "grammar", "tool_call"),
)
GRAMMAR_COMPILE = Attribute(
    "double",
    "draftd.grammar.compile.duration",
    "Time to compile the answer's grammar; 0 if it was compiled before (seconds)",
)
DEGRADED = _string(
    "draftd.degraded_reason",
    "Why a speculative request continued without drafts; absent if it did not",
    examples=("the draft failed: out of memory",),
)

# The counts on the inference span; more are made from metrics (`Metric.on_span`).
STEPS = _int("draftd.steps", "Decode steps, with and without drafts")
ACCEPTANCE = _double("draftd.spec_decode.acceptance", "accepted / drafted; absent if nothing was drafted")
MEAN_ACCEPTED = _double(
    "draftd.spec_decode.mean_accepted_length",
    "Mean tokens of a step that drafted, with the target's own: 1 + accepted / drafts; absent if nothing was drafted",
)
SPEEDUP = _double(
    "draftd.spec_decode.speedup",
    "Speed of the steps that drafted, divided by the speed of autoregressive steps, both measured; absent if "
    "unknown, or if nothing was drafted",
)

# The times, on the inference span.
TOKENS_PER_SECOND = _double("draftd.tokens_per_second", "Tokens after the first chunk, per second since that chunk")
TTFT = _double("draftd.time_to_first_token", "Seconds from arrival until the first token")

# The RPC.
RPC_SYSTEM = _string("rpc.system.name", "Always `grpc`")
RPC_METHOD = _string(
    "rpc.method", "Full name, such as `draftd.v1.InferenceService/Generate`; `_OTHER` if there is no such method"
)
RPC_STATUS = _string("rpc.response.status_code", "gRPC status by name, such as `OK` or `CANCELLED`")

# The HTTP request.
HTTP_METHOD = _string("http.request.method", "Method, such as `POST`; `_OTHER` if HTTP has no such method")
HTTP_ROUTE = _string("http.route", "Path, such as `/v1/chat/completions`; absent if there is no such path")
HTTP_STATUS = _int("http.response.status_code", "Status, such as 200; 499 if the client left before it was answered")
URL_SCHEME = _string("url.scheme", "`http` or `https`")

# Certificates.
CERTIFICATE = _string(
    "draftd.tls.certificate",
    "The setting that names the certificate's file",
    examples=("server.tls_cert", "server.tls_client_ca", "webhook.tls_cert", "remote.tls_ca", "remote.tls_cert"),
)

# The server.
SERVER_ADDRESS = _string(
    "server.address", "Host that the daemon listens on, as configured; on the SDK's own metrics, the collector's host"
)
SERVER_PORT = _int("server.port", "Port that the daemon listens on; on the SDK's own metrics, the collector's port")

# The SDK's own metrics.
COMPONENT_TYPE = _string("otel.component.type", "The part of the SDK, such as `batching_span_processor`")
COMPONENT_NAME = _string("otel.component.name", "That part with its number, such as `batching_span_processor/0`")

# Transitions.
TRANSITION_SUBJECT = _string(
    "draftd.transition.subject",
    "What changed: `flag`, `level`, `remote` (what the fallback allows of it) or `link` (to the remote)",
    values=("flag", "level", "remote", "link"),
)
TRANSITION_FROM = _string(
    "draftd.transition.from", "The variant, level or state before", examples=("full", "short_block 3", "on", "up")
)
TRANSITION_TO = _string(
    "draftd.transition.to",
    "The variant, level or state after the change",
    examples=("short_block 3", "autoregressive", "off", "down"),
)
TRANSITION_CAUSE = _string("draftd.transition.cause", "Cause of the change", examples=("acceptance_drift", "recovered"))
TRANSITION_EVIDENCE = _string(
    "draftd.transition.evidence",
    "Figures that caused the change, and their time window",
    examples=("acceptance 0.31 of 120 requests, expected 0.62",),
)

# The fallback.
SIGNAL = _string("draftd.signal", "Signal or cause of a change, such as `acceptance_floor`, `memory` or `alert`")
RESULT = _string("draftd.result", "Result or verdict", examples=("good", "bad", "accepted", "ok"))
ORIGIN = _string(
    "draftd.origin", "Kind of the daemon's own requests: `probe` or `canary`", values=(Origin.PROBE, Origin.CANARY)
)

# Two daemons.
STRATEGY = _string(
    "draftd.strategy",
    "Where the request was planned to be decoded: `local`, `remote` (another daemon's model answers) or "
    "`speculative` (drafted here, verified there)",
    values=tuple(one for one in Strategy if one is not Strategy.AUTO),
    condition=_PLANNED,
)
QUALITY = _string(
    "draftd.quality",
    "Quality class of the answer, the lowest of the models that chose its tokens; `unknown` if none is set",
    values=(*(one.label for one in QualityClass), "unknown"),
)
VERIFIER = _string("draftd.verifier", "Daemon that chose the tokens: `local` or `remote`", values=(*Verifier,))
IO_DIRECTION = _string("network.io.direction", "`transmit` or `receive`, as seen by this daemon")
FAILED_OVER = _string(
    "draftd.failed_over",
    "Why a request at the remote continued with this daemon's own target; absent if it did not",
    examples=("the remote does not answer",),
)
CURRENCY = _string("draftd.currency", "Currency of the cost: `cost.currency`", examples=("$",))
_REMOTE_LEVELS = tuple(level.label for level in RemoteLevel)
REMOTE_FROM = _string("draftd.remote.from", "What the fallback allowed before the change", values=_REMOTE_LEVELS)
REMOTE_TO = _string("draftd.remote.to", "What the fallback allows after the change", values=_REMOTE_LEVELS)
ROUND_TRIPS = _int("draftd.remote.round_trips", "Round trips to the verifier that were measured")
ROUND_TRIP_TIME = _double("draftd.remote.round_trip.time", "Sum of round trips (seconds), without the verifier's time")
VERIFY_END = _string(
    "draftd.verify.end",
    "Why the sequence ended: `closed` by the edge, `finished` (its text ended), `replaced` when a connection came "
    "back, `given_up` (idle, its edge gone, or memory needed), or `error`",
    values=("closed", "finished", "replaced", "given_up", "error"),
)

# Several ranks.
GROUP_ID = _string(
    "draftd.group.id",
    "Id of the group of ranks that the target runs on, for the life of the daemon. An attribute of the daemon's "
    "resource; absent if the target runs in the daemon's own process",
    examples=("1f3a90c2b7d4",),
)
DAEMON_STATE = _string(
    "draftd.daemon.state",
    "`loading`, `serving`, `not_serving` (its engine starts again), `draining` (it was told to stop) or `failed`",
    values=(*DaemonState,),
)
GROUP_STATE = _string(
    "draftd.group.state",
    "`starting`, `serving`, `restarting` (it was lost and starts again) or `failed` (it does not start again)",
    values=(*GroupState,),
)
GROUP_LOSS = _string(
    "draftd.group.loss",
    "Why the group was lost. A rank `died` (its process or its connection ended), was `silent`, `stalled` (its step "
    "did not end), fell `behind`, or `failed` with an error",
    values=(*Loss,),
)
RANK = _int("draftd.rank.number", "Number of the rank; rank 0 leads")
RANK_HOST = _string(
    "draftd.rank.host", "The machine that the rank runs on, as the hostfile names it", examples=("mini-2.local",)
)

# The feature flag.
FLAG_KEY = _string("feature_flag.key", "The flag's key")
FLAG_VARIANT = _string("feature_flag.result.variant", "Variant that the evaluation chose")
FLAG_VALUE = _boolean("feature_flag.result.value", "The flag's value, if the provider names no variant")
FLAG_REASON = _string("feature_flag.result.reason", "Why this value, such as `static` or `targeting_match`")
FLAG_PROVIDER = _string("feature_flag.provider.name", "The provider that answered")
FLAG_CONTEXT = _string("feature_flag.context.id", "The targeting key: the caller, if the request names one")
FLAG_ERROR_MESSAGE = _string("feature_flag.error.message", "What went wrong; absent on success")
FLAG_SET = _string("feature_flag.set.id", "The flag set, if the provider names one")
FLAG_VERSION = _string("feature_flag.version", "Version of the flag's rules, if the provider names one")
