"""One step of the scheduler as values: the plan for a target, and its result."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from draftd.core import DrafterName, TokenLogprobs
from draftd.engine.features import Features
from draftd.engine.sequence import DecodeSequence

if TYPE_CHECKING:  # the daemon is put together without MLX
    from draftd.engine.drafters.base import Draft
    from draftd.engine.sampling.transforms import Sampling


class PlanEntry(NamedTuple):
    """One sequence's part of a step: takes in `tokens`, or, if there are none, continues from its own last token, which
    need not be read yet. `position`: the place in the text of the first token taken in. `drafted`: the number of draft
    ids that follow. `wanted`: whether a token is chosen after all these."""

    sequence: int
    position: int
    tokens: tuple[int, ...] = ()
    drafted: int = 0
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The work of a target in a step. `draft`: a row for each entry that continues; None if nothing is drafted.
    `sampling`: how these entries sample, with the noise that the draft was drawn with; None: the target makes it from
    the sequences' options."""

    step: int
    entries: Sequence[PlanEntry]
    draft: Draft | None = None
    sampling: Sampling | None = None


class EntryResult(NamedTuple):
    """The accepted tokens of an entry's draft, and the `following` token; None if not wanted. `replays`: tokens that
    the target computes again in the sequence's next step, before its draft. `logprobs`: of each of these tokens, if
    requested. `error`: why the sequence cannot go on; the other fields are then meaningless. `prompt`:
    log-probabilities of the prompt's tokens from the second on, in the result that ends the prefill. `features`: of the
    positions that were taken in and stay, if the target records any."""

    sequence: int
    accepted: list[int]
    following: int | None
    replays: int = 0
    logprobs: Sequence[TokenLogprobs] = ()
    error: str = ""
    prompt: Sequence[TokenLogprobs] = ()
    features: Features | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a plan. `width`: positions computed for the widest sequence."""

    step: int
    entries: Sequence[EntryResult]
    width: int


class StepMode(enum.Enum):
    """Whether a decode step drafts; if not, whether the next step may draft."""

    PLAIN = "plain"  # drafts nothing; the step after it may draft
    PLAIN_AHEAD = "plain ahead"  # drafts nothing, nor does the next step, whose forward starts before this is read
    SPECULATIVE = "speculative"  # at least one sequence drafts


class DraftState(enum.Enum):
    """Why a sequence drafts as much as it does in a step."""

    NONE = "none"  # it has no drafter, or no step may draft now
    DRAFTING = "drafting"
    CAPPED = "capped"  # it drafts all that its plan allows; more would pay
    PARKED = "parked"  # it drafts nothing, because that does not pay


class SequenceDraft(NamedTuple):
    """The draft planned for one sequence in a step: its depth, its drafter, and why."""

    depth: int = 0
    drafter: DrafterName | None = None
    state: DraftState = DraftState.NONE


class DraftPlan(NamedTuple):
    """The decision of depth control for a step; `sequences` in the order of the running ones."""

    mode: StepMode
    sequences: Sequence[SequenceDraft]


class SequenceStep(NamedTuple):
    """The result of a step for one sequence, before the text is cut at an end: `accepted` tokens, then one more, and
    their log-probabilities if requested."""

    drafted: int
    accepted: list[int]
    following: int
    draft_forwards: int
    state: DraftState = DraftState.NONE
    logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One step of all running sequences. Seconds are wall time. `drafter_errors`: sequences whose drafter failed, each
    with the error's message. `lag`: the most tokens that a draft model had to take in before it drafted. `replayed`:
    positions that replays (tokens fed again after a rollback) added to the forward's width."""

    sequences: list[SequenceStep]
    draft_seconds: float
    verify_seconds: float
    drafter_errors: list[tuple[DecodeSequence, str]]
    lag: int = 0
    replayed: int = 0


def continuing_entries(
    sequences: Sequence[DecodeSequence], depths: Sequence[int] = (), after: int = 0
) -> list[PlanEntry]:
    """Returns entries that continue each sequence from its last token, with `depths` drafted tokens. `after`: tokens of
    each sequence that are being computed and are not in its text yet."""
    drafted = zip(sequences, depths or [0] * len(sequences), strict=True)
    return [PlanEntry(one.id, len(one.tokens) - 1 + after, (), depth) for one, depth in drafted]
