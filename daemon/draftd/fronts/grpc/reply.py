"""Converts the daemon's values to the contract's messages: models, counts, the machine, learnt costs, the fallback."""

from __future__ import annotations

import re
import time
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, DecodePlan, LadderLevel
from draftd.counts import DraftCounts
from draftd.engine.depth.saved import LearntCosts
from draftd.engine.observer import EngineStatus, PromptProgress
from draftd.engine.remote.verifier_link import LinkState
from draftd.errors import NotServing
from draftd.exactness import Exactness
from draftd.fallback.ladder import Signal
from draftd.fallback.probes import CanaryOutcome, CanaryReport, ProbeReport
from draftd.fallback.remote_guard import REMOTE_LADDER, RemoteState
from draftd.fallback.state import FallbackState
from draftd.group import GroupStatus
from draftd.hardware.state import HardwareView
from draftd.journal import Transition
from draftd.model_info import HeadInfo, ModelInfo
from draftd.planning.routing import RouteOption
from draftd.protocol import duration, number
from draftd.service.request import RouteAnswer, ServedModel
from draftd.strategies import PeerCounts, QualityClass, RemoteCounts, VerificationStatus
from draftd.v1 import control_pb2
from draftd.v1 import inference_pb2 as pb

_UNIT = re.compile("_(bytes|tokens)$")

M = TypeVar("M", bound=Message)


def fill(kind: type[M], source: object, **others: Any) -> M:
    """Returns a message of that kind with the fields `others`. Every other field gets the attribute of `source` with
    the field's name, or with that name without its unit (`swap_used` for `swap_used_bytes`). Raises AttributeError if
    `source` has neither. None leaves a field unset."""
    for name in set(kind.DESCRIPTOR.fields_by_name) - set(others):
        others[name] = getattr(source, name if hasattr(source, name) else _UNIT.sub("", name))
    return kind(**others)


def counts(c: DraftCounts) -> pb.DraftCounts:
    return fill(pb.DraftCounts, c, draft_time=duration(c.draft_seconds), verify_time=duration(c.verify_seconds))


def model(served: ServedModel) -> pb.GetModelResponse:
    return fill(
        pb.GetModelResponse,
        served.info,
        draft_head=draft_head(served.info.head),
        speculation_reason=_why_no_draft_model(served.info),
        light_draft_reason=served.info.why_no(LIGHT_DRAFT_MODEL),
        default_max_tokens=served.default_max_tokens,
        max_draft_tokens=served.max_draft_tokens,
        chat_template=served.chat_template,
        depth_mode=number(pb.DepthMode, served.depth_mode),
        quality=number(pb.QualityClass, served.quality),
        generic_tools=served.generic_tools,
    )


def draft_head(head: HeadInfo | None) -> pb.DraftHead | None:
    """Converts the model's draft head; None without one."""
    return None if head is None else fill(pb.DraftHead, head)


def _why_no_draft_model(info: ModelInfo) -> str:
    """Says why the draft model does not draft; empty if it does, or if there is none and a draft head drafts."""
    return info.why_no(DRAFT_MODEL) if info.draft_model else info.why_no_model_drafts


def prompt_progress(progress: PromptProgress) -> pb.PromptProgress:
    return fill(pb.PromptProgress, progress, elapsed=duration(time.monotonic() - progress.began))


def plan(decode_plan: DecodePlan, quality: QualityClass) -> pb.DecodePlan:
    """Converts a plan. `quality` is the class of the model that writes the text."""
    return fill(
        pb.DecodePlan,
        decode_plan,
        mode=number(pb.DecodeMode, decode_plan.mode),
        level=decode_plan.level.label,
        depth_mode=number(pb.DepthMode, decode_plan.depth_mode if decode_plan.drafter is not None else None),
        alternatives=sorted(decode_plan.alternatives),
        strategy=number(pb.Strategy, decode_plan.strategy),
        quality=number(pb.QualityClass, quality),
    )


def remote_counts(c: RemoteCounts | None) -> pb.RemoteCounts | None:
    if c is None:
        return None
    return fill(
        pb.RemoteCounts,
        c,
        proposed_tokens=c.proposed,
        wasted_tokens=c.wasted,
        hidden_round_trips=c.hidden,
        late_verdicts=c.late,
        round_trip=duration(c.round_trip_seconds / c.round_trips if c.round_trips else None),
        queue_time=duration(c.queue_seconds),
        target_time=duration(c.target_seconds),
    )


def route(answer: RouteAnswer) -> pb.RouteResponse:
    chosen = answer.route
    return pb.RouteResponse(
        rows=map(_row, chosen.ways),
        strategy=number(pb.Strategy, chosen.strategy),
        reason=chosen.reason,
        refusal=chosen.refusal,
        prompt_tokens=answer.prompt_tokens,
        expected_tokens=answer.expected_tokens,
        currency=answer.currency,
        quality=number(pb.QualityClass, chosen.wanted),
    )


def _row(way: RouteOption) -> pb.RouteRow:
    row = pb.RouteRow(
        strategy=number(pb.Strategy, way.strategy),
        unavailable=way.unavailable,
        quality=number(pb.QualityClass, way.quality),
        chosen=way.chosen,
        why=way.why,
    )
    if (estimate := way.estimate) is not None:
        row.MergeFrom(
            pb.RouteRow(
                total=duration(estimate.seconds),
                load=duration(estimate.load),
                queue=duration(estimate.queue),
                prefill=duration(estimate.prefill),
                decode=duration(estimate.decode),
                round_trips=duration(estimate.round_trips),
                tokens_per_second=estimate.tokens_per_second,
                measured=estimate.measured,
                cost=estimate.cost,
            )
        )
    return row


def hardware(view: HardwareView, now: float) -> control_pb2.Hardware | None:
    """The machine's state, with unknown values unset; None before the first reading. `now` is on the monotonic
    clock."""
    state = view.state
    if state is None:
        return None
    sample = state.sample
    return fill(
        control_pb2.Hardware,
        sample,
        age=duration(now - state.at),
        memory_pressure=number(control_pb2.MemoryPressure, sample.memory_pressure),
        memory_headroom_bytes=state.headroom,
        memory_floor_bytes=state.floor,
        memory_available_bytes=state.available,
        memory_limit_bytes=state.limit,
        critical_pressure=duration(state.critical_seconds),
        swap_in_bytes=state.swap_ins,
        thermal_level=number(control_pb2.ThermalLevel, sample.thermal_level),
        throttles=state.throttles,
        on_mains=sample.plugged_in,
        errors=view.errors,
    )


def depth(learnt: LearntCosts | None, most: int) -> control_pb2.GetDepthResponse:
    """The learnt costs and acceptance of drafting, and the depths that follow from them. `most` limits the tokens that
    a step may draft. Raises NotServing if nothing is known yet."""
    if learnt is None:
        raise NotServing(
            "the gain of drafting cannot be estimated yet: the models are not loaded, or there is nothing to draft with"
        )
    costs, yields = learnt.depths(most)
    return control_pb2.GetDepthResponse(
        costs=[fill(control_pb2.DepthCost, cost, plain=duration(cost.plain)) for cost in costs],
        yields=[
            fill(control_pb2.DepthYield, text, workload=number(pb.WorkloadClass, text.workload)) for text in yields
        ],
    )


def fallback(state: FallbackState) -> control_pb2.FallbackState:
    return fill(
        control_pb2.FallbackState,
        state,
        ladder=map(ladder_level, state.ladder),
        since=timestamp(state.since or None),
        cause="" if state.signal is None else state.signal.text,
        hold=None if state.hold is None else fill(control_pb2.Hold, state.hold, until=timestamp(state.hold.until)),
        demands=map(_demand, state.signals),
        leases=[
            fill(
                control_pb2.Lease,
                lease.notice,
                alert=lease.notice.name,
                level=lease.signal.asks_for.label,
                started=timestamp(lease.notice.starts_at),
                until=timestamp(lease.until),
            )
            for lease in state.leases
        ],
        wait=duration(state.wait),
        loaded_drafters=sorted(state.loaded_drafters),
        state_file=None if state.state_file is None else str(state.state_file),
        absent_drafters=dict(state.missing),
        remote=None if state.remote is None else _remote_ladder(state.remote),
    )


def _remote_ladder(remote: RemoteState) -> control_pb2.FallbackState:
    """Converts the state of the ladder of the remote's levels."""
    state = remote.ladder
    return control_pb2.FallbackState(
        ladder=[control_pb2.LadderLevel(level=one.label) for one in REMOTE_LADDER],
        position=state.position,
        since=timestamp(state.since or None),
        cause="" if state.signal is None else state.signal.text,
        hold=None if state.hold is None else fill(control_pb2.Hold, state.hold, until=timestamp(state.hold.until)),
        demands=map(_demand, remote.signals),
        wait=duration(remote.wait),
        relapses=state.relapses,
    )


def _demand(demand: Signal) -> control_pb2.Demand:
    return fill(control_pb2.Demand, demand, signal=demand.cause.value, level=demand.asks_for.label)


def remote(target: str, link: LinkState, engine: EngineStatus, allowed: RemoteState | None) -> control_pb2.RemoteStatus:
    """Converts the state of the remote daemon, which verifies for this one. `allowed`: the state of the fallback's
    ladder for the remote; None if the fallback has none."""
    model = link.model
    return fill(
        control_pb2.RemoteStatus,
        link,
        target=target,
        model="" if model is None else model.model,
        quality=None if model is None else number(pb.QualityClass, model.quality),
        round_trip=duration(link.round_trip),
        retry_after=duration(link.retry_after),
        reason=None if link.failure is None else link.failure.value,
        errors=sum(link.failures.values()),
        failures={kind.value: count for kind, count in link.failures.items() if count},
        open_sequences=engine.remote.open_sequences,
        steps_in_flight=engine.remote.in_flight,
        counts=remote_counts(engine.remote.counts),
        failed_over=engine.remote.counts.failed_over,
        break_even=duration(engine.remote.break_even),
        speedup=None if allowed is None else allowed.speedup,
        level="" if allowed is None else allowed.level.label,
    )


def verification(status: VerificationStatus) -> control_pb2.VerificationStatus:
    """Converts the state of this daemon as a verifier of others."""
    return control_pb2.VerificationStatus(
        peers=[
            control_pb2.PeerStatus(address=address, counts=peer_counts(counts))
            for address, counts in sorted(status.peers.items())
        ],
        total=peer_counts(status.total),
        open_sequences=status.open_sequences,
        refusals={reason: count for reason, count in status.refusals.items() if count},
    )


def peer_counts(c: PeerCounts) -> control_pb2.PeerCounts:
    return fill(control_pb2.PeerCounts, c, queue_time=duration(c.queue_seconds), target_time=duration(c.target_seconds))


def group(status: GroupStatus) -> control_pb2.GroupStatus:
    """Returns the message about the ranks that the target runs on."""
    return fill(
        control_pb2.GroupStatus,
        status,
        ranks=[
            fill(
                control_pb2.RankStatus,
                rank,
                collective=duration(rank.collective_seconds),
                silent=duration(rank.seconds_silent),
            )
            for rank in status.ranks
        ],
        losses={loss.value: count for loss, count in status.losses.items() if count},
        restart=duration(status.restart_seconds),
    )


def exactness(measured: Exactness | None) -> control_pb2.Exactness | None:
    """Converts the model's exactness; None until it is measured."""
    if measured is None:
        return None
    return fill(
        control_pb2.Exactness,
        measured,
        differs=measured.forward.differs,
        forward=fill(control_pb2.OperationExactness, measured.forward),
        operations=[fill(control_pb2.OperationExactness, operation) for operation in measured.operations],
        duration=duration(measured.seconds),
    )


def ladder_level(level: LadderLevel) -> control_pb2.LadderLevel:
    return fill(control_pb2.LadderLevel, level, level=level.kind.label)


def transition(entry: Transition) -> control_pb2.Transition:
    return fill(control_pb2.Transition, entry)


def probe_result(report: ProbeReport) -> control_pb2.RunProbeResponse:
    return fill(control_pb2.RunProbeResponse, report, level=ladder_level(report.level), took=duration(report.seconds))


def canaries(report: CanaryReport) -> control_pb2.RunCanariesResponse:
    return fill(
        control_pb2.RunCanariesResponse, report, results=map(_canary, report.outcomes), took=duration(report.seconds)
    )


def _canary(outcome: CanaryOutcome) -> control_pb2.CanaryResult:
    divergence = outcome.divergence
    return fill(
        control_pb2.CanaryResult,
        outcome,
        diverged=divergence is not None,
        diverged_at=None if divergence is None else divergence.at,
        logit_gap=None if divergence is None else divergence.logit_gap,
    )


def timestamp(seconds: float | None) -> Timestamp | None:
    """`seconds` since 1970."""
    if seconds is None:
        return None
    stamp = Timestamp()
    stamp.FromNanoseconds(round(seconds * 1e9))
    return stamp
