"""The core's vocabulary to protobuf: what a client is told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from draftd.core import (
    DecodePlan,
    DepthMode,
    DraftCounts,
    Emission,
    ModelInfo,
    Outcome,
    RequestStats,
)
from draftd.protocol import DECODED, DEPTH_MODES, REASONS, duration
from draftd.v1 import inference_pb2 as pb

_MODES = {mode: number for number, mode in DECODED.items()}
_DEPTH_MODES = {mode: number for number, mode in DEPTH_MODES.items()}
_REASONS = {reason: number for number, reason in REASONS.items()}


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
                drafter=plan.drafter or "",
                level=plan.level.label,
                variant=plan.variant,
                reason=plan.reason,
                depth_mode=_DEPTH_MODES[plan.depth_mode if plan.drafter is not None else None],
                alternatives=sorted(plan.alternatives),
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
            usage=pb.Usage(
                input_tokens=stats.prompt_tokens,
                output_tokens=stats.counts.emitted,
                cache_read_tokens=stats.cached_tokens,
            ),
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
        parked_rounds=c.parked_rounds,
        capped_rounds=c.capped_rounds,
    )


def model(
    info: ModelInfo, *, default_max_tokens: int, max_draft_tokens: int, depth_mode: DepthMode, chat_template: bool
) -> pb.GetModelResponse:
    return pb.GetModelResponse(
        model=info.model,
        draft_model=info.draft_model or "",
        context_length=info.context_length,
        vocab_size=info.vocab_size,
        speculation_available=info.speculation_available,
        speculation_reason=info.speculation_reason,
        drafters=info.drafters,
        default_max_tokens=default_max_tokens,
        max_draft_tokens=max_draft_tokens,
        weight_bytes=info.weight_bytes,
        draft_weight_bytes=info.draft_weight_bytes,
        chat_template=chat_template,
        light_draft_model=info.light_draft_model or "",
        light_draft_reason=info.light_draft_reason,
        depth_mode=_DEPTH_MODES[depth_mode],
    )


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
        inter_chunk_p50=duration(quantile(gaps, 0.50)),
        inter_chunk_p95=duration(quantile(gaps, 0.95)),
        inter_chunk_p99=duration(quantile(gaps, 0.99)),
    )
