"""The depths with the most expected tokens a second, against all that there are."""

from __future__ import annotations

import random
from itertools import product

import pytest

from draftd.core import DRAFT_MODEL
from draftd.engine.depth.costs import Best, Candidate, Estimate
from draftd.engine.sequence import DecodeSequence
from tests.rig import Collected, automatic, request

DRAFT = DRAFT_MODEL
VERIFIED = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]  # seconds by tokens verified beyond the first
STEPPED = [1.0, 1.4, 1.8, 2.2, 2.6, 3.0, 3.4]  # and as many steps of a draft before it


def expected(*stands: float) -> list[float]:
    out, reach = [1.0], 1.0
    for rate in stands:
        reach *= rate
        out.append(out[-1] + reach)
    return out


def candidate(draft: list[float], lookup: list[float] | None = None, ready: bool = True, most: int = 5) -> Candidate:
    sequence = DecodeSequence.of(request([1], automatic(most)), Collected(), 100)
    return Candidate(0, sequence, most, DRAFT, ready=ready, draft=draft, lookup=lookup or [1.0])


def estimate(*candidates: Candidate, others: float = 0.0, fixed_depth: int = 0, fixed_steps: int = 0) -> Estimate:
    size = len(candidates)
    return Estimate(size, False, list(candidates), others, fixed_depth, fixed_steps, STEPPED, VERIFIED)


@pytest.mark.parametrize(
    ("fixed_depth", "fixed_steps", "depth", "lookup", "seconds"),
    [
        (0, 0, 0, 0, 1.0),
        (0, 0, 3, 0, 2.2),
        (0, 0, 0, 3, 1.3),
        (0, 0, 2, 4, 1.4 + (2.6 - 1.4) * 2 / 4),  # two steps, and four to verify
        (5, 0, 0, 0, 1.5),  # a row of fixed depth looks five up: verified with it, and no step
        (5, 0, 2, 0, 1.5 + (3.0 - 1.5) * 2 / 5),
        (5, 2, 0, 0, 1.5 + (3.0 - 1.5) * 2 / 5),  # another one drafts two with weights
        (5, 2, 1, 0, 1.5 + (3.0 - 1.5) * 2 / 5),  # drafting along is free as far as that
        (3, 3, 5, 0, 3.0),
    ],
)
def test_a_round_takes_its_deepest_rows_steps_and_its_widest_rows_verification(
    fixed_depth: int, fixed_steps: int, depth: int, lookup: int, seconds: float
) -> None:
    found = estimate(candidate(expected(0.9)), fixed_depth=fixed_depth, fixed_steps=fixed_steps)
    assert found.seconds(depth, lookup) == pytest.approx(seconds)


@pytest.mark.parametrize("seed", range(40))
def test_the_best_is_the_best_of_all(seed: int) -> None:
    dice = random.Random(seed)

    def stands() -> list[float]:
        return expected(*(dice.random() for _ in range(6)))

    some = [
        candidate(stands(), stands()[: dice.randrange(1, 6)], dice.random() < 0.8, dice.randrange(1, 6))
        for _ in range(dice.randrange(1, 5))
    ]
    batch = estimate(*some, others=dice.choice([0.0, 1.0, 2.5]), fixed_depth=dice.choice([0, 0, 4]))
    found = batch.best()

    def rate(depth: int, lookup: int) -> float:
        tokens = batch.others
        for c in batch.candidates:
            draft = c.draft[min(depth, c.most)] if c.ready else 1.0
            tokens += max(draft, c.lookup[min(lookup, len(c.lookup) - 1)])
        return tokens / batch.seconds(depth, lookup)

    assert found.rate == pytest.approx(max(rate(*one) for one in product(range(6), range(6))))
    assert found.rate == pytest.approx(rate(found.depth, found.lookup))


def test_a_text_unknown_to_its_drafter_counts_only_if_asked() -> None:
    unknown = estimate(candidate(expected(0.9, 0.9, 0.9, 0.9, 0.9, 0.9), ready=False))
    assert unknown.best() == Best(0, 0, 1.0, 1.0)
    assert unknown.best(if_ready=True).depth > 0
