"""The seam to a target: step plans in, step results out. A target is one device, or a group of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from draftd.core import SamplingParams
from draftd.engine.step import PlanEntry, StepPlan, StepResult

if TYPE_CHECKING:  # the daemon is put together without MLX
    from draftd.engine.drafters.base import Draft
    from draftd.engine.sampling.transforms import Sampling


@dataclass(frozen=True, slots=True)
class SequenceOptions:
    """What a target is told of a sequence once. `prompt`: tokens of its text that precede the answer, by which seeded
    noise is placed. `length`: tokens that plans will have it take in before it decodes. `prefix`: those tokens, to be
    looked up in the prefix store; empty: the text is neither looked up nor kept. `ends`: tokens that end the answer,
    none of which is chosen before `min_tokens`. `logprobs`: how many of the likeliest tokens are told besides each
    chosen one; None for no log-probabilities. `prompt_logprobs`: the same for the tokens that are taken in, none of
    which is then had from the store. `grammar`: what the answer must be; empty where it may be anything."""

    prompt: int
    length: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prefix: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""


class Target(Protocol):
    """Keeps each sequence's ids, sampling state and caches. Called on the engine thread only; whatever it raises, no
    sequence of it can be trusted any more until `reset`, but for a plan of prefill entries: that fails alone."""

    def open(self, sequence: int, options: SequenceOptions) -> int | None:
        """Begins a sequence. Returns how many of its first tokens the prefix store had, which plans need not take in;
        None where none were looked up."""

    def cached_prefix(self, tokens: Sequence[int]) -> int | None:
        """How many of the first tokens the prefix store has now; None if it keeps nothing."""

    def fork(self, sequence: int, length: int) -> None:
        """Others wait for the first `length` tokens of a sequence's text: keeps them in the prefix store as soon as
        plans have had them taken in, unless the text ends there."""

    def submit(self, plan: StepPlan) -> None:
        """Begins a step. Entries that continue name the running sequences that take part in it, in the order in which
        the result before had them, and perhaps, at the end, others that begin to run: their prefill gave a token, or
        they rested. Running ones that are not named rest: they are held as they are until they are named again.

        Plans may be submitted before earlier ones are read, but for drafts, and for sequences that begin to run or to
        rest: these continue what was read.
        """

    def results(self) -> Iterator[StepResult]:
        """What has finished, in the order of submission; waits for it. Sequences that were closed meanwhile are left
        out; a step of nothing else has no result."""

    def keep(self, sequence: int, length: int, *, last: bool = False) -> None:
        """Keeps what is held of the first `length` tokens of its text in the prefix store: all of it at its `last`, and
        before that what can be kept by pieces."""

    def close(self, sequences: Sequence[int]) -> None:
        """Forgets sequences; unknown ones are no error. The last running one takes the place of one that leaves."""

    def reset(self) -> None:
        """Forgets all sequences, and what was kept of them."""

    @property
    def nbytes(self) -> int:
        """Bytes of key-value caches."""


class PlanNumbers:
    """Numbers the plans for one target, and finds each its result, whichever is asked for first."""

    def __init__(self, target: Target) -> None:
        self._target, self._numbers = target, itertools.count(1)
        self._read: dict[int, StepResult] = {}

    def submit(
        self, entries: Sequence[PlanEntry], draft: Draft | None = None, sampling: Sampling | None = None
    ) -> StepPlan:
        plan = StepPlan(next(self._numbers), entries, draft, sampling)
        self._target.submit(plan)
        return plan

    def result(self, plan: StepPlan) -> StepResult:
        """Waits for it. That of a plan before it can be asked for later."""
        if plan.step in self._read:
            return self._read.pop(plan.step)
        for result in self._target.results():
            if result.step == plan.step:
                return result
            self._read[result.step] = result
        raise RuntimeError(f"step {plan.step} has no result")
