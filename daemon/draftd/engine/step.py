"""One decode round: draft, verify, accept, roll back. With nothing drafted it is autoregressive decoding."""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draftd.core import DrafterName
from draftd.engine.decoders import Decoders
from draftd.engine.drafters.base import Draft, merge
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.sequence import DecodeSequence


class StepMode(enum.Enum):
    """What a decode step does."""

    PLAIN = "plain"  # drafts nothing; the step after it may draft
    PLAIN_AHEAD = "plain ahead"  # nor will the step after it: that one's forward starts before this one is read
    SPECULATIVE = "speculative"  # at least one sequence drafts


class DraftState(enum.Enum):
    """Why a sequence drafts as much as it does in a step."""

    NONE = "none"  # it has no drafter, or no step may draft now
    DRAFTING = "drafting"
    CAPPED = "capped"  # it drafts all that its plan allows; more would pay
    PARKED = "parked"  # it drafts nothing, because that does not pay


class SequenceDraft(NamedTuple):
    """What one sequence drafts in a step: so many tokens, with which drafter, and why."""

    depth: int = 0
    drafter: DrafterName | None = None
    state: DraftState = DraftState.NONE


class DraftPlan(NamedTuple):
    """What depth control decided for a step; `sequences` in the order of the running ones."""

    mode: StepMode
    sequences: Sequence[SequenceDraft]


class RowRound(NamedTuple):
    """What the step decided for one sequence, before the text is cut at an end: `accepted` tokens, then one more."""

    drafted: int
    accepted: list[int]
    following: int
    draft_forwards: int
    state: DraftState = DraftState.NONE


@dataclass(frozen=True, slots=True)
class Round:
    """One round of all rows. Seconds are wall time; `drafter_errors` names rows whose drafter failed, and why; `lag` is
    the most tokens that a draft model took in before it drafted."""

    rows: list[RowRound]
    draft_seconds: float
    verify_seconds: float
    drafter_errors: list[tuple[DecodeSequence, str]]
    lag: int = 0


def decode_round(
    rows: Sequence[DecodeSequence],
    sampling: Sampling,
    decoders: Decoders,
    vocabulary: int,
    plan: DraftPlan,
) -> Round:
    """Decodes at least one token for every sequence; drafts as planned."""
    started = time.perf_counter()
    speculative = plan.mode is StepMode.SPECULATIVE
    draft, errors = _draft(rows, sampling, decoders, vocabulary, plan) if speculative else (None, [])
    drafted_at = time.perf_counter()
    states = [one.state for one in plan.sequences]
    if draft is None:
        tokens = decoders.verifier.advance(rows, sampling, plan.mode is StepMode.PLAIN_AHEAD)
        results = [RowRound(0, [], token, 0, state) for token, state in zip(tokens, states, strict=True)]
    else:
        verdict = decoders.verifier.verify(rows, draft, sampling)
        decided = zip(draft.depths, verdict.accepted, verdict.following, draft.forwards, states, strict=True)
        results = [RowRound(*values) for values in decided]
    lag = 0 if draft is None else draft.lag
    return Round(results, drafted_at - started, time.perf_counter() - drafted_at, errors, lag)


def _draft(
    rows: Sequence[DecodeSequence],
    sampling: Sampling,
    decoders: Decoders,
    vocabulary: int,
    plan: DraftPlan,
) -> tuple[Draft | None, list[tuple[DecodeSequence, str]]]:
    """Asks each drafter for its rows. A row that cannot be rolled back, or whose drafter fails, is degraded here."""
    groups: dict[DrafterName, list[int]] = {}
    for i, (row, (depth, kind, _)) in enumerate(zip(rows, plan.sequences, strict=True)):
        if depth > 0 and kind is not None:
            refusal = decoders.verifier.refusal(i, depth + 1)
            if refusal:
                row.degrade(refusal)
            else:
                row.draft_with(kind)
                groups.setdefault(kind, []).append(i)
    parts: list[tuple[list[int], Draft]] = []
    errors: list[tuple[DecodeSequence, str]] = []
    for kind, members in groups.items():
        asked = [rows[i] for i in members]
        own = sampling if len(asked) == len(rows) else sampling.select(members)
        try:
            depths = [plan.sequences[i].depth for i in members]
            parts.append((members, decoders.drafters[kind].propose(asked, depths, own)))
        except Exception as error:
            for row in asked:
                row.degrade(f"the drafter failed: {error}")
                errors.append((row, str(error)))
    return merge(parts, len(rows), vocabulary, sampling.settled), errors
