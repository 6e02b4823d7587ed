"""Depth is chosen so that nobody is slower for it: against the best fixed depth, on a machine whose time is made up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from draftd.core import PROMPT_LOOKUP, DecodePlan, DecodeRequest, DrafterName, Origin, WorkloadClass
from draftd.counts import StepCounts
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import StepCosts
from draftd.engine.depth.explorer import ExplorationBudget, PlainMeasurement
from draftd.engine.limits import MOST_REPLAYED
from draftd.engine.observer import EngineObserver
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import StepMode
from tests.rig import Collected, Rig, automatic, autoregressive, request, speculative
from tests.scripted import scripted_models
from tests.simulated_machine import DRAFT, Machine, Simulation

CODE, PROSE = WorkloadClass.CODE, WorkloadClass.PROSE
MOST = 8


def flat(rows: int, width: int) -> float:
    return 1 + 0.03 * (width - 1)


def mild(rows: int, width: int) -> float:
    return 1 + 0.12 * (width - 1)


def linear(rows: int, width: int) -> float:
    return float(width)


def steep(rows: int, width: int) -> float:
    return 1 + 0.08 * (width - 1) + (1.0 if width > 7 else 0.0)


def ask(tokens: int, plan: DecodePlan | None = None, kind: WorkloadClass = CODE, prompt: int = 64) -> DecodeRequest:
    return replace(request([1] * prompt, plan or automatic(MOST), max_tokens=tokens), workload=kind)


def machine(wider: Callable[[int, int], float] = mild, *stands: float, **more: object) -> Machine:
    return Machine(wider=wider, stands={CODE: stands}, dice=random.Random(5), **more)  # type: ignore[arg-type]


def started(where: Machine, **more: object) -> Simulation:
    return Simulation(where, MOST, prices=where.prices(MOST), **more)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("stands", [0.6, 0.9])
@pytest.mark.parametrize("wider", [flat, mild, linear, steep])
def test_automatic_depth_is_as_fast_as_best_fixed_depth(
    wider: Callable[[int, int], float], stands: float, rows: int
) -> None:
    """Of 1,500 tokens a row after the first 64, whose acceptance alone scatters by some 2 %."""
    where = machine(wider, stands)
    simulation = started(where)
    simulation.run([ask(64) for _ in range(rows)])
    chosen, _ = simulation.run([ask(1500) for _ in range(rows)])
    depth, _ = where.best(rows, [stands], MOST)
    fixed, _ = started(machine(wider, stands)).run(
        [ask(1500, speculative(depth) if depth else autoregressive()) for _ in range(rows)]
    )
    assert chosen > 0.94 * fixed


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("what", "stands"),
    [("useless", 0.0), ("useless", 0.05), ("slow", 0.9), ("linear", 0.9)],
)
def test_automatic_depth_loses_almost_no_speed_to_draft_that_cannot_pay(what: str, stands: float, rows: int) -> None:
    where = machine(linear if what == "linear" else mild, stands)
    if what == "slow":
        where.step = lambda rows: 1.3 * where.plain(rows)
        where.take_in = 0.001
    simulation = started(where)
    plain = rows / where.plain(rows)
    first, _ = simulation.run([ask(64) for _ in range(rows)])
    assert first > 0.95 * plain
    then, _ = simulation.run([ask(1000) for _ in range(rows)])
    assert then > 0.97 * plain


@pytest.mark.parametrize("off", [0.5, 2.0])
def test_automatic_depth_nears_best_speed_despite_wrong_cost_calibration(off: float) -> None:
    """Drafts that look twice as dear, or half as dear, as they are beside plain steps."""
    where = machine(linear if off < 1 else flat, 0.8)
    simulation = Simulation(where, MOST, prices=where.prices(MOST, off=off))
    simulation.run([ask(3000)])
    chosen, _ = simulation.run([ask(1500)])
    _, best = where.best(1, [0.8], MOST)
    assert chosen > 0.9 * best


class Heard(EngineObserver):
    def __init__(self) -> None:
        self.steps: list[StepCounts] = []
        self.kinds: list[DrafterName | None] = []

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        self.steps.append(result)
        self.kinds.append(result.drafter)

    def depths(self) -> list[int]:
        return [r.drafted for r in self.steps]


def test_automatic_depth_resumes_drafting_soon_after_better_draft_is_loaded() -> None:
    where, heard = machine(mild, 0.0), Heard()
    simulation = started(where, observer=heard)
    simulation.run([ask(4000)])
    assert sum(heard.depths()[-1000:]) < 50
    where.stands = {CODE: [0.9]}
    simulation.add(ask(2000))
    for _ in range(20):
        simulation.scheduler.step()
    simulation.scheduler.local.drafting.put(DRAFT, type(simulation.drafter)(where))
    assert not simulation.depth.acceptance.evidence
    del heard.steps[:]
    for _ in range(40):
        simulation.scheduler.step()
    assert min(heard.depths()[-10:]) > 0


def test_automatic_depth_resumes_drafting_when_texts_become_easier() -> None:
    where, heard = machine(mild, 0.0), Heard()
    simulation = started(where, observer=heard)
    simulation.run([ask(6000)])
    where.stands = {CODE: [0.9]}
    del heard.steps[:]
    simulation.run([ask(3000)])
    assert len(heard.steps) < 1800, "well below one token a step"
    resumed = next(i for i in range(len(heard.steps)) if sum(heard.depths()[i : i + 50]) > 100)
    assert resumed < 600


def test_failed_draft_explorations_become_ever_rarer() -> None:
    heard = Heard()
    started(machine(mild, 0.0), observer=heard).run([ask(4000)])
    tried = [i for i, depth in enumerate(heard.depths()) if depth]
    late = [b - a for a, b in pairwise(tried) if a > 1000]
    assert len(tried) < 80
    assert max(late) > 100


def test_steps_of_texts_that_may_not_draft_save_no_time_for_trials() -> None:
    simulation = started(machine(mild, 0.0))
    simulation.run([ask(2000)])
    budget = simulation.depth._explorer.budget
    had = budget.seconds
    simulation.run([ask(2000, autoregressive())])
    assert budget.seconds == had


def test_exploration_budget_refuses_trials_costing_more_than_its_balance() -> None:
    budget = ExplorationBudget(share=0.01)
    budget.record_step(1.0, 0.01)
    assert budget.seconds == pytest.approx(0.02)
    for _ in range(100):
        budget.record_step(0.01, 0.01, ["this"])
    assert budget.due("this", 0.02)
    assert not budget.due("this", 0.05)
    budget.schedule_retry(["this"], paid=False)
    assert not budget.due("this", 0.02)
    budget.lose(1.0, 0.01)
    assert budget.seconds == pytest.approx(-0.05), "bounded, so that it comes back"


def test_parked_sequence_is_prefilled_into_draft_in_slices_only_once_drafting_pays() -> None:
    where = machine(mild, 0.0)
    simulation = started(where)
    simulation.run([ask(2000)])
    simulation.drafter.longest_slice = 0
    simulation.run([ask(100, prompt=8000)])  # more than is ever spent on a trial
    assert simulation.drafter.longest_slice == 0, "of a text that nobody drafts for nothing is taken in"
    where.stands = {CODE: [0.95]}
    simulation.add(ask(8000, prompt=1000))
    for _ in range(1500):
        simulation.scheduler.step()
        if simulation.drafter.held:
            break
    assert simulation.drafter.held
    assert 16 < simulation.drafter.longest_slice <= 512


def test_automatic_depth_skips_draft_prefill_for_answers_too_short_to_repay_it() -> None:
    """Eight clients whose answers end by themselves, long before what they may have written. With a draft decoding is a
    tenth faster, but that takes nearly two steps to take in a prompt: all in all it is a fifth slower."""
    ends = 40

    def rate(plan: DecodePlan) -> float:
        where = machine(mild, 0.5, take_in=0.0006, ends=ends)
        simulation = started(where)
        running, done, began = [simulation.add(ask(1000, plan)) for _ in range(8)], 0, 0
        while done < 400:
            simulation.scheduler.step()
            for i, sink in enumerate(running):
                if sink.outcome is not None:
                    running[i] = simulation.add(ask(1000, plan))
                    done += 1
                    began = where.now if done == 100 else began
        return 300 * ends / (where.now - began)

    plain = rate(autoregressive())
    assert rate(speculative(1)) < 0.82 * plain
    assert rate(automatic(MOST)) > 0.9 * plain


def test_automatic_depth_stays_within_plan_and_reports_capped_steps() -> None:
    heard = Heard()
    started(machine(flat, 0.95), observer=heard).run([ask(400, automatic(2)), ask(400, automatic(3))])
    assert max(heard.depths()) == 3
    drafted = [r for r in heard.steps if r.drafted]
    assert sum(r.capped for r in drafted) > 0.8 * len(drafted)
    assert not any(r.parked for r in drafted)


def test_lowered_running_sequence_drafts_no_deeper_than_new_bound() -> None:
    heard = Heard()
    simulation = started(machine(flat, 0.95), observer=heard)
    sink = simulation.add(ask(400))
    for _ in range(20):
        simulation.scheduler.step()
    simulation.scheduler.lower(2, [DRAFT], "hot")
    del heard.steps[:]
    while not simulation.scheduler.idle:
        simulation.scheduler.step()
    assert max(heard.depths()) == 2
    assert sink.done.lowered == "hot"


def test_steps_not_drafting_because_it_does_not_pay_are_counted_as_parked() -> None:
    heard = Heard()
    started(machine(linear, 0.9), observer=heard).run([ask(100)])
    plain = [r for r in heard.steps[1:-1] if not r.drafted]  # the first is the prompt's, the last may not draft
    assert len(plain) > 90
    assert sum(r.parked for r in plain) > 90
    assert not any(r.capped for r in plain)


def test_automatic_sequence_drafts_along_with_fixed_depth_sequence_in_same_batch() -> None:
    where = machine(linear, 0.9)
    control = DepthControl(StepCosts(where.prices(MOST)), MOST, measurement=PlainMeasurement(1e9))
    simulation = started(where, depth=control)
    sink, other = simulation.add(ask(60, speculative(3))), simulation.add(ask(200))
    while sink.outcome is None:
        simulation.scheduler.step()
    counts = sink.done.stats.counts
    assert counts.drafted_per_position[0] - counts.drafted_per_position[1] <= 1  # the last may have no room for more
    assert len(counts.drafted_per_position) == 3
    assert counts.steps - counts.drafts <= 2  # the first token, and the last
    assert counts.parked_steps == 0
    while other.outcome is None:
        simulation.scheduler.step()
    along = other.done.stats.counts
    assert along.drafts >= 0.7 * counts.drafts
    assert len(along.drafted_per_position) == 3
    assert along.parked_steps > 50, "alone it does not pay"


def test_probe_requests_do_not_feed_acceptance_estimates() -> None:
    simulation = started(machine(mild, 0.9))
    simulation.run([replace(ask(100, speculative(3)), origin=Origin.PROBE)])
    assert not simulation.depth.acceptance.evidence
    simulation.run([ask(100, speculative(3))])
    assert simulation.depth.acceptance.evidence


def test_depth_control_estimates_acceptance_separately_for_each_workload_class() -> None:
    where, heard = machine(mild, 0.95), Heard()
    where.stands = {CODE: [0.95], PROSE: [0.05]}
    simulation = started(where, observer=heard)
    simulation.run([ask(600), ask(600, kind=PROSE)])
    del heard.steps[:]
    simulation.run([ask(300, kind=PROSE)])
    assert sum(heard.depths()) < 60
    del heard.steps[:]
    simulation.run([ask(300)])
    assert sum(heard.depths()) > 200


def test_greedy_text_is_the_same_with_any_automatic_depth_plan() -> None:
    models = scripted_models(0.7)
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6], [5, 3]]
    alone = [Rig(models).run([request(p, autoregressive(), max_tokens=80)])[0].tokens for p in prompts]
    lookup = PROMPT_LOOKUP
    plans = [automatic(6), automatic(4, DRAFT, lookup), automatic(4, lookup)]
    sinks = Rig(models).run([request(p, plan, max_tokens=80) for p, plan in zip(prompts, plans, strict=True)])
    assert [sink.tokens for sink in sinks] == alone


def test_prompt_lookup_replaces_bad_draft_on_repetitive_text_and_is_counted_separately() -> None:
    """A target that says the same four tokens again and again, a draft that is always wrong."""
    from draftd.engine.drafters.prompt_lookup import PromptLookup
    from tests.simulated_machine import SimulatedTarget

    where, heard = machine(mild, 0.0), Heard()

    class Echo(SimulatedTarget):
        def accepts(self, sequence: int) -> Sequence[float]:
            kind = simulation.scheduler.local._running[0].latest_drafter
            return [0.95] if kind == PROMPT_LOOKUP else super().accepts(sequence)

    simulation = started(where, observer=heard, target=Echo)
    simulation.scheduler.local.drafting.drafters[PROMPT_LOOKUP] = PromptLookup()
    _, (sink,) = simulation.run([ask(400, automatic(4, DRAFT, PROMPT_LOOKUP))])
    by = {
        kind: sum(r.drafted for r, k in zip(heard.steps, heard.kinds, strict=True) if k == kind)
        for kind in (DRAFT, PROMPT_LOOKUP)
    }
    assert by[PROMPT_LOOKUP] > 250, "of 400 tokens: in nearly every step, not in every other"
    assert by[DRAFT] < 50
    assert sink.done.stats.counts.drafted == sum(by.values())


def test_step_that_only_replays_tokens_does_not_start_the_next_step_ahead() -> None:
    """Or the step after it, which may draft again, would draft nothing either."""
    simulation = started(machine(flat, 0.9))
    simulation.run([ask(64)])
    sequence = DecodeSequence.of(ask(64), Collected(), 4096)
    simulation.drafter.held[id(sequence)] = len(sequence.tokens) - 1

    def mode(replays: int) -> StepMode:
        sequence.replays = replays
        drafters = simulation.scheduler.local.drafting.drafters
        return simulation.depth.plan([sequence], drafters, started=False, may_run_ahead=True).mode

    assert [mode(0), mode(MOST_REPLAYED + 1)] == [StepMode.SPECULATIVE, StepMode.PLAIN]
