"""One step of the scheduler as values: what a target is asked, and what it answers."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from draftd.core import DrafterName, TokenLogprobs
from draftd.engine.sequence import DecodeSequence

if TYPE_CHECKING:  # the daemon is put together without MLX
    from draftd.engine.drafters.base import Draft
    from draftd.engine.sampling.transforms import Sampling


class PlanEntry(NamedTuple):
    """What one sequence does in a step: it takes `tokens` in, or with none of these continues from its own last token,
    which may still be under way. `position`: of the first token that is taken in, in the sequence's text. `drafted`:
    how many draft ids follow it. `wanted`: whether a token is chosen after all these."""

    sequence: int
    position: int
    tokens: tuple[int, ...] = ()
    drafted: int = 0
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The work of a target in a step. `draft`: a row for each entry that continues; None where nothing is drafted.
    `sampling`: how these entries sample, with the noise that the draft was drawn with; None where the target is to make
    it from the sequences' options."""

    step: int
    entries: Sequence[PlanEntry]
    draft: Draft | None = None
    sampling: Sampling | None = None


class EntryResult(NamedTuple):
    """The drafted tokens of an entry that were accepted, and the token after them; None where none was wanted.
    `replays`: tokens that the target computes again in the sequence's next step, in front of its draft. `logprobs`: of
    each of these tokens, where they were asked for. `error`: why the sequence cannot go on; what it was given besides
    means nothing. `prompt`: the log-probabilities of all tokens that were taken in but the text's first, once the last
    of them is."""

    sequence: int
    accepted: list[int]
    following: int | None
    replays: int = 0
    logprobs: Sequence[TokenLogprobs] = ()
    error: str = ""
    prompt: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a plan. `width`: positions that were computed of the widest sequence."""

    step: int
    entries: Sequence[EntryResult]
    width: int


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


class SequenceStep(NamedTuple):
    """What the step decided for one sequence, before the text is cut at an end: `accepted` tokens, then one more, and
    the log-probabilities of all these where they were asked for."""

    drafted: int
    accepted: list[int]
    following: int
    draft_forwards: int
    state: DraftState = DraftState.NONE
    logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One step of all running sequences. Seconds are wall time; `drafter_errors` names those whose drafter failed, and
    why; `lag` is the most tokens that a draft model took in before it drafted; `replayed`: by how many positions the
    forward was wider than the last tokens and their drafts."""

    sequences: list[SequenceStep]
    draft_seconds: float
    verify_seconds: float
    drafter_errors: list[tuple[DecodeSequence, str]]
    lag: int = 0
    replayed: int = 0


def continuing_entries(
    sequences: Sequence[DecodeSequence], depths: Sequence[int] = (), after: int = 0
) -> list[PlanEntry]:
    """Each sequence continues from its last token, with so many drafts; `after` tokens more are under way than are
    known."""
    drafted = zip(sequences, depths or [0] * len(sequences), strict=True)
    return [PlanEntry(one.id, len(one.tokens) - 1 + after, (), depth) for one, depth in drafted]
