"""Random step costs, drawn again for each step, so any depth may be the best."""

from __future__ import annotations

import random

from draftd.core import DrafterName
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import StepCosts

_PLAIN = 0.01


class RandomCosts(StepCosts):
    """Estimates that depend neither on real costs nor on the text."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._dice = random.Random(seed)

    def by_depth(
        self,
        drafter: DrafterName,
        batch: int,
        deepest: int,
        context: int = 0,
        sampled: bool = False,
        beside: DrafterName | None = None,
    ) -> list[float]:
        seconds, step = [_PLAIN], _PLAIN * 10 ** self._dice.uniform(-2.5, 0.3)
        for _ in range(deepest):
            seconds.append(seconds[-1] + step * self._dice.random())
        return seconds


def random_depth_control(seed: int = 1) -> DepthControl:
    """Returns a depth control that uses random costs and is otherwise the real one."""
    return DepthControl(RandomCosts(seed), 16)
