"""One probe: the frozen prompts at a rung, beside what the target says to them alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from draftd.canaries.prompts import FrozenPrompt
from draftd.control.asking import Asker, Unanswered
from draftd.control.bounds import Bounds
from draftd.core import DraftCounts, DrafterKind, Origin
from draftd.policy import identity
from draftd.policy.drift import Baseline, Sample
from draftd.policy.ladder import Rung
from draftd.policy.probe import ProbeSettings, judge
from draftd.policy.reports import Divergence, ProbeReport, Verdict

Borrow = Callable[[DrafterKind | None], AbstractContextManager[object]]
"""Holds a drafter's weights within the block. Entering it may take a while, and raises where they cannot be had."""


@contextmanager
def lent(borrow: Borrow, drafter: DrafterKind | None) -> Iterator[None]:
    """`borrow`, but raises Unanswered where the weights cannot be had."""
    with ExitStack() as stack:
        try:
            stack.enter_context(borrow(drafter))
        except Exception as error:
            why = str(error) or type(error).__name__
            raise Unanswered(f"the weights of {drafter} cannot be had: {why}") from error
        yield


@dataclass(frozen=True, slots=True)
class Tried:
    """What one prompt showed."""

    id: str
    counts: DraftCounts
    divergence: Divergence | None

    @property
    def sample(self) -> Sample:
        return Sample(self.counts.accepted, self.counts.rollbacks)


@dataclass(frozen=True, slots=True)
class Tries:
    """What all of them showed, and why there are no more of them: empty where all were tried."""

    made: tuple[Tried, ...]
    ended: str = ""


def tries(rung: Rung, prompts: Sequence[FrozenPrompt], asker: Asker, bounds: Bounds, borrow: Borrow) -> Tries:
    """The autoregressive answers come first: weights are held only for the others. Raises Unanswered."""
    for prompt in prompts:
        if ended := bounds.reached():
            return Tries((), ended)
        asker.reference(prompt, Origin.PROBE)
    made: list[Tried] = []
    with lent(borrow, rung.drafter):
        for prompt in prompts:
            if ended := bounds.reached():
                return Tries(tuple(made), ended)
            answer = asker.drafted(prompt, rung, Origin.PROBE)
            divergence = asker.divergence(asker.reference(prompt, Origin.PROBE), answer)
            made.append(Tried(prompt.id, answer.counts, divergence))
    return Tries(tuple(made))


def judged(
    rung: Rung, found: Tries, baseline: Baseline | None, tolerated: float | None, settings: ProbeSettings
) -> ProbeReport:
    """The report, but for its seconds. What ended early is judged by what there is, where that is enough."""
    assert rung.drafter is not None, rung
    if not found.made:
        return ProbeReport(rung, Verdict.FAILED, found.ended or "there is nothing to try")
    drafts = sum(one.counts.drafts for one in found.made)
    judgement = judge(
        [one.sample for one in found.made],
        drafts=drafts,
        break_even_tokens=drafts * _break_even(found.made),
        drafter=rung.drafter,
        baseline=baseline,
        settings=settings,
    )
    verdict, reason = judgement.verdict, judgement.reason
    wrong = [one for one in found.made if one.divergence is not None and identity.broken(one.divergence, tolerated)]
    if wrong and wrong[0].divergence is not None:
        verdict, reason = Verdict.BAD, f"{wrong[0].id} {identity.described(wrong[0].divergence)}; {reason}"
    elif found.ended:
        reason = f"{reason}; {found.ended}"
    return ProbeReport(rung, verdict, reason, judgement.acceptance, judgement.speedup)


def _break_even(made: Sequence[Tried]) -> float:
    """Accepted tokens that pay for a draft: the median over prompts, for a stall in one of them is no price."""
    prices = [one.counts.break_even_tokens / one.counts.drafts for one in made if one.counts.drafts]
    return statistics.median(prices) if prices else 0.0


def learnt(found: Tries) -> Baseline | None:
    """What the same prompts are to be compared with later. None where they showed nothing."""
    samples = [one.sample for one in found.made if one.sample.reached]
    if found.ended or len(samples) < 2:
        return None
    reached = sum(sample.reached for sample in samples)
    mean = sum(sample.accepted for sample in samples) / reached
    between = sum((sample.acceptance - mean) ** 2 for sample in samples) / (len(samples) - 1)
    counting = sum(sample.acceptance * (1 - sample.acceptance) / sample.reached for sample in samples) / len(samples)
    return Baseline(mean, math.sqrt(max(0.0, between - counting)))
