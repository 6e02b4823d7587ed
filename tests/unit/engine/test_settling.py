"""What was measured at a busy moment is right again soon after: on a machine whose time is made up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from draftd.core import PROMPT_LOOKUP, DecodeRequest, WorkloadClass
from draftd.counts import StepCounts
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import Batch, CalibratedCosts, StepCosts
from draftd.engine.observer import EngineObserver
from tests.rig import automatic, request
from tests.simulated_machine import Machine, SimulatedLookup, Simulation

MOST = 8
CODE = WorkloadClass.CODE
LOAD, DEARER = 2.5, 2.2  # what a load does to a plain step, and to a draft beside it


class Depths(EngineObserver):
    """The tokens that a step drafted, once for each token that it gave."""

    def __init__(self) -> None:
        self.by_token: list[int] = []

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        self.by_token += [result.drafted] * result.emitted

    def mean(self, start: int) -> float:
        return sum(self.by_token[start : start + 32]) / 32


def settles(depths: Depths, wanted: float) -> int:
    """Tokens until the mean depth over 32 of them is within a fifth of the wanted one; many where it never is."""
    ends = (end for end in range(32, len(depths.by_token)) if depths.mean(end - 32) >= 0.8 * wanted)
    return next(ends, 1 << 20)


def machine(seed: int) -> Machine:
    stands = {CODE: [0.95]}
    return Machine(wider=lambda rows, width: 1 + 0.08 * (width - 1), stands=stands, dice=random.Random(seed))


def simulated(where: Machine, depth: DepthControl, heard: Depths) -> Simulation:
    return Simulation(where, MOST, depth=depth, observer=heard, drafters={PROMPT_LOOKUP: SimulatedLookup(where)})


def ask(tokens: int) -> DecodeRequest:
    return replace(request([1] * 64, automatic(MOST, PROMPT_LOOKUP), max_tokens=tokens), workload=CODE)


def fresh(seed: int) -> float:
    """The mean depth that a start on a quiet machine comes to."""
    where, heard = machine(seed), Depths()
    simulated(where, DepthControl(StepCosts(where.prices(MOST)), MOST), heard).run([ask(2000)])
    return sum(heard.by_token[-1000:]) / 1000


def busy(prices: CalibratedCosts) -> CalibratedCosts:
    """What a calibration finds under a load: two points, and not off by one factor."""
    drafted = {key: LOAD * DEARER * prices.drafted[PROMPT_LOOKUP][key] for key in ((1, 1), (1, MOST))}
    return CalibratedCosts({1: LOAD * prices.plain[1]}, {PROMPT_LOOKUP: drafted})


@pytest.mark.parametrize("seed", range(5))
def test_costs_measured_under_load_settle_within_64_tokens_after_load_ends(seed: int) -> None:
    where, heard = machine(seed), Depths()
    simulation = simulated(where, DepthControl(StepCosts(busy(where.prices(MOST))), MOST), heard)
    where.slowdown = LOAD
    simulation.run([ask(200)])
    where.slowdown, heard.by_token = 1.0, []
    simulation.run([ask(400)])
    assert settles(heard, fresh(seed)) <= 64


@pytest.mark.parametrize("seed", range(5))
def test_restart_with_learned_costs_reaches_depth_of_fresh_start_within_64_tokens(seed: int) -> None:
    where = machine(seed)
    before = simulated(where, DepthControl(StepCosts(busy(where.prices(MOST))), MOST), Depths())
    before.run([ask(200)])
    learnt, prices, heard = before.depth.learnt(), where.prices(MOST), Depths()
    ends = {key: prices.drafted[PROMPT_LOOKUP][key] for key in ((1, 1), (1, MOST))}
    costs = StepCosts(learnt.prices)
    costs.calibrate(CalibratedCosts({1: prices.plain[1]}, {PROMPT_LOOKUP: ends}))
    again = DepthControl(costs, MOST, acceptance=learnt.rates(MOST + 1))
    simulated(where, again, heard).run([ask(400)])
    assert settles(heard, fresh(seed)) <= 64


@pytest.mark.parametrize("off", [0.6, 1.6])
@pytest.mark.parametrize("drafting", [False, True])
def test_wrong_step_cost_is_corrected_to_within_a_quarter_after_64_steps(off: float, drafting: bool) -> None:
    where = machine(1)
    costs = StepCosts(where.prices(MOST))
    truth: Sequence[float] = [where.round(1, depth) for depth in range(MOST + 1)]
    for step in range(64):
        if not drafting or step % 16 < 3:
            costs.learn(None, Batch(1), 0, truth[0] * (1.0 if drafting else off))
        if drafting:
            costs.learn(PROMPT_LOOKUP, Batch(1), 4, off * truth[4])
    cost = costs.by_depth(PROMPT_LOOKUP, Batch(1), 4)[4] if drafting else costs.plain(Batch(1))
    wrong = cost / (off * truth[4 if drafting else 0])
    assert 0.8 < wrong < 1.25
