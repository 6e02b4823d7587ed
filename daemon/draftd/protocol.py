"""How the contract spells the core's vocabulary: for whoever speaks it, daemon and client alike."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration

from draftd.core import (
    DecodeMode,
    DepthMode,
    DraftCounts,
    FinishReason,
    ModePreference,
    WorkloadClass,
)
from draftd.v1 import inference_pb2 as pb

MESSAGE_SLACK = 4
"""How many times `server.max_message_bytes` gRPC lets through: of such a message the daemon can still say what is wrong
with it; what is larger gRPC refuses, as RESOURCE_EXHAUSTED."""

DETAILS_KEY = "grpc-status-details-bin"
"""Where gRPC carries a google.rpc.Status."""

MODES: Mapping[pb.DecodeMode, ModePreference] = {
    pb.DECODE_MODE_UNSPECIFIED: ModePreference.AUTO,
    pb.DECODE_MODE_AUTO: ModePreference.AUTO,
    pb.DECODE_MODE_SPECULATIVE: ModePreference.SPECULATIVE,
    pb.DECODE_MODE_AUTOREGRESSIVE: ModePreference.AUTOREGRESSIVE,
}
WORKLOADS: Mapping[pb.WorkloadClass, WorkloadClass] = {
    pb.WORKLOAD_CLASS_UNSPECIFIED: WorkloadClass.UNSPECIFIED,
    pb.WORKLOAD_CLASS_CODE: WorkloadClass.CODE,
    pb.WORKLOAD_CLASS_TOOL_CALL: WorkloadClass.TOOL_CALL,
    pb.WORKLOAD_CLASS_CHAT: WorkloadClass.CHAT,
    pb.WORKLOAD_CLASS_PROSE: WorkloadClass.PROSE,
}
DEPTH_MODES: Mapping[pb.DepthMode, DepthMode | None] = {
    pb.DEPTH_MODE_UNSPECIFIED: None,
    pb.DEPTH_MODE_AUTOMATIC: DepthMode.AUTOMATIC,
    pb.DEPTH_MODE_FIXED: DepthMode.FIXED,
}
DECODED: Mapping[pb.DecodeMode, DecodeMode] = {
    pb.DECODE_MODE_SPECULATIVE: DecodeMode.SPECULATIVE,
    pb.DECODE_MODE_AUTOREGRESSIVE: DecodeMode.AUTOREGRESSIVE,
}
"""How an answer was decoded."""
REASONS: Mapping[pb.FinishReason, FinishReason] = {
    pb.FINISH_REASON_STOP: FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    pb.FINISH_REASON_DEADLINE: FinishReason.DEADLINE,
    pb.FINISH_REASON_ERROR: FinishReason.ERROR,
}


def duration(seconds: float | None) -> Duration | None:
    """Negative ones are nought."""
    if seconds is None:
        return None
    whole, nanos = divmod(max(0, round(seconds * 1e9)), 1_000_000_000)
    return Duration(seconds=whole, nanos=nanos)


def draft_counts(counts: pb.DraftCounts, emitted: int) -> DraftCounts:
    """What one answer's end says of its drafts. `emitted`: its output tokens."""
    return DraftCounts(
        steps=counts.steps,
        drafts=counts.drafts,
        drafted=counts.drafted_tokens,
        accepted=counts.accepted_tokens,
        emitted=emitted,
        cut=counts.cut_tokens,
        rollbacks=counts.rollbacks,
        rolled_back=counts.rolled_back_tokens,
        draft_forwards=counts.draft_forwards,
        target_forwards=counts.target_forwards,
        draft_seconds=counts.draft_time.ToNanoseconds() / 1e9,
        verify_seconds=counts.verify_time.ToNanoseconds() / 1e9,
        break_even_tokens=counts.break_even_tokens,
        parked_steps=counts.parked_steps,
        capped_steps=counts.capped_steps,
        drafted_per_position=list(counts.drafted_per_position),
        accepted_per_position=list(counts.accepted_per_position),
    )
