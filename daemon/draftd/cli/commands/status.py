"""`draftd status`: what a running daemon is doing."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from draftd.cli import ladder, options, terminal
from draftd.cli.figures import length, percent, size, span
from draftd.client.asking import connect

if TYPE_CHECKING:
    from draftd.v1 import control_pb2 as pb


def command(
    json: options.Json = False,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Show what a running daemon serves, how busy it is, and how its drafts have fared.

    [bold]Examples[/]

    [dim]$[/] draftd status

    [dim]$[/] draftd status --target mini.local:50551 --tls-ca ca.pem --json
    """
    with connect(target, token, tls_ca) as client:
        status = client.status()
    if json:
        from draftd.cli.plain import as_json

        print(as_json(status))
        return
    out = terminal.stdout()
    for name, value in lines(status, datetime.now().astimezone()):
        out.print(f"[bold]{name:<14}[/]", end=" ")
        out.print(value, markup=False, soft_wrap=True)


def lines(status: pb.GetStatusResponse, now: datetime) -> list[tuple[str, str]]:
    """Name and value, in the order a person asks. A name that is empty belongs to the one above."""
    from draftd.v1 import control_pb2 as pb

    counts, model = status.counts, status.model
    state = pb.DaemonState.Name(status.state).removeprefix("DAEMON_STATE_").lower()
    made = [
        ("state", f"{state} for {span(status.uptime.seconds)} (draftd {status.version}, {status.backend})"),
        ("model", f"{model.model} ({size(model.weight_bytes)})"),
        ("draft", f"{model.draft_model} ({size(model.draft_weight_bytes)})" if model.draft_model else "none"),
        *([("light draft", model.light_draft_model)] if model.light_draft_model else []),
        ("speculation", _speculation(status)),
        *(_ladder(status.fallback, now) if status.HasField("fallback") else ()),
        (
            "requests",
            f"{status.active_requests} running, {status.queued_requests} of {status.queue_capacity} waiting; "
            + (", ".join(f"{n} {reason}" for reason, n in sorted(status.finished_requests.items())) or "none finished")
            + (f", {status.refused_requests} refused" if status.refused_requests else ""),
        ),
        (
            "memory",
            f"{size(status.weight_bytes)} of weights, {size(status.kv_cache_bytes)} of KV cache"
            + (f" (at most {size(status.kv_cache_limit_bytes)})" if status.kv_cache_limit_bytes else ""),
        ),
        *([("prefix cache", _prefix_cache(status.prefix_cache))] if status.HasField("prefix_cache") else []),
        ("tokens", f"{status.output_tokens} in {counts.target_forwards} forward passes of the target"),
    ]
    if counts.drafted_tokens:
        accepted = counts.accepted_tokens / counts.drafted_tokens
        mean = 1 + counts.accepted_tokens / counts.drafts
        made.append(
            (
                "drafts",
                f"{counts.accepted_tokens} of {counts.drafted_tokens} tokens accepted ({percent(accepted)}), "
                f"{length(mean)} tokens a draft, {counts.rollbacks} rollbacks",
            )
        )
    if status.drafter_errors:
        made.append(("drafter errors", str(status.drafter_errors)))
    made.append(("telemetry", "exporting" if status.telemetry_exporting else "not exporting (no OTEL endpoint)"))
    return made


def _prefix_cache(cache: pb.PrefixCache) -> str:
    if not (cache.limit_bytes or cache.lookups):
        return "off"
    held = f"{size(cache.bytes)} of {size(cache.limit_bytes)}, {cache.entries} texts"
    return f"{held}; {cache.hits} of {cache.lookups} requests read {cache.read_tokens} tokens"


def _ladder(state: pb.FallbackState, now: datetime) -> list[tuple[str, str]]:
    """Where the ladder stands; why, who holds it and what comes next where there is something to say."""
    made = [("level", f"{ladder.standing(state)} ({ladder.place(state)})")]
    if state.cause:
        made.append(("since", f"{ladder.ago(ladder.moment(state.since), now)}: {state.cause}"))
    if held := ladder.held(state, now):
        made.append(("held", held))
    made += [("asked" if not i else "", ladder.demand(one)) for i, one in enumerate(state.demands)]
    if outlook := ladder.outlook(state, now):
        made.append(("next", outlook))
    return made


def _speculation(status: pb.GetStatusResponse) -> str:
    from draftd.protocol import DEPTH_MODES

    if not status.model.speculation_available:
        return f"unavailable: {status.model.speculation_reason}"
    depth = f"up to {status.model.max_draft_tokens} draft tokens a round"
    if mode := DEPTH_MODES.get(status.model.depth_mode):
        depth += f", depth {mode}"
    return f"flag {status.flag_variant}, level {status.level}, {depth}"
