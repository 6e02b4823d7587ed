"""What a client is told of drafting is what was learnt, and the depth that follows from it."""

from __future__ import annotations

import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, WorkloadClass
from draftd.engine.depth.costs import DEEPEST, Prices
from draftd.engine.depth.saved import Learnt
from draftd.errors import NotServing
from draftd.fronts.grpc.depth import best, told
from draftd.protocol import WORKLOADS

DRAFT, LOOKUP = DRAFT_MODEL, PROMPT_LOOKUP
PRICES = Prices(
    {1: 0.010, 4: 0.020},
    {
        DRAFT: {(1, 1): 0.012, (1, 4): 0.015, (4, 1): 0.03, (4, 4): 0.06},
        LOOKUP: {(1, 1): 0.011, (1, 4): 0.012, (4, 1): 0.025, (4, 4): 0.04},
    },
    {},
    64,
)
MANY = (400.0,) * DEEPEST


def stood(share: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return MANY, tuple(share * tried for tried in MANY)


LEARNT = Learnt(
    PRICES,
    {},
    {
        (DRAFT, False, False, None): stood(0.5),
        (DRAFT, False, False, WorkloadClass.CODE): stood(0.9),
        (DRAFT, False, False, WorkloadClass.PROSE): stood(0.02),
        (LOOKUP, True, True, WorkloadClass.UNSPECIFIED): stood(0.6),
    },
)


def test_prices_are_told_beside_a_plain_round() -> None:
    found = told(LEARNT, 4)
    assert [(one.drafter, one.batch) for one in found.costs] == [
        (DRAFT, 1), (DRAFT, 4), (LOOKUP, 1), (LOOKUP, 4),
    ]  # fmt: skip
    first, together = found.costs[0], found.costs[1]
    assert first.plain.ToNanoseconds() == pytest.approx(10_000_000)
    assert list(first.ratios) == pytest.approx([1.2, 1.3, 1.4, 1.5])
    assert list(together.ratios) == pytest.approx([1.5, 2.0, 2.5, 3.0])


def test_each_kind_of_text_has_its_acceptance_and_the_depth_that_follows() -> None:
    found = {(one.drafter, WORKLOADS[one.workload]): one for one in told(LEARNT, 4).yields}
    assert set(found) == {
        (DRAFT, WorkloadClass.CODE), (DRAFT, WorkloadClass.PROSE), (LOOKUP, WorkloadClass.UNSPECIFIED),
    }  # fmt: skip
    code, prose = found[DRAFT, WorkloadClass.CODE], found[DRAFT, WorkloadClass.PROSE]
    assert list(code.acceptance) == pytest.approx([0.9] * 4, abs=0.02)
    assert list(code.tried) == [400.0] * 4
    assert (code.depth, prose.depth) == (4, 0)
    assert (code.sampled, code.seeded) == (False, False)
    sampled = found[LOOKUP, WorkloadClass.UNSPECIFIED]
    assert (sampled.sampled, sampled.seeded) == (True, True)


def test_no_deeper_than_a_round_may_draft() -> None:
    found = told(LEARNT, 2)
    assert {len(one.ratios) for one in found.costs} == {2}
    assert {len(one.acceptance) for one in found.yields} == {2}
    assert max(one.depth for one in found.yields) == 2


def test_before_anything_is_known_it_says_so() -> None:
    with pytest.raises(NotServing, match="nothing is known of drafting"):
        told(None, 4)


@pytest.mark.parametrize(
    ("rates", "ratios", "depth"),
    [
        ([0.9, 0.9, 0.9], [1.1, 1.2, 1.3], 3),
        ([0.9, 0.1, 0.1], [1.1, 1.3, 1.5], 1),
        ([0.2, 0.2], [1.3, 1.6], 0),
        ([0.5, 0.5], [1.5, 1.75], 0),  # just as fast: a round without a draft is surer
        ([], [], 0),
    ],
)
def test_the_depth_is_the_one_with_the_most_tokens_over_its_time(
    rates: list[float], ratios: list[float], depth: int
) -> None:
    assert best(rates, ratios) == depth
