"""The seam to a target: step plans in, step results out. A target is one device, or a group of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from draftd.core import SamplingParams
from draftd.engine.step import PlanEntry, StepPlan, StepResult

if TYPE_CHECKING:  # the daemon is assembled without MLX
    from draftd.engine.drafters.base import Draft
    from draftd.engine.sampling.transforms import Sampling


@dataclass(frozen=True, slots=True)
class SequenceOptions:
    """The options of a sequence, given to a target once. `prompt`: tokens before the answer; positions of seeded noise
    count from there. `length`: tokens to take in before decoding. `prefix`: the first `length` tokens if the text uses
    the prefix cache, else empty; at most `reusable` of them are taken from there. `ends`: tokens that end the answer,
    not chosen before `min_tokens`. `logprobs`, `prompt_logprobs`: how many of the likeliest tokens are reported with
    each chosen or prompt token; None for none. `grammar`: the answer's; empty without one."""

    prompt: int
    length: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prefix: tuple[int, ...] = ()
    reusable: int | None = None
    ends: tuple[int, ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""


class Target(Protocol):
    """Keeps each sequence's ids, sampling state and caches. Engine thread only. After any error no sequence can be
    trusted until `reset`, except that a plan of prefill entries fails alone."""

    def open(self, sequence: int, options: SequenceOptions) -> int | None:
        """Begins a sequence. Returns how many of its first tokens the prefix cache has, which plans need not take in;
        None if it was not searched."""

    def cached_prefix(self, tokens: Sequence[int]) -> int | None:
        """Returns how many of the first tokens the prefix cache has now; None if it keeps nothing."""

    def fork(self, sequence: int, length: int) -> None:
        """Keeps the first `length` tokens of a text in the prefix cache as soon as they are taken in, because other
        sequences wait for them. Does nothing if the text ends there."""

    def submit(self, plan: StepPlan) -> None:
        """Begins a step. Running sequences that the plan does not name rest: their caches stay until a plan names them
        again.

        Entries that continue have the order of the previous result; sequences that begin to run, after prefill or a
        rest, follow them. A plan needs the results of all earlier plans if it has drafts, or if sequences begin to run
        or to rest with it; otherwise it may be submitted before."""

    def results(self) -> Iterator[StepResult]:
        """Yields finished steps in the order of submission, and waits for them. Closed sequences are left out; a step
        with only those has no result."""

    def keep(self, sequence: int, length: int, *, last: bool = False) -> None:
        """Keeps the first `length` tokens of the text in the prefix cache. `last`: the sequence ends. Until then, only
        caches that can be stored piece by piece are kept."""

    def close(self, sequences: Sequence[int]) -> None:
        """Forgets sequences; unknown ones are no error. The last running sequence takes the place of one that
        leaves."""

    def reset(self) -> None:
        """Forgets all sequences and all kept prefixes."""

    @property
    def slice_width(self) -> int:
        """A prompt's plan ends at a multiple of this, or with the prompt; 1: anywhere."""

    @property
    def nbytes(self) -> int:
        """Bytes of key-value caches."""


class PlanNumbers:
    """Numbers the plans for one target and matches each with its result, in any order."""

    def __init__(self, target: Target) -> None:
        self.target, self._numbers = target, itertools.count(1)
        self._read: dict[int, StepResult] = {}

    def submit(
        self, entries: Sequence[PlanEntry], draft: Draft | None = None, sampling: Sampling | None = None
    ) -> StepPlan:
        plan = StepPlan(next(self._numbers), entries, draft, sampling)
        self.target.submit(plan)
        return plan

    def result(self, plan: StepPlan) -> StepResult:
        """Waits for the plan's result. Results of earlier plans can still be asked for later."""
        if plan.step in self._read:
            return self._read.pop(plan.step)
        for result in self.target.results():
            if result.step == plan.step:
                return result
            self._read[result.step] = result
        raise RuntimeError(f"step {plan.step} was not executed, so it has no result")
