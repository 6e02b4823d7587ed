"""What a step costs, and what a drafted one must accept to be worth it."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DrafterName
from draftd.counts import StepCounts
from draftd.engine.calibration import Calibration, _MeasuredDraft
from draftd.engine.depth.costs import Batch, CalibratedCosts, StepCosts
from draftd.engine.drafters.base import Drafter
from draftd.engine.drafters.draft_model import DraftModel
from draftd.engine.drafters.prompt_lookup import PromptLookup
from draftd.engine.limits import REST_SECONDS
from draftd.engine.observer import EngineObserver
from tests.rig import Rig, autoregressive, request, speculative
from tests.scripted import scripted_models

MODEL, LOOKUP = DRAFT_MODEL, PROMPT_LOOKUP


def test_break_even_accepted_tokens_are_step_cost_in_autoregressive_steps_minus_one() -> None:
    costs = StepCosts(CalibratedCosts({1: 0.010}))
    assert costs.break_even(Batch(1), 0.025) == pytest.approx(1.5)
    assert costs.break_even(Batch(1), 0.010) == pytest.approx(0.0)
    assert costs.break_even(Batch(1), 0.004) == 0.0  # a stall of the other kind: never less than nothing


def test_step_costs_give_no_break_even_tokens_before_first_autoregressive_measurement() -> None:
    costs = StepCosts()
    assert not costs.measured
    assert costs.break_even(Batch(1), 0.1) is None
    costs.learn(MODEL, Batch(1), 2, 0.02)
    assert not costs.measured
    costs.learn(None, Batch(1), 0, 0.02)
    assert costs.measured
    assert costs.plain(Batch(1)) == pytest.approx(0.02, rel=0.2)


def test_step_cost_of_unmeasured_batch_size_is_interpolated_or_nearest() -> None:
    costs = StepCosts(CalibratedCosts({2: 0.010, 4: 0.020}))
    assert costs.plain(Batch(3)) == pytest.approx(0.015)
    assert costs.plain(Batch(1)) == 0.010
    assert costs.plain(Batch(8)) == 0.020


def test_step_cost_follows_lasting_change_and_ignores_a_single_stall() -> None:
    costs = StepCosts(CalibratedCosts({1: 0.010}))
    costs.learn(None, Batch(1), 0, 10.0)
    assert costs.plain(Batch(1)) < 0.010 * 1.25
    for _ in range(200):
        costs.learn(None, Batch(1), 0, 0.020)
    assert costs.plain(Batch(1)) == pytest.approx(0.020, rel=0.01)


def test_drafted_step_cost_of_unmeasured_batch_is_derived_from_smaller_batch() -> None:
    verified = {(1, 1): 0.011, (1, 3): 0.013, (1, 7): 0.017}
    costs = StepCosts(
        CalibratedCosts({1: 0.010}, {LOOKUP: verified, MODEL: {(1, 1): 0.012, (1, 3): 0.016, (1, 7): 0.024}})
    )
    assert costs.by_depth(LOOKUP, Batch(2), 3)[1:] == pytest.approx([0.013, 0.015, 0.017])
    wider = 0.016 + 0.004
    assert costs.by_depth(MODEL, Batch(2), 3)[3] == pytest.approx(wider), "the draft's steps, and four positions more"
    assert costs.by_depth(LOOKUP, Batch(4), 3)[3] == pytest.approx(0.025), "beyond what was measured the line goes on"


def test_prompt_lookup_step_cost_beside_draft_model_scales_with_draft_models_slowdown() -> None:
    """Steps of prompt lookup, by which replay is priced, are not seen meanwhile."""
    prices = CalibratedCosts({1: 0.010}, {kind: {(1, 1): 0.011, (1, 4): 0.014} for kind in (LOOKUP, MODEL)})
    costs = StepCosts(prices)
    for _ in range(60):  # plain steps as ever, others 1.4 times as dear
        for _ in range(3):
            costs.learn(None, Batch(1), 0, 0.010)
        costs.learn(MODEL, Batch(1), 1, 1.4 * 0.011)
    assert costs.by_depth(LOOKUP, Batch(1), 4)[4] < 1.15 * 0.014
    assert costs.by_depth(LOOKUP, Batch(1), 4, beside=MODEL)[4] == pytest.approx(1.4 * 0.014, rel=0.1)


def test_replayed_tokens_do_not_raise_measured_cost_of_draft_depth() -> None:
    prices = CalibratedCosts(
        {1: 0.010}, {LOOKUP: {(1, 1): 0.011, (1, 2): 0.012, (1, 4): 0.014}, MODEL: {(1, 2): 0.016}}
    )
    costs, blamed = StepCosts(prices), StepCosts(prices)
    for _ in range(20):
        costs.learn(MODEL, Batch(1), 2, 0.018, replayed=2)
        blamed.learn(MODEL, Batch(1), 2, 0.018)
    assert costs.by_depth(MODEL, Batch(1), 2)[2] == pytest.approx(0.016)
    assert blamed.by_depth(MODEL, Batch(1), 2)[2] > 0.017
    assert costs.without_stall(MODEL, Batch(1), 2, 1.0, replayed=2) == pytest.approx(0.018 * 1.25)


PRICES = CalibratedCosts({1: 0.010, 4: 0.020}, {MODEL: {(1, 1): 0.012, (1, 4): 0.018, (4, 1): 0.030, (4, 4): 0.060}})


def test_drafted_step_cost_of_unmeasured_depth_is_interpolated_or_extrapolated() -> None:
    found = StepCosts(PRICES).by_depth(MODEL, Batch(1), 6)
    assert found == pytest.approx([0.010, 0.012, 0.014, 0.016, 0.018, 0.020, 0.022])


def test_deeper_step_may_cost_less_but_never_less_than_an_autoregressive_step() -> None:
    odd = CalibratedCosts({1: 0.010}, {MODEL: {(1, 1): 0.009, (1, 2): 0.015, (1, 4): 0.012}})
    found = StepCosts(odd).by_depth(MODEL, Batch(1), 5)
    assert found == pytest.approx([0.010, 0.010, 0.015, 0.0135, 0.012, 0.012])


def test_step_costs_learn_that_a_deeper_draft_is_cheaper_than_a_shallower_one() -> None:
    costs = StepCosts(CalibratedCosts({4: 0.025}, {LOOKUP: {(4, 1): 0.029, (4, 2): 0.042, (4, 4): 0.044}}))
    assert costs.depth_uncertainty(LOOKUP, Batch(4), 3) > costs.depth_uncertainty(LOOKUP, Batch(4), 2)
    for _ in range(30):
        costs.learn(LOOKUP, Batch(4), 3, 0.030)
        costs.learn(LOOKUP, Batch(4), 4, 0.044)
    found = costs.by_depth(LOOKUP, Batch(4), 4)
    assert found[3] == pytest.approx(0.030, rel=0.05)
    assert found[4] == pytest.approx(0.044, rel=0.05)
    assert found[2] > found[3]


def test_slowdown_measured_at_one_depth_raises_cost_of_untried_depths_alike() -> None:
    costs = StepCosts(PRICES)
    before = costs.by_depth(MODEL, Batch(1), 4)
    for _ in range(400):  # only depth 4, which was measured, and what it costs is seen
        costs.learn(MODEL, Batch(1), 4, 0.036)
    after = costs.by_depth(MODEL, Batch(1), 4)
    assert after[4] == pytest.approx(0.036, rel=0.02)
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    assert ratios == pytest.approx([2.0] * 5, rel=0.25)


@pytest.mark.parametrize("off", [0.7, 1.4])
def test_cost_ratio_of_drafted_steps_is_learned_from_few_autoregressive_steps(off: float) -> None:
    costs, noise = StepCosts(PRICES), random.Random(7)
    for i in range(1500):
        jitter = math.exp(noise.gauss(0, 0.08)) * (3 if noise.random() < 0.01 else 1)
        if i % 50 == 0:
            costs.learn(None, Batch(1), 0, 0.010 * jitter)
        else:
            costs.learn(MODEL, Batch(1), 2, 0.014 * off * jitter)
    found = costs.by_depth(MODEL, Batch(1), 2)
    assert found[2] / found[0] == pytest.approx(1.4 * off, rel=0.08)


def test_occasional_stalls_do_not_raise_break_even_accepted_tokens_of_drafts() -> None:
    costs, noise, found = StepCosts(PRICES), random.Random(5), []
    for i in range(2000):
        held_up = 5 if noise.random() < 0.15 else 1  # plain steps and drafted ones alike
        if i % 50 == 0:
            costs.learn(None, Batch(1), 0, 0.010 * held_up)
        seconds = 0.014 * math.exp(noise.gauss(0, 0.08)) * held_up
        costs.learn(MODEL, Batch(1), 2, seconds)
        found.append(costs.break_even(Batch(1), costs.without_stall(MODEL, Batch(1), 2, seconds)))
    assert statistics.mean(found) == pytest.approx(0.4, abs=0.08)


def test_lasting_draft_slowdown_raises_break_even_accepted_tokens() -> None:
    costs, found = StepCosts(PRICES), []
    for i in range(400):
        if i % 50 == 0:
            costs.learn(None, Batch(1), 0, 0.010)
        costs.learn(MODEL, Batch(1), 2, 0.028)
        found.append(costs.break_even(Batch(1), costs.without_stall(MODEL, Batch(1), 2, 0.028)))
    assert statistics.mean(found[100:]) == pytest.approx(1.8, rel=0.1)


def test_uncalibrated_step_costs_learn_autoregressive_and_drafted_costs_separately() -> None:
    costs = StepCosts()
    for _ in range(20):
        costs.learn(None, Batch(1), 0, 0.004)
    for _ in range(20):
        costs.learn(MODEL, Batch(1), 3, 0.012)
    assert costs.plain(Batch(1)) == pytest.approx(0.004, rel=0.3)
    assert costs.by_depth(MODEL, Batch(1), 3)[3] == pytest.approx(0.012, rel=0.15)


def test_longer_context_raises_cost_of_drafted_steps_more_than_autoregressive_steps() -> None:
    costs = StepCosts(CalibratedCosts({1: 0.010}, {MODEL: {(1, 1): 0.012}}, {0: 1e-6, 1: 5e-6}, 100))
    near, far = costs.by_depth(MODEL, Batch(1, 100), 1), costs.by_depth(MODEL, Batch(1, 1100), 1)
    assert near == pytest.approx([0.010, 0.012])
    assert far == pytest.approx([0.011, 0.017])


@pytest.fixture
def measures_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftd.engine.calibration._MEASURES_THE_REST", True)


def first(calibration: Calibration) -> CalibratedCosts:
    """What a request alone depends on; the rest is not measured."""
    calibration.begin()
    measured = None
    while measured is None:
        measured = calibration.step()
    calibration.close()
    return measured


def whole(calibration: Calibration) -> CalibratedCosts:
    found = CalibratedCosts()
    calibration.begin()
    while calibration.pending:
        if (measured := calibration.step()) is not None:
            found = found.merge(measured)
    return found


def test_calibration_measures_autoregressive_step_cost_by_batch_size(measures_the_rest: None) -> None:
    models = scripted_models(1.0, step_seconds=0.005)
    found = whole(Calibration(lambda: models.target, models.info.vocab_size, max_batch=4)).plain
    assert set(found) == {1, 2, 4}
    assert found[1] >= 0.005


def test_calibration_measures_every_draft_depth_and_frees_draft_caches(measures_the_rest: None) -> None:
    models = scripted_models(0.5, step_seconds=0.004, draft_step_seconds=0.004)
    made: list[DraftModel] = []

    def drafters() -> dict[DrafterName, Drafter]:
        made.append(DraftModel(models.draft, models.info.vocab_size))
        return {MODEL: made[-1], LOOKUP: PromptLookup()}

    found = whole(Calibration(lambda: models.target, models.info.vocab_size, drafters, 3, max_batch=2))
    assert set(found.drafted[MODEL]) == {(b, k) for b in (1, 2) for k in (1, 2, 3)}
    assert all(found.drafted[MODEL][1, k] >= found.drafted[LOOKUP][1, k] + 0.004 * k for k in (1, 2, 3))
    assert set(found.growth) == {0, 1, 2, 3}
    assert found.prefill[MODEL] > 0
    assert [draft.nbytes for draft in made] == [0, 0]


class Forwards:
    """Counts the forwards of a model whose steps take as long as is said."""

    def __init__(self, seconds: float) -> None:
        self.models = scripted_models(0.5, step_seconds=seconds)
        self.count = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.models.target, name)

    def __call__(self, *arguments: object, **options: object) -> object:
        self.count += 1
        return self.models.target(*arguments, **options)


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_first_calibration_takes_fixed_number_of_forwards_at_any_model_speed(seconds: float) -> None:
    target = Forwards(seconds)
    found = first(Calibration(lambda: target, 8, lambda: {LOOKUP: PromptLookup()}, 8, max_batch=4))
    assert set(found.plain) == {1}
    assert set(found.drafted[LOOKUP]) == {(1, 1), (1, 8)}
    assert target.count == 9


def test_calibration_repeats_promptly_after_speedup_and_rarely_during_slowdown(
    measures_the_rest: None,
) -> None:
    models, now = scripted_models(0.5), [1000.0]
    calibration = Calibration(
        lambda: models.target, 8, lambda: {LOOKUP: PromptLookup()}, 4, max_batch=2, clock=lambda: now[0]
    )
    assert not calibration.due(-1.0, idle=True), "nothing was measured that could have changed"
    first(calibration)
    now[0] += 10
    assert not calibration.due(-0.1, idle=False)
    assert not calibration.due(0.5, idle=False), "a load is over soon, or lasts"
    now[0] += 60
    assert calibration.due(0.5, idle=False)
    calibration.close()
    assert not calibration.due(-0.5, idle=False), "a noisy machine is not measured again and again"
    now[0] += 10
    assert calibration.due(-0.5, idle=False), "what was measured under a load is wrong without it"
    while (found := calibration.step()) is None:
        assert calibration.due(0.0, idle=False), "it goes on beside requests"
    assert set(found.drafted[LOOKUP]) == {(1, 1), (1, 4)}
    assert not calibration.due(0.0, idle=False), "the rest waits until there are none"
    assert not calibration.due(0.0, idle=True), "a client that has its answer may ask again at once"
    now[0] += REST_SECONDS
    assert calibration.due(0.0, idle=True)
    calibration.stop()
    assert calibration.due(0.0, idle=False), "what was stopped begins anew"


def test_calibration_of_constantly_changing_machine_repeats_ever_more_rarely() -> None:
    models, now, begun = scripted_models(0.5), [1000.0], 0
    calibration = Calibration(lambda: models.target, 8, clock=lambda: now[0])
    first(calibration)
    for _ in range(600):
        now[0] += 1
        begun += calibration.due(-0.5, idle=False)
        calibration.close()
    assert 2 <= begun <= 7


class Steps(EngineObserver):
    def __init__(self) -> None:
        self.drafted: list[StepCounts] = []

    def on_step(self, request: object, result: StepCounts, gap: float | None) -> None:
        if result.drafted:
            self.drafted.append(result)


def test_draft_break_even_and_speedup_are_reported_once_autoregressive_steps_are_timed() -> None:
    """Target 4 ms a forward, draft 2 ms: a step of three drafted tokens costs about 10 ms, 2.5 autoregressive ones."""
    models, heard = scripted_models(1.0, step_seconds=0.004, draft_step_seconds=0.002), Steps()
    rig = Rig(models, observer=heard)
    (early,) = rig.run([request([1, 2], speculative(3), max_tokens=20)])
    assert 0 < early.done.stats.counts.drafts == early.done.stats.counts.unpriced_drafts
    assert early.done.stats.counts.speedup is None, "no step without a draft was measured yet"
    heard.drafted.clear()
    rig.run([request([1, 2], autoregressive(), max_tokens=40)])
    (sink,) = rig.run([request([1, 2], speculative(3), max_tokens=60)])
    counts = sink.done.stats.counts
    assert counts.break_even_tokens == pytest.approx(sum(r.break_even or 0 for r in heard.drafted))
    assert 0.4 < counts.break_even_tokens / counts.drafts < 6  # the machine may stall in either
    assert counts.speedup == pytest.approx(
        (counts.drafts + counts.accepted) / (counts.drafts + counts.break_even_tokens)
    )


def test_draft_of_one_forward_costs_the_same_at_every_depth() -> None:
    assert [_MeasuredDraft(0.6, 4, 1).seconds_of(depth) for depth in (1, 4)] == [0.6, 0.6]
    assert [_MeasuredDraft(0.6, 3, 3).seconds_of(depth) for depth in (1, 3)] == pytest.approx([0.2, 0.6])
