"""The depths with the most expected tokens a second, against all that there are."""

from __future__ import annotations

import random
from itertools import product

import pytest

from draftd.core import DRAFT_MODEL
from draftd.engine.depth.estimate import Best, Candidate, Prospect, best
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


def candidate(model: list[float], lookup: list[float] | None = None, ready: bool = True, most: int = 5) -> Candidate:
    row = DecodeSequence.of(request([1], automatic(most)), Collected(), 100)
    return Candidate(0, row, most, DRAFT, None, ready, model, lookup or [1.0])


def prospect(*candidates: Candidate, beside: float = 0.0, least: int = 0, least_steps: int = 0) -> Prospect:
    return Prospect(list(candidates), beside, least, least_steps, STEPPED, VERIFIED)


@pytest.mark.parametrize(
    ("least", "least_steps", "depth", "lookup", "seconds"),
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
    least: int, least_steps: int, depth: int, lookup: int, seconds: float
) -> None:
    found = prospect(candidate(expected(0.9)), least=least, least_steps=least_steps)
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
    batch = prospect(*some, beside=dice.choice([0.0, 1.0, 2.5]), least=dice.choice([0, 0, 4]))
    found = best(batch)

    def rate(depth: int, lookup: int) -> float:
        tokens = batch.beside
        for c in batch.candidates:
            model = c.model[min(depth, c.most)] if c.ready else 1.0
            tokens += max(model, c.lookup[min(lookup, len(c.lookup) - 1)])
        return tokens / batch.seconds(depth, lookup)

    assert found.rate == pytest.approx(max(rate(*one) for one in product(range(6), range(6))))
    assert found.rate == pytest.approx(rate(found.depth, found.lookup))


def test_a_row_that_its_drafter_does_not_know_counts_only_where_it_is_asked_for() -> None:
    unknown = prospect(candidate(expected(0.9, 0.9, 0.9, 0.9, 0.9, 0.9), ready=False))
    assert best(unknown) == Best(0, 0, 1.0, 1.0)
    assert best(unknown, unready=True).depth > 0
