"""The core's vocabulary to protobuf: what a client is told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from draftd.core import (
    DecodeMode,
    DecodePlan,
    DraftCounts,
    DrafterKind,
    Emission,
    FinishReason,
    ModelInfo,
    Outcome,
    RequestStats,
)
from draftd.v1 import inference_pb2 as pb

_MODES = {
    DecodeMode.SPECULATIVE: pb.DECODE_MODE_SPECULATIVE,
    DecodeMode.AUTOREGRESSIVE: pb.DECODE_MODE_AUTOREGRESSIVE,
}
_DRAFTERS = {
    None: pb.DRAFTER_KIND_UNSPECIFIED,
    DrafterKind.DRAFT_MODEL: pb.DRAFTER_KIND_DRAFT_MODEL,
    DrafterKind.LIGHT_DRAFT_MODEL: pb.DRAFTER_KIND_LIGHT_DRAFT_MODEL,
    DrafterKind.PROMPT_LOOKUP: pb.DRAFTER_KIND_PROMPT_LOOKUP,
}
_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
    FinishReason.DEADLINE: pb.FINISH_REASON_DEADLINE,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}


def started(request_id: str, info: ModelInfo, prompt_tokens: int, plan: DecodePlan) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        started=pb.Started(
            request_id=request_id,
            model=info.model,
            draft_model=info.draft_model or "",
            prompt_tokens=prompt_tokens,
            plan=pb.DecodePlan(
                mode=_MODES[plan.mode],
                max_draft_tokens=plan.max_draft_tokens,
                drafter=_DRAFTERS[plan.drafter],
                level=plan.level.label,
                variant=plan.variant,
                reason=plan.reason,
            ),
        )
    )


def chunk(emission: Emission, pieces: Sequence[str], rest: str = "") -> pb.GenerateResponse:
    """`pieces` run parallel to the tokens; `rest` is what was held back until the end of the text."""
    return pb.GenerateResponse(
        chunk=pb.Chunk(
            text="".join(pieces) + rest,
            token_ids=emission.tokens,
            from_draft=emission.from_draft,
            text_lengths=map(len, pieces),
        )
    )


def finished(outcome: Outcome, plan: DecodePlan, stop: str) -> pb.GenerateResponse:
    stats = outcome.stats
    return pb.GenerateResponse(
        finished=pb.Finished(
            reason=_REASONS[outcome.reason],
            usage=pb.Usage(input_tokens=stats.prompt_tokens, output_tokens=stats.counts.emitted),
            timings=_timings(stats),
            counts=counts(stats.counts),
            stop=stop,
            degraded=outcome.degraded,
            mode=_MODES[plan.mode],
        )
    )


def counts(c: DraftCounts) -> pb.DraftCounts:
    return pb.DraftCounts(
        rounds=c.rounds,
        drafts=c.drafts,
        drafted_tokens=c.drafted,
        accepted_tokens=c.accepted,
        accepted_per_position=c.accepted_per_position,
        rollbacks=c.rollbacks,
        rolled_back_tokens=c.rolled_back,
        draft_forwards=c.draft_forwards,
        target_forwards=c.target_forwards,
        drafted_per_position=c.drafted_per_position,
        draft_time=duration(c.draft_seconds),
        verify_time=duration(c.verify_seconds),
        break_even_tokens=c.break_even_tokens,
    )


def model(
    info: ModelInfo, *, default_max_tokens: int, max_draft_tokens: int, chat_template: bool
) -> pb.GetModelResponse:
    return pb.GetModelResponse(
        model=info.model,
        draft_model=info.draft_model or "",
        context_length=info.context_length,
        vocab_size=info.vocab_size,
        speculation_available=info.speculation_available,
        speculation_reason=info.speculation_reason,
        drafters=[_DRAFTERS[kind] for kind in info.drafters],
        default_max_tokens=default_max_tokens,
        max_draft_tokens=max_draft_tokens,
        weight_bytes=info.weight_bytes,
        draft_weight_bytes=info.draft_weight_bytes,
        chat_template=chat_template,
        light_draft_model=info.light_draft_model or "",
        light_draft_reason=info.light_draft_reason,
    )


def duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    whole, nanos = divmod(max(0, round(seconds * 1e9)), 1_000_000_000)
    return Duration(seconds=whole, nanos=nanos)


def timestamp(at: datetime) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(at)
    return made


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """Nearest rank: a value that occurred. None of nothing."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None


def _timings(stats: RequestStats) -> pb.Timings:
    gaps = sorted(stats.gaps)
    return pb.Timings(
        queue=duration(stats.queue_seconds),
        prefill=duration(stats.prefill_seconds),
        time_to_first_token=duration(stats.time_to_first_token),
        total=duration(None if stats.finished is None else stats.finished - stats.arrival),
        decode_tokens_per_second=stats.decode_tokens_per_second or 0.0,
        inter_token_p50=duration(quantile(gaps, 0.50)),
        inter_token_p95=duration(quantile(gaps, 0.95)),
        inter_token_p99=duration(quantile(gaps, 0.99)),
    )
