"""The catalog: every metric that draftd emits, as data; spans and log events are in catalog_spans.py.

Instruments and `docs/telemetry.md` are made from it, and dashboards take their names from it.
"""

from __future__ import annotations

from draftd.telemetry import attributes as a
from draftd.telemetry import catalog_ranks as ranks
from draftd.telemetry import catalog_remote as remote
from draftd.telemetry import catalog_sdk as sdk
from draftd.telemetry.attributes import Attribute, InstrumentKind, Metric, metrics_of

SCOPE = "draftd"  # name of the instrumentation scope
PROVIDER_NAME = "draftd"  # value of gen_ai.provider.name

LABELS = (a.MODEL, a.DRAFT_MODEL, a.MODE, a.STRATEGY, a.WORKLOAD, a.CONTEXT_TIER, a.PLAN_LEVEL)
SERVER = (a.SERVER_ADDRESS, a.SERVER_PORT)
_GEN_AI = (a.OPERATION, a.PROVIDER, a.RESPONSE_MODEL, *SERVER, *LABELS)

_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_RPC = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_WAIT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_GAP = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0,
)  # fmt: skip


_counter, _observed = metrics_of(InstrumentKind.COUNTER), metrics_of(InstrumentKind.OBSERVABLE_COUNTER)
_gauge, _up_down = metrics_of(InstrumentKind.GAUGE), metrics_of(InstrumentKind.UP_DOWN_COUNTER)
_sum = metrics_of(InstrumentKind.OBSERVABLE_COUNTER, *LABELS)  # sums over requests
_model_counter, _model_sum = (
    metrics_of(InstrumentKind.COUNTER, a.MODEL),
    metrics_of(InstrumentKind.OBSERVABLE_COUNTER, a.MODEL),
)
_model_gauge = metrics_of(InstrumentKind.GAUGE, a.MODEL)


def _histogram(name: str, brief: str, buckets: tuple[float, ...], *attributes: Attribute) -> Metric:
    return Metric(name, InstrumentKind.HISTOGRAM, "s", brief, attributes, buckets)


# Requests and speculation.
REQUEST_DURATION = _histogram(
    "gen_ai.server.request.duration",
    "Time from a request's arrival to its end, failed and refused requests included; `error.type` tells failures apart",
    _DURATION,
    *_GEN_AI,
    a.ERROR_TYPE,
)
TIME_TO_FIRST_TOKEN = _histogram(
    "gen_ai.server.time_to_first_token", "Time from arrival to the first token; successes only", _TTFT, *_GEN_AI
)
TIME_PER_OUTPUT_TOKEN = _histogram(
    "gen_ai.server.time_per_output_token",
    "Time per further output token: (duration - time to first token) / (output tokens - 1); successes only",
    _TPOT,
    *_GEN_AI,
)
DRAFTS = _sum("draftd.spec_decode.drafts", "{draft}", "Steps that drafted, counted for each request in the step")
DRAFT_TOKENS = _sum("draftd.spec_decode.draft_tokens", "{token}", "Tokens that were drafted, accepted or not")
ACCEPTED_TOKENS = _sum(
    "draftd.spec_decode.accepted_tokens", "{token}", "Drafted tokens that were accepted, even beyond the text's end"
)
CUT_TOKENS = _sum(
    "draftd.spec_decode.cut_tokens",
    "{token}",
    "Tokens that speculative steps decided beyond the end of the text, accepted ones and the target's own; they are "
    "not emitted",
)
ACCEPTED_PER_POS = _sum(
    "draftd.spec_decode.accepted_tokens_per_pos",
    "{token}",
    "Accepted tokens by position in the draft; divided by `draftd.spec_decode.draft_tokens_per_pos`, the acceptance "
    "at that position",
    a.POSITION,
)
DRAFTED_PER_POS = _sum(
    "draftd.spec_decode.draft_tokens_per_pos", "{token}", "Drafted tokens by position in the draft", a.POSITION
)
ROLLBACKS = _sum("draftd.spec_decode.rollbacks", "{rollback}", "Steps in which the target rejected a drafted token")
ROLLED_BACK_TOKENS = _sum(
    "draftd.spec_decode.rolled_back_tokens", "{token}", "Drafted tokens thrown away: a rejected one and all after it"
)
DRAFT_FORWARDS = _sum(
    "draftd.spec_decode.draft_forwards",
    "{forward}",
    "Forward passes of the draft model or draft head, counted for each request in the pass",
)
TARGET_FORWARDS = _sum(
    "draftd.spec_decode.target_forwards",
    "{forward}",
    "Forward passes of the target in decode steps of both modes, counted for each request in the pass",
)
DRAFT_TIME = _sum(
    "draftd.spec_decode.draft.time", "s", "Time that steps spent drafting, counted for each request in the step"
)
VERIFY_TIME = _sum(
    "draftd.spec_decode.verify.time",
    "s",
    "Time that steps of both modes spent in the target's forward pass, counted for each request in the step",
)
BREAK_EVEN_TOKENS = _sum(
    "draftd.spec_decode.break_even_tokens",
    "{token}",
    "Accepted tokens at which the steps that drafted would have been just as fast as autoregressive steps at the "
    "same batch size, both measured; unpriced drafts are left out. If a remote verifies: as fast as the remote's own "
    "streaming",
)
UNPRICED_DRAFTS = _sum("draftd.spec_decode.unpriced_drafts", "{draft}", "Steps that drafted and whose cost is unknown")
PARKED_STEPS = _sum(
    "draftd.spec_decode.parked_steps",
    "{step}",
    "Steps that drafted nothing, although a drafter was available, because drafting did not pay",
)
CAPPED_STEPS = _sum(
    "draftd.spec_decode.capped_steps",
    "{step}",
    "Steps in which more drafted tokens would have paid than the plan allowed",
)
TOKENS = _sum(
    "draftd.tokens", "{token}", "Tokens: output is counted when emitted, input when its request ends", a.TOKEN_TYPE
)
REQUESTS = _counter(
    "draftd.requests", "{request}", "Requests that ended, refused ones included", *LABELS, a.OUTCOME, a.ERROR_TYPE
)
DRAFTER_ERRORS = _sum(
    "draftd.drafter.errors", "{error}", "Requests for which drafting failed; they continued without drafts"
)
VERIFIER_ERRORS = _sum(
    "draftd.verifier.errors",
    "{error}",
    "Requests in a decode step that failed; they were prefilled again and continued without drafts, or ended in an "
    "error",
)

# The fallback: levels, signals, alerts, probes, canaries.
FALLBACK_LEVEL = _model_gauge(
    "draftd.fallback.level",
    "{level}",
    "Fallback level in force: 3 full, 2 short block, 1 light draft, 0 autoregressive",
)
FALLBACK_POSITION = _model_gauge("draftd.fallback.position", "{level}", "Levels below the top of the ladder; 0 is full")
FALLBACK_HOLD = _model_gauge("draftd.fallback.hold", "{hold}", "1 while an operator holds the level, else 0")
FALLBACK_DEMAND = _model_gauge(
    "draftd.fallback.demand",
    "{level}",
    "Fallback level that a signal asks for, numbered as in `draftd.fallback.level`; 3 once the signal asks for none",
    a.SIGNAL,
)
FALLBACK_TRANSITIONS = _model_counter(
    "draftd.fallback.transitions",
    "{transition}",
    "Steps down and up the fallback ladder",
    a.TRANSITION_FROM,
    a.TRANSITION_TO,
    a.SIGNAL,
)
DRIFT_SUM = _model_gauge(
    "draftd.drift.sum",
    "1",
    "How far acceptance is below its baseline: the CUSUM's sum over its limit. From 1 on it counts as drift",
    a.WORKLOAD,
)
ALERT_NOTIFICATIONS = _model_counter(
    "draftd.alert.notifications", "{notification}", "Alert notifications at the webhook, by result", a.RESULT
)
ALERT_LEASES = _model_gauge("draftd.alert.leases", "{alert}", "Alerts that ask for a lower fallback level now")
ALERT_POLLS = _model_counter("draftd.alert.polls", "{poll}", "Polls of `webhook.poll_url`, by result", a.RESULT)
PROBES = _model_counter("draftd.probe.runs", "{probe}", "Probes, by level tried and verdict", a.PLAN_LEVEL, a.RESULT)
PROBE_ACCEPTANCE = _model_gauge(
    "draftd.probe.acceptance",
    "1",
    "Accepted share of the drafted tokens that the target reached in the last probe: accepted / (accepted + rollbacks)",
)
PROBE_SPEEDUP = _model_gauge("draftd.probe.speedup", "1", "Speed of the last probe over that of autoregressive steps")
CANARIES = _model_counter("draftd.canary.runs", "{run}", "Runs of the quality canaries, by verdict", a.RESULT)
CANARY_SCORE = _model_gauge(
    "draftd.canary.score", "1", "Share of the quality canaries that passed in the last run, by decoding mode", a.MODE
)
CANARY_DIVERGENCES = _model_counter(
    "draftd.canary.divergences", "{divergence}", "Greedy canaries whose text with drafts differs from that without"
)
ANNOTATIONS = _model_counter("draftd.annotation.sends", "{annotation}", "Annotations sent to Grafana", a.RESULT)

# The flag, and the engine: its queue, its memory, its cached prefixes.
FLAG_ENABLED = _model_gauge(
    "draftd.flag.enabled",
    "{flag}",
    "1 if the feature flag's default variant lets requests speculate, else 0; targeting rules may decide otherwise",
)
QUEUE_DURATION = _histogram("draftd.queue.duration", "Time from a request's arrival until scheduled", _WAIT, *LABELS)
PREFILL_DURATION = _histogram(
    "draftd.prefill.duration", "Time from leaving the queue until the whole prompt is in the KV cache", _WAIT, *LABELS
)
INTER_CHUNK_DURATION = _histogram(
    "draftd.inter_chunk.duration",
    "Time between successive chunks of a request; a step sends one chunk, which may hold several tokens",
    _GAP,
    *LABELS,
)
ACTIVE_REQUESTS = _model_gauge("draftd.engine.active_requests", "{request}", "Requests in prefill or decoding")
QUEUED_REQUESTS = _model_gauge("draftd.engine.queued_requests", "{request}", "Requests that wait in the queue")
QUEUE_CAPACITY = _model_gauge("draftd.engine.queue_capacity", "{request}", "Requests that may wait; more are refused")
KV_CACHE = _model_gauge("draftd.engine.kv_cache", "By", "Memory of the key-value caches of running requests")
KV_CACHE_LIMIT = _model_gauge(
    "draftd.engine.kv_cache_limit", "By", "Most memory for the key-value caches; 0 without a limit"
)
HELD_BACK_REQUESTS = _model_gauge(
    "draftd.engine.held_back_requests",
    "{request}",
    "Requests that wait although the batch has room, because memory for their key-value caches is short",
)
WEIGHTS = _model_gauge("draftd.engine.weights", "By", "Memory of the MLX arrays of the weights, draft included")
INDEPENDENT = _model_gauge(
    "draftd.exactness.independent",
    "{model}",
    "1 if a token's logits are the same at every draft depth, batch size, mix of lengths and slice that the daemon "
    "tried, else 0; measured once, absent until then",
)
FLIPS = _model_gauge(
    "draftd.exactness.flips",
    "{token}",
    "Expected tokens of a 1,000-token greedy text that another depth, batch size or slice would change; an estimate, "
    "absent until measured",
)
PREFIX_USAGE = _model_gauge(
    "draftd.prefix_cache.usage",
    "By",
    "Memory of the prefix cache: keys and values of finished requests, kept for requests that begin with the same "
    "tokens",
)
PREFIX_LIMIT = _model_gauge(
    "draftd.prefix_cache.limit",
    "By",
    "Most memory for the prefix cache now; less than configured while the machine's memory is under pressure",
)
PREFIX_ENTRIES = _model_gauge(
    "draftd.prefix_cache.entries",
    "{entry}",
    "Texts in the prefix cache; a text that is the beginning of another is not counted",
)
PREFIX_LOOKUPS = _model_sum(
    "draftd.prefix_cache.lookups",
    "{request}",
    "Requests that looked for the beginning of their prompt in the prefix cache, counted when they end",
)
PREFIX_HITS = _model_sum("draftd.prefix_cache.hits", "{request}", "Requests that found a cached prefix")
PREFIX_READ = _model_sum(
    "draftd.prefix_cache.read_tokens",
    "{token}",
    "Prompt tokens that came from the prefix cache and were not computed; the input tokens include them",
)
PREFIX_UNFIT = _model_sum(
    "draftd.prefix_cache.unfit",
    "{request}",
    "Requests whose text is too long for the prefix cache; requests that begin with the same tokens compute the rest "
    "again",
)

# The machine: memory, paging, heat, power. OpenTelemetry's names if there are any.
MEMORY_HEADROOM = _gauge(
    "draftd.memory.headroom",
    "By",
    "Available memory minus `draftd.memory.floor`, negative if less than the floor is left; a control group's limit "
    "counts as well",
)
MEMORY_FLOOR = _gauge("draftd.memory.floor", "By", "Memory that should stay available: `hardware.memory_floor_bytes`")
MEMORY_PRESSURE = _gauge(
    "draftd.memory.pressure",
    "{level}",
    "0 normal, 1 warn, 2 critical. macOS: the kernel's level. Linux: warn if for 10 % of ten seconds some task "
    "stalled for memory, critical if all tasks did",
)
MEMORY_CRITICAL = _observed(
    "draftd.memory.critical.duration", "s", "Time in critical memory pressure since the daemon started"
)
MEMORY_SWAP_INS = _observed(
    "draftd.memory.swap_ins", "By", "Bytes that the whole machine read back from swap since the daemon started"
)
MEMORY_MLX = _gauge("draftd.memory.mlx", "By", "MLX's own count of its memory", a.MLX_STATE)
MEMORY_WORKING_SET = _gauge("draftd.memory.working_set", "By", "Most memory that Metal recommends to use; macOS only")
MEMORY_GPU = _gauge("draftd.memory.gpu", "By", "System memory that the GPU uses for all processes; macOS only")
MEMORY_FREE = _gauge("draftd.memory.free", "1", "Share of memory that macOS counts as free by its own rule; macOS only")
THERMAL_LEVEL = _gauge(
    "draftd.thermal.level",
    "{level}",
    "0 nominal, 1 moderate, 2 heavy, 3 trapping, 4 sleeping; macOS only. From 2 on the machine is slowed down",
)
THERMAL_THROTTLES = _observed(
    "draftd.thermal.throttles",
    "{event}",
    "How often `draftd.thermal.level` rose from below 2 to 2 or more since the daemon started",
)
POWER_LOW_MODE = _gauge(
    "draftd.power.low_mode", "{mode}", "1 in low-power mode, which slows decoding, else 0; macOS only"
)
POWER_PLUGGED_IN = _gauge(
    "draftd.power.plugged_in", "{source}", "1 on mains, 0 on battery; absent if the machine has no battery"
)
SYSTEM_MEMORY_USAGE = _up_down("system.memory.usage", "By", "The machine's memory by use", a.MEMORY_STATE)
SYSTEM_MEMORY_LIMIT = _up_down("system.memory.limit", "By", "All memory of the machine")
SYSTEM_MEMORY_UTILIZATION = _gauge(
    "system.memory.utilization", "1", "`system.memory.usage` divided by `system.memory.limit`", a.MEMORY_STATE
)
SYSTEM_PAGING_USAGE = _up_down("system.paging.usage", "By", "Swap space; macOS adds more as needed", a.PAGING_STATE)
SYSTEM_PAGING_OPERATIONS = _observed(
    "system.paging.operations", "{operation}", "Pages read back from swap since the machine started", a.PAGING_DIRECTION
)
PROCESS_MEMORY = _up_down("process.memory.usage", "By", "The daemon's resident memory")
GPU_UTILIZATION = _gauge(
    "hw.gpu.utilization", "1", "Share of time that the GPU is busy, for all processes; macOS only", a.HW_ID
)
HW_TEMPERATURE = _gauge(
    "hw.temperature",
    "Cel",
    "Temperature by sensor. macOS: averages of processor and GPU, if macmon is installed. Linux: thermal zones",
    a.HW_ID,
)
HW_FAN_SPEED = _gauge("hw.fan.speed", "rpm", "Fan speed; on macOS if macmon is installed", a.HW_ID)
HW_POWER = _gauge(
    "hw.power",
    "W",
    "Power drawn, on macOS if macmon is installed; the `enclosure` includes the other parts",
    a.HW_ID,
    a.HW_TYPE,
)
HARDWARE_ERRORS = _observed(
    "draftd.hardware.errors", "{error}", "Readings that failed or took too long; their values are absent", a.READING
)

CERTIFICATE_EXPIRY = _gauge(
    "draftd.tls.certificate.not_after",
    "s",
    "Unix time at which the certificate in use expires. In a chain, the first certificate to expire counts; of "
    "several authorities, the last",
    a.CERTIFICATE,
)
RPC_DURATION = _histogram(
    "rpc.server.call.duration",
    "Duration of calls on the gRPC server; health checks and reflection are left out",
    _RPC,
    a.RPC_SYSTEM,
    a.RPC_METHOD,
    a.RPC_STATUS,
    a.ERROR_TYPE,
)
HTTP_DURATION = _histogram(
    "http.server.request.duration",
    "Duration of requests on the HTTP server until their answer ends; `/health` and `/metrics` are left out unless "
    "the token is wrong",
    _RPC,
    a.HTTP_METHOD,
    a.HTTP_ROUTE,
    a.URL_SCHEME,
    a.HTTP_STATUS,
    a.ERROR_TYPE,
)
STATE_SAVE_ERRORS = _observed(
    "draftd.state.save.errors",
    "{error}",
    "Failed attempts to save what outlives the process, by file; 0 from the start for each file that the daemon "
    "writes. A failed save is tried again: `ladder` within seconds, `learnt` within a minute",
    a.STATE_FILE,
)
# Not the conventions' `process.uptime`: another program's could be mistaken for a daemon's.
UPTIME = _gauge("draftd.uptime", "s", "Time since the daemon started, sleep included; each export has it")
STARTED = _gauge("draftd.started", "s", "Unix time at which the daemon started")
STATE = _gauge(
    "draftd.daemon.status",
    "{state}",
    "1 for the daemon's present state, 0 for the others; the last export of a planned stop says `draining`",
    a.DAEMON_STATE,
)
TELEMETRY_ERRORS = _observed(
    "draftd.telemetry.errors",
    "{error}",
    "Errors in the daemon's own telemetry code; they were caught and did not affect a request",
    a.TELEMETRY_PART,
)

RESOURCE = (a.GROUP_ID,)  # draftd's own attributes of the resource

_FOUND = [*globals().values(), *vars(remote).values(), *vars(ranks).values()]
# All metrics made by draftd. The uptime comes last: a reader who sees it in a partly received export has seen all
# counters before it, and mistakes none for new in the next.
METRICS = (*(found for found in _FOUND if isinstance(found, Metric) and found is not UPTIME), UPTIME)
SDK_METRICS = tuple(found for found in vars(sdk).values() if isinstance(found, Metric))
