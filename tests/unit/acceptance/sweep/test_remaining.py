"""The time that is left, on a clock that is simulated: what is said is what it takes."""

from __future__ import annotations

import random

import pytest

from draftd.acceptance.options import SweepOptions
from draftd.acceptance.sweep.plan import Step, SweepPlan, schedule
from draftd.acceptance.sweep.run import Remaining
from draftd.acceptance.ticks import Arm
from draftd.client.prompts import Prompt
from draftd.core import WorkloadClass

LENGTHS = {"short": 30, "long": 300}
PROMPTS = tuple(
    Prompt(f"{group}-{n}", (("user", "x"),), WorkloadClass.UNSPECIFIED, None, group)
    for group in LENGTHS
    for n in range(8)
)
ARMS = (Arm(0, None), Arm(2), Arm(4), Arm(0, None, concurrency=4), Arm(4, concurrency=4))
PAUSE = 0.1


def steps() -> list[Step]:
    return schedule(SweepPlan(SweepOptions(repetitions=3), ARMS, PROMPTS, {}, {}))


def seconds(step: Step, drawn: random.Random) -> float:
    """Answers differ in length by half; an arm's speed is its own; those at once are as slow as the slowest."""
    tokens = max(LENGTHS[prompt.group] for prompt in step.prompts) * drawn.uniform(0.5, 1.5)
    return 0.05 + tokens * 0.02 / (1 + 0.3 * step.arm.block_length) * (1 + 0.2 * step.arm.concurrency)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_said_is_what_it_takes(seed: int) -> None:
    drawn, remaining, all_steps = random.Random(seed), Remaining(PAUSE), steps()
    took = [seconds(step, drawn) for step in all_steps]
    assert remaining.of(all_steps) is None  # before anything is known nothing is said
    for at, step in enumerate(all_steps):
        said, truth = remaining.of(all_steps[at:]), sum(took[at:]) + PAUSE * len(took[at:])
        if at >= len(took) // 10:  # from a tenth on
            assert said is not None
            assert abs(said - truth) < 0.3 * truth + 10
        if at >= len(took) // 3:
            assert said is not None
            assert abs(said - truth) < 0.15 * truth + 10  # an answer of the long group takes about 9 s
        remaining.took(step, took[at])
    assert remaining.of([]) == 0


def test_one_that_hung_does_not_spoil_it() -> None:
    remaining, step = Remaining(), steps()[0]
    for _ in range(9):
        remaining.took(step, 1.0)
    remaining.took(step, 600.0)
    said = remaining.of([step] * 100)
    assert said is not None
    assert 100 <= said <= 130.0 + 1e-9


def test_like_is_judged_by_like() -> None:
    remaining = Remaining(pause_seconds=0.5)
    fast, slow = Step(Arm(4), PROMPTS[:1], 1), Step(Arm(4), PROMPTS[-1:], 1)
    remaining.took(fast, 1.0)
    assert remaining.of([slow]) == 1.5  # the arm is known, the group is not
    remaining.took(slow, 9.0)
    assert remaining.of([fast, slow]) == 1.5 + 9.5
    unknown = Step(Arm(2), PROMPTS[:1], 1)
    assert remaining.of([unknown]) == 5.5
