"""`draftd status`: what a running daemon serves, and what it is doing."""

from __future__ import annotations

from datetime import datetime

from draftd.cli import ladder, options, output, ranks, remote
from draftd.cli.figures import UNKNOWN, export_state, length, percent, size, span
from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL
from draftd.model_info import prefix_room, speculation
from draftd.protocol import DEPTH_MODES, draft_counts, enum_name, exactness_of
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2 as inference


@options.with_options("draftd status", "draftd status --target mini.local:50551 --tls-ca ca.pem --json")
def command(daemon: options.DaemonOptions, json: options.Json = False) -> None:
    """Show what a running daemon serves, how busy it is, and how well drafting works."""
    with daemon.connect() as client:
        status = client.status()
    if json:
        output.print_json(status)
    else:
        output.print_fields(lines(status, datetime.now().astimezone()), 14)


def lines(status: pb.GetStatusResponse, now: datetime) -> list[tuple[str, str]]:
    """Returns names and values in the order of display. An empty name continues the line above."""
    counts, model = draft_counts(status.counts, status.output_tokens), status.model
    state = enum_name(pb.DaemonState.DESCRIPTOR, status.state)
    if status.unloaded:
        state = f"{state}, weights unloaded until the next request,"
    begun = status.state in (pb.DAEMON_STATE_LOADING, pb.DAEMON_STATE_SERVING)
    since = "for" if begun else "after"  # the daemon's time, not that of a drain
    progress = f": {status.progress}" if status.progress else ""
    versions = ", ".join(filter(None, (f"draftd {status.version}", status.backend)))
    rows = [
        ("state", f"{state} {since} {span(status.uptime.seconds)}{progress} ({versions})"),
        *(_pair(model) if model.model else [("model", UNKNOWN), ("draft", UNKNOWN)]),
        ("speculation", _speculation(status)),
        *([("", f"{status.draft_warning}: see `draftd docs choosing-a-draft`")] if status.draft_warning else []),
        *(ladder.fields(status.fallback, now) if status.HasField("fallback") else ()),
        (
            "requests",
            f"{status.active_requests} running, {status.queued_requests} of {status.queue_capacity} waiting; "
            + (", ".join(f"{n} {reason}" for reason, n in sorted(status.finished_requests.items())) or "none finished")
            + (f", {status.refused_requests} refused" if status.refused_requests else ""),
        ),
        *(("prompts" if i == 0 else "", output.prompt_progress(one)) for i, one in enumerate(status.prompts)),
        ("memory", _memory(status) if model.model else UNKNOWN),
        *([("prefix cache", _prefix_cache(status.prefix_cache, model))] if status.HasField("prefix_cache") else []),
        *([("", status.prefix_cache.warning)] if status.prefix_cache.warning else []),
        *([("", _prefix_disk(status.prefix_cache))] if status.prefix_cache.disk_files else []),
        (
            "tokens",
            f"{status.output_tokens} generated in {counts.target_forwards} forward passes of the target; "
            f"{status.prefilled_tokens} prompt tokens computed",
        ),
    ]
    rows += [(name, value.plain) for name, value in (*ranks.rows(status), *remote.rows(status))]
    if model.batched_reason:
        rows.append(("batching", f"none, each request has forward passes of its own: {model.batched_reason}"))
    if counts.drafted:
        accepted = f"{counts.accepted} of {counts.drafted} tokens accepted ({percent(counts.acceptance)})"
        drafts = f"{length(counts.mean_accepted_length)} tokens per draft, the target's own included"
        rows.append(("drafts", f"{accepted}, {drafts}; {counts.rollbacks} rollbacks"))
    rows += _exactness(status)
    if status.drafter_errors:
        rows.append(("drafter errors", str(status.drafter_errors)))
    rows.append(("telemetry", export_state(status.telemetry_exporting)))
    return rows


def _pair(model: inference.GetModelResponse) -> list[tuple[str, str]]:
    return [
        ("model", f"{model.model} ({size(model.weight_bytes)})"),
        ("draft", _draft(model)),
        *([("draft head", describe_head(model.draft_head))] if model.HasField("draft_head") else []),
        *([("light draft", _light_draft(model))] if model.light_draft_model else []),
        *capabilities(model),
    ]


def _draft(model: inference.GetModelResponse) -> str:
    if not model.draft_model:
        return "none"
    if DRAFT_MODEL in model.drafters:
        return f"{model.draft_model} ({size(model.draft_weight_bytes)})"
    return f"{model.draft_model}, refused: {model.speculation_reason}"


def describe_head(head: inference.DraftHead) -> str:
    """Describes a draft head: its family, its files, and what the trial found; or why it is refused."""
    files = ", ".join(head.files) if len(head.files) < 3 else f"{len(head.files)} files"
    where = f"{head.family}, {size(head.file_bytes)} in {files}" if head.file_bytes else f"{head.family} in {files}"
    if head.refusal:
        return f"{where}, refused: {head.refusal}"
    if not head.form:
        states, choice = "last hidden states", "whether after or before the final norm"
        if head.kind in ("eagle", "dflash"):
            states, choice = "hidden states", "which"
        trial = f"a trial when the weights are loaded decides {choice}, and if it drafts"
        return f"{where}; it reads the model's {states}, {trial}"
    tried = f"{percent(head.accepted)} of {head.positions} tokens accepted in the trial"
    return "; ".join([where, *([tried] if head.HasField("accepted") else []), head.form])


def _light_draft(model: inference.GetModelResponse) -> str:
    refused = LIGHT_DRAFT_MODEL not in model.drafters
    return model.light_draft_model + (f", refused: {model.light_draft_reason}" if refused else "")


def _memory(status: pb.GetStatusResponse) -> str:
    text = f"{size(status.weight_bytes)} of weights, {size(status.kv_cache_bytes)} of KV cache"
    return text + (f" (at most {size(status.kv_cache_limit_bytes)})" if status.kv_cache_limit_bytes else "")


def capabilities(model: inference.GetModelResponse) -> list[tuple[str, str]]:
    """Returns names and values on what a pair can do, by a daemon's `GetModel` or by the doctor's reading of the
    files."""
    return [
        ("layers", _layers(model)),
        ("context", _context(model)),
        (
            "prefix reuse",
            "up to the first different token" if model.partial_prefixes else "only of whole earlier texts",
        ),
        ("end tokens", ", ".join(f"{text} ({i})" for i, text in sorted(model.end_tokens.items())) or "none"),
        ("template", _template(model)),
    ]


def _layers(model: inference.GetModelResponse) -> str:
    kinds = ", ".join(f"{count} × {kind}" for kind, count in sorted(model.layers.items()))
    text = f"; text only, without its {model.left_out}" if model.left_out else ""
    return (f"{model.architecture}: {kinds}" if model.architecture else kinds) + text


def _context(model: inference.GetModelResponse) -> str:
    """Says how long a text may be, and how much memory it takes."""
    whole, fits = model.context_length, model.largest_context
    room = "" if fits >= whole else f", of which the memory has room for {fits:,}"
    each = f", {size(model.sequence_bytes)} per request" if model.sequence_bytes else ""
    return f"{whole:,} tokens{room}; KV cache: {size(1000 * model.position_bytes)} per 1,000 tokens{each}"


def _template(model: inference.GetModelResponse) -> str:
    has = {"chat": model.chat_template, "tools": model.tools or model.generic_tools, "thinking": model.thinking}
    named = {"tools": "generic tools"} if model.generic_tools else {}
    return ", ".join(named.get(name, name) if there else f"no {name}" for name, there in has.items())


def _prefix_cache(cache: pb.PrefixCache, model: inference.GetModelResponse) -> str:
    if not (cache.limit_bytes or cache.lookups):
        return "off"
    room = prefix_room(cache.limit_bytes, model.position_bytes, model.sequence_bytes)
    texts = f"{cache.entries} text{'s' * (cache.entries != 1)}"
    room_text = f"{size(cache.bytes)} of {size(cache.limit_bytes)}{room and f' (room for {room})'}, {texts}"
    text = f"{room_text}; {cache.hits} of {cache.lookups} requests reused {cache.read_tokens} tokens"
    return text + (f", {cache.unfit} were too long for it" if cache.unfit else "")


def _prefix_disk(cache: pb.PrefixCache) -> str:
    limit = f" of {size(cache.disk_limit_bytes + cache.pinned_bytes)}" if cache.disk_limit_bytes else ""
    return f"on disk {size(cache.disk_bytes)}{limit} in {cache.disk_files} files, {cache.pins} pinned prefixes"


def _exactness(status: pb.GetStatusResponse) -> list[tuple[str, str]]:
    if not status.HasField("exactness"):
        return []
    exactness = exactness_of(status.exactness)
    names = [("", f"operations that differ: {exactness.named}")] if exactness.operations else []
    return [("exactness", exactness.in_words()), *names]


def _speculation(status: pb.GetStatusResponse) -> str:
    """Says what is drafted now."""
    model, fallback = status.model, status.fallback
    level = ladder.current(fallback) or status.level
    if not model.model:
        return f"{UNKNOWN}; flag {status.flag_variant}, level {level}"
    most, allowed = model.max_draft_tokens, status.max_draft_tokens
    depth = speculation(model.drafters, model.speculation_reason, allowed or most)
    if not (model.speculation_available and most):
        return depth
    if status.flag_variant == "off":
        return "off by the flag, unless one of its targeting rules (flag get) allows it for a request"
    if not allowed:
        return f"none at level {level}; flag {status.flag_variant}"
    if fallback.position < len(fallback.ladder):
        depth = ladder.drafting(fallback.ladder[fallback.position], model)
    mode = DEPTH_MODES.get(model.depth_mode)
    return f"flag {status.flag_variant}, level {level}, " + (f"depth {mode}, " if mode else "") + depth
