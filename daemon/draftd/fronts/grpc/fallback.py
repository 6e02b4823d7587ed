"""The fallback to protobuf: its state, transitions and reports."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from draftd.fallback.journal import Transition
from draftd.fallback.ladder import Hold, LadderLevel, Signal
from draftd.fallback.leases import Lease
from draftd.fallback.probes import CanaryOutcome, CanaryReport, ProbeReport
from draftd.fallback.state import FallbackState
from draftd.fronts.grpc import reply
from draftd.protocol import duration
from draftd.v1 import control_pb2 as pb


def state(found: FallbackState) -> pb.FallbackState:
    return pb.FallbackState(
        ladder=map(ladder_level, found.ladder),
        position=found.position,
        since=_at(found.since),
        cause="" if found.signal is None else found.signal.text,
        hold=None if found.hold is None else _hold(found.hold),
        demands=map(_signal, found.signals),
        leases=map(_lease, found.leases),
        wait=duration(found.wait),
        relapses=found.relapses,
        loaded_drafters=sorted(found.loaded_drafters),
        draft_weight_bytes=found.draft_weight_bytes,
        state_file="" if found.state_file is None else str(found.state_file),
        absent_drafters=dict(found.missing),
    )


def ladder_level(one: LadderLevel) -> pb.LadderLevel:
    return pb.LadderLevel(
        level=one.kind.label,
        max_draft_tokens=one.max_draft_tokens,
        drafter=one.drafter or "",
    )


def transition(one: Transition) -> pb.Transition:
    return pb.Transition(
        at=reply.timestamp(one.at),
        subject=one.subject.value,
        previous=one.previous,
        current=one.current,
        cause=one.cause,
        evidence=one.evidence,
        number=one.number,
    )


def probed(report: ProbeReport) -> pb.RunProbeResponse:
    return pb.RunProbeResponse(
        level=ladder_level(report.level),
        verdict=report.verdict.value,
        reason=report.reason,
        acceptance=report.acceptance,
        speedup=report.speedup,
        took=duration(report.seconds),
    )


def canaries(report: CanaryReport) -> pb.RunCanariesResponse:
    return pb.RunCanariesResponse(
        verdict=report.verdict.value,
        reason=report.reason,
        score_autoregressive=report.score_autoregressive,
        score_speculative=report.score_speculative,
        results=map(_canary, report.outcomes),
        took=duration(report.seconds),
    )


def _canary(outcome: CanaryOutcome) -> pb.CanaryResult:
    found = outcome.divergence
    return pb.CanaryResult(
        id=outcome.id,
        passed_autoregressive=outcome.passed_autoregressive,
        passed_speculative=outcome.passed_speculative,
        diverged=found is not None,
        diverged_at=None if found is None else found.at,
        logit_gap=None if found is None else found.logit_gap,
        complaint=outcome.complaint,
    )


def _hold(hold: Hold) -> pb.Hold:
    return pb.Hold(until=None if hold.until is None else _at(hold.until), position=hold.position)


def _signal(one: Signal) -> pb.Demand:
    return pb.Demand(signal=one.cause.value, level=one.asks_for.label, hard=one.hard, evidence=one.evidence)


def _lease(lease: Lease) -> pb.Lease:
    notice = lease.notice
    return pb.Lease(
        alert=notice.name,
        fingerprint=notice.fingerprint,
        level=notice.level.label,
        started=_at(notice.starts_at),
        until=_at(lease.until),
    )


def _at(seconds: float) -> Timestamp:
    return reply.timestamp(datetime.fromtimestamp(seconds, UTC))
