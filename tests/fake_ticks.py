"""Builds ticks (measurements of one answer) by hand, to test what is computed from them."""

from __future__ import annotations

from collections.abc import Sequence

from draftd.client.timing import TimedChunk
from draftd.core import DecodeMode, DrafterName, FinishReason, WorkloadClass
from draftd.counts import DraftCounts
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, GrantedPlan, RunPlace, ServerTiming, Stage, Tick


def place(
    arm: str = AUTOREGRESSIVE.id,
    prompt: str = "p1",
    *,
    repetition: int = 0,
    session: int = 1,
    group: str = "chat",
    workload: WorkloadClass = WorkloadClass.CHAT,
    warm_up: bool = False,
    stage: Stage = Stage.SWEEP,
) -> RunPlace:
    return RunPlace(stage, session, arm, repetition, prompt, group, workload, warm_up)


def tick(
    where: RunPlace | None = None,
    chunks: Sequence[tuple[float, int]] = ((0.1, 1), (0.2, 1), (0.3, 1)),
    *,
    elapsed: float = 0.0,
    ended: float | None = None,
    error: str = "",
    reason: FinishReason | None = FinishReason.STOP,
    granted: GrantedPlan | None = None,
    served: ServerTiming | None = None,
    counts: DraftCounts | None = None,
    text: str | None = None,
) -> Tick:
    """Builds a tick. `chunks` has the time of each chunk and its number of tokens."""
    tokens = sum(count for _, count in chunks)
    return Tick(
        place=where or place(),
        elapsed=elapsed,
        asked_at=1_700_000_000.0 + elapsed,
        ended=ended if ended is not None else chunks[-1][0] if chunks else 0.0,
        chunks=tuple(TimedChunk(at, count, max(0, count - 1)) for at, count in chunks),
        error=error,
        prompt_tokens=10,
        output_tokens=tokens,
        finish_reason=reason,
        granted=granted,
        served=served,
        counts=counts or DraftCounts(emitted=tokens),
        digest="0123456789abcdef",
        text=text,
    )


def paced(where: RunPlace, rate: float, *, first: float = 0.1, tokens: int = 11, elapsed: float = 0.0) -> Tick:
    """Builds a tick with one token a chunk, and `rate` tokens per second after the first."""
    return tick(where, [(first + i / rate, 1) for i in range(tokens)], elapsed=elapsed)


def drafted(
    k: int, *, drafts: int, accepted: int, plain: int = 1, draft_seconds: float, verify_seconds: float
) -> DraftCounts:
    """Builds the counts of `drafts` steps of `k` draft tokens each and `plain` steps without. Seconds are sums over all
    steps."""
    return DraftCounts(
        steps=drafts + plain,
        drafts=drafts,
        drafted=k * drafts,
        accepted=accepted,
        emitted=accepted + drafts + plain,
        rollbacks=min(drafts, k * drafts - accepted),
        rolled_back=k * drafts - accepted,
        draft_forwards=k * drafts,
        target_forwards=drafts + plain,
        draft_seconds=draft_seconds,
        verify_seconds=verify_seconds,
        drafted_per_position=[drafts] * k,
        accepted_per_position=[min(drafts, max(0, accepted - drafts * i)) for i in range(k)],
    )


def granted(arm: Arm) -> GrantedPlan:
    mode = DecodeMode.SPECULATIVE if arm.speculative else DecodeMode.AUTOREGRESSIVE
    drafter: DrafterName | None = arm.drafter
    return GrantedPlan(mode, arm.block_length, drafter, "full", "on", "request", arm.depth_mode)
