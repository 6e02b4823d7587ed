"""The model of the gain from several ranks agrees with its parts."""

from __future__ import annotations

import pytest

from benchmarks.ranks import M4_PRO
from benchmarks.ranks_model import Drafts, Link, Shape, forward, longest_collective, step

SHAPE = Shape("8B", 36, 4096, 151_936, 8.2e9)
AT_ONCE = Link("none", 0.0, 1e18, 0.0)


def test_rank_cost_model_without_network_cost_halves_weight_reads_except_output_head() -> None:
    one, two = (forward(SHAPE, M4_PRO, ranks, AT_ONCE) for ranks in (1, 2))
    assert two == pytest.approx((SHAPE.whole + (SHAPE.bytes - SHAPE.whole) / 2) / M4_PRO.reads)
    assert one / 2 < two < one


def test_rank_cost_model_two_ranks_are_as_fast_as_one_at_break_even_collective_time() -> None:
    exact = Link("exact", 0.0, 1e18, longest_collective(SHAPE, M4_PRO, 2))
    assert forward(SHAPE, M4_PRO, 2, exact) == pytest.approx(forward(SHAPE, M4_PRO, 1, exact))


def test_rank_cost_model_speculative_gain_grows_with_network_latency() -> None:
    slow, drafts = Link("slow", 0.5e-3, 1e9, 40e-6), Drafts()

    def gain(link: Link) -> float:
        return drafts.emitted * forward(SHAPE, M4_PRO, 2, link) / step(SHAPE, M4_PRO, 2, link, drafts)

    assert gain(slow) > gain(AT_ONCE)
