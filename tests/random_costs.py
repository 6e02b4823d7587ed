"""Depths as no machine would have them: prices are drawn anew for each step, so that any depth may be the best."""

from __future__ import annotations

import random

from draftd.core import DrafterName
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import StepCosts

_PLAIN = 0.01


class Whims(StepCosts):
    """What a step is said to cost has nothing to do with what it costs, nor with the texts."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._dice = random.Random(seed)

    def drafted(
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


def whims(seed: int = 1) -> DepthControl:
    """Chooses depths by such prices, and is right in everything else."""
    return DepthControl(Whims(seed), 16)
