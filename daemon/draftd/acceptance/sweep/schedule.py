"""In which order a sweep asks: arms interleaved on each prompt, so that what drifts drifts for all of them."""

from __future__ import annotations

import random
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftd.acceptance.arms import Arm
from draftd.acceptance.sweep.plan import SweepPlan
from draftd.acceptance.ticks import Tick

if TYPE_CHECKING:
    from draftd.client.prompts import Prompt

Key = tuple[str, str, int]  # Arm.id, prompt's name, repetition


@dataclass(frozen=True, slots=True)
class Step:
    """What is asked at one time: `arm.concurrency` prompts, all at once."""

    arm: Arm
    prompts: tuple[Prompt, ...]
    repetition: int  # from 1

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple((self.arm.id, prompt.name, self.repetition) for prompt in self.prompts)

    @property
    def group(self) -> str:
        """What it may be compared with: of several groups at once it is of none."""
        groups = {prompt.group for prompt in self.prompts}
        return groups.pop() if len(groups) == 1 else ""


def schedule(plan: SweepPlan) -> list[Step]:
    """All of it, and the same again for the same plan.

    A block is one prompt with all arms of single requests, or as many prompts as are asked at once with all arms of
    that concurrency. Within a block the order of the arms is drawn, within a repetition that of the blocks. Prompts
    that are left over when they are asked in groups are others in each repetition.
    """
    steps: list[Step] = []
    for repetition in range(1, plan.options.repetitions + 1):
        drawn = random.Random(f"{plan.options.seed} {repetition}")
        blocks: list[list[Step]] = []
        for together in sorted({arm.concurrency for arm in plan.arms}):
            arms = [arm for arm in plan.arms if arm.concurrency == together]
            prompts = drawn.sample(plan.prompts, len(plan.prompts))
            for at in range(0, len(prompts) - together + 1, together):
                asked = tuple(prompts[at : at + together])
                blocks.append([Step(arm, asked, repetition) for arm in drawn.sample(arms, len(arms))])
        drawn.shuffle(blocks)
        steps += [step for block in blocks for step in block]
    return steps


def key_of(tick: Tick) -> Key:
    """Which request it answers."""
    return tick.place.arm, tick.place.prompt, tick.place.repetition


def measured(ticks: Iterable[Tick]) -> set[Key]:
    """What need not be asked again."""
    return {key_of(tick) for tick in ticks if not tick.error and not tick.place.warm_up}


def pending(steps: Iterable[Step], done: Collection[Key]) -> list[Step]:
    """Requests that are asked at once are measured all together or not at all."""
    return [step for step in steps if not all(key in done for key in step.keys)]


def token_seed(seed: int, repetition: int, prompt: str) -> int:
    """With what a sampled answer is drawn: the same for every arm, so that they are compared on like luck."""
    return zlib.crc32(f"{seed} {repetition} {prompt}".encode())
