"""The order of a sweep: everything once, the arms interleaved, and the same again when it is gone on with."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.acceptance.options import SweepOptions
from draftd.acceptance.session import token_seed
from draftd.acceptance.sweep.plan import SweepPlan, pending, schedule
from draftd.acceptance.ticks import Arm
from draftd.client.prompts import from_texts
from draftd.core import PROMPT_LOOKUP

ARMS = [
    Arm(0, None), Arm(2), Arm(4), Arm(4, PROMPT_LOOKUP), Arm(0, None, 0.8), Arm(4, temperature=0.8),
    Arm(0, None, concurrency=2), Arm(4, concurrency=2), Arm(0, None, concurrency=3), Arm(4, concurrency=3),
]  # fmt: skip

plans = st.builds(
    lambda arms, prompts, repetitions, seed: SweepPlan(
        SweepOptions(repetitions=repetitions, seed=seed),
        tuple(arms),
        tuple(from_texts([str(n) for n in range(prompts)])),
        {},
        {},
    ),
    st.lists(st.sampled_from(ARMS), unique=True, min_size=1),
    st.integers(3, 9),
    st.integers(1, 3),
    st.integers(0, 99),
)


@given(plans)
def test_every_request_stands_in_it_once(plan: SweepPlan) -> None:
    counts = Counter(key for step in schedule(plan) for key in step.keys)
    assert set(counts.values()) <= {1}
    for arm in plan.arms:
        for repetition in range(1, plan.options.repetitions + 1):
            asked = [key for key in counts if key[0] == arm.id and key[2] == repetition]
            assert len(asked) == len(plan.prompts) // arm.concurrency * arm.concurrency
    assert all(len(step.prompts) == step.arm.concurrency for step in schedule(plan))


@given(plans)
def test_all_arms_of_a_prompt_stand_side_by_side(plan: SweepPlan) -> None:
    """What drifts over minutes meets all of them alike."""
    blocks = groupby(schedule(plan), key=lambda step: (step.repetition, step.arm.concurrency, step.prompts))
    for (_, together, _), steps in blocks:
        arms = [step.arm for step in steps]
        assert sorted(map(str, arms)) == sorted(str(arm) for arm in plan.arms if arm.concurrency == together)


@given(plans)
def test_the_same_plan_gives_the_same_order(plan: SweepPlan) -> None:
    assert schedule(plan) == schedule(plan)


def test_the_order_of_arms_is_drawn_anew_for_each_prompt() -> None:
    plan = SweepPlan(SweepOptions(), tuple(ARMS[:6]), tuple(from_texts([str(n) for n in range(20)])), {}, {})
    steps = schedule(plan)
    orders = {tuple(step.arm.id for step in steps[at : at + 6]) for at in range(0, len(steps), 6)}
    assert len(orders) > 40  # of 60 drawn from 720
    first = Counter(steps[at].arm.id for at in range(0, len(steps), 6))
    assert max(first.values()) <= 24  # none is always first; expected: 10


@settings(max_examples=50)
@given(plans, st.data())
def test_what_is_pending_is_what_is_missing_in_the_same_order(plan: SweepPlan, data: st.DataObject) -> None:
    steps = schedule(plan)
    done = set(data.draw(st.lists(st.sampled_from([key for step in steps for key in step.keys]))))
    left = pending(steps, done)
    assert left == [step for step in steps if set(step.keys) - done]
    assert {key for step in steps for key in step.keys} - done <= {key for step in left for key in step.keys}


def test_arms_draw_sampled_answers_alike_and_repetitions_do_not() -> None:
    seeds = {token_seed(seed, repetition, prompt) for seed in (0, 1) for repetition in (1, 2, 3) for prompt in "abcd"}
    assert len(seeds) == 24
    assert all(0 <= seed < 2**64 for seed in seeds)
