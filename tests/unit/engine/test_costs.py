"""What a round costs, and what a drafted one must accept to be worth it."""

from __future__ import annotations

import pytest

from draftd.core import RoundResult
from draftd.engine.calibration import measure
from draftd.engine.costs import RoundCosts
from draftd.engine.observer import NullObserver
from draftd.engine.scripted import scripted_models
from tests.rig import Rig, autoregressive, request, speculative


def test_break_even_is_the_rounds_cost_in_autoregressive_rounds_less_one() -> None:
    costs = RoundCosts({1: 0.010})
    assert costs.break_even(1, 0.025) == pytest.approx(1.5)
    assert costs.break_even(1, 0.010) == 0.0
    assert costs.break_even(1, 0.004) == 0.0  # a stall of the other kind: never less than nothing


def test_nothing_is_claimed_before_anything_was_measured() -> None:
    assert RoundCosts().autoregressive(1) is None
    assert RoundCosts().break_even(1, 0.1) == 0.0


def test_sizes_between_two_that_were_measured_lie_on_the_line_and_those_beyond_take_the_nearest() -> None:
    costs = RoundCosts({2: 0.010, 4: 0.020})
    assert costs.autoregressive(3) == pytest.approx(0.015)
    assert costs.autoregressive(1) == 0.010
    assert costs.autoregressive(8) == 0.020


def test_a_new_price_is_learnt_and_a_stall_is_not_one() -> None:
    costs = RoundCosts({1: 0.010})
    costs.learn(1, 10.0)
    assert costs.autoregressive(1) == pytest.approx(0.010 * 1.025)
    for _ in range(200):
        costs.learn(1, 0.020)
    assert costs.autoregressive(1) == pytest.approx(0.020, rel=0.01)


def test_calibration_measures_the_targets_own_rounds() -> None:
    models = scripted_models(1.0, step_seconds=0.005)
    found = measure(models.target, models.info.vocab_size, 4, 60.0)
    assert set(found) == {1, 2, 4}
    assert all(0.005 <= seconds < 0.05 for seconds in found.values())


def test_calibration_stops_when_its_time_is_up() -> None:
    models = scripted_models(1.0, step_seconds=0.002)
    assert set(measure(models.target, models.info.vocab_size, 64, 0.0)) == {1}


class Rounds(NullObserver):
    def __init__(self) -> None:
        self.drafted: list[RoundResult] = []

    def on_round(self, request: object, result: RoundResult, gap: float | None) -> None:
        if result.drafted:
            self.drafted.append(result)


def test_a_round_is_priced_by_autoregressive_ones() -> None:
    """Target 4 ms a forward, draft 2 ms: a round of three drafted tokens costs about 10 ms, 2.5 autoregressive ones."""
    models, heard = scripted_models(1.0, step_seconds=0.004, draft_step_seconds=0.002), Rounds()
    rig = Rig(models, observer=heard)
    rig.run([request([1, 2], autoregressive(), max_tokens=40)])
    (sink,) = rig.run([request([1, 2], speculative(3), max_tokens=60)])
    counts = sink.done.stats.counts
    assert counts.break_even_tokens == pytest.approx(sum(r.break_even for r in heard.drafted))
    assert 0.4 < counts.break_even_tokens / counts.drafts < 6  # the machine may stall in either
    assert counts.speedup == pytest.approx(
        (counts.drafts + counts.accepted) / (counts.drafts + counts.break_even_tokens)
    )
    assert counts.break_even_acceptance == pytest.approx(counts.break_even_tokens / counts.drafted)
