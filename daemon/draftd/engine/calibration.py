"""A short measurement at load: what a step costs, by how much it drafts and how many sequences it has.

It runs what decoding runs, on the machine that decodes, so that the first step already knows what would pay. What is
measured in the time that there is comes in the order of its use; the rest is interpolated (depth/costs.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import mlx.core as mx

from draftd.core import PROMPT_LOOKUP, DrafterName, SamplingParams
from draftd.engine.depth.costs import Prices
from draftd.engine.drafters.base import Drafter, Text
from draftd.engine.limits import MOST_REPLAYED
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.step import Entry, StepPlan
from draftd.engine.targets.base import SequenceOptions, Steps
from draftd.engine.targets.local import LocalTarget

_PROMPT = 32  # tokens of each sequence
_WARM_UP, _STEPS = 2, 6
_DRAFTED_STEPS = 3
_LONG = 512  # tokens of context to compare the short one with
_LONG_BATCH = 4


class Calibration:
    """Engine thread only."""

    def __init__(
        self,
        model: Any,
        vocabulary: int,
        drafters: Mapping[DrafterName, Drafter] | None = None,
        deepest: int = 0,
        context_length: int = 1 << 30,
    ) -> None:
        """`drafters` must know no sequences. `deepest`: the most tokens that they draft in a step."""
        self._target, self._vocabulary = LocalTarget(model, vocabulary), vocabulary
        self._steps = Steps(self._target)
        self._drafters = {kind: d for kind, d in (drafters or {}).items() if kind != PROMPT_LOOKUP}
        self._depths = [d for d in (1, 2, 4, 8, 16) if d < deepest] + [deepest] * (deepest > 0)
        self._sequences: list[Text] = []
        self._replays = 0  # the most tokens that one of them has computed again in the next step
        self._context_length = context_length
        self._plain: dict[int, float] = {}
        self._drafted: dict[DrafterName, dict[tuple[int, int], float]] = {}
        self._growth: dict[int, float] = {}
        self._prefill: dict[DrafterName, float] = {}
        self.prefill_seconds = 0.0  # of a token of a prompt, once that was measured

    def run(self, max_batch: int, seconds: float) -> Prices:
        """Seconds of a step, the least of several, which the rest of the machine did not disturb: plain for 1 sequence,
        then doubled up to `max_batch`; for each size with 1, 2, 4, … up to `deepest` drafted tokens of each drafter.
        Ends when `seconds` are used up; plain steps of one sequence are measured in any case. Closes the drafters."""
        ends, size = time.perf_counter() + seconds, 1
        try:
            while True:
                while len(self._sequences) < size:
                    self._join()
                self._plain[size] = self._plain_steps()
                if time.perf_counter() < ends:
                    self._drafted_steps(size)
                if not self._growth and size >= min(_LONG_BATCH, max_batch) and time.perf_counter() < ends:
                    self._longer(size)
                if size >= max_batch or time.perf_counter() >= ends:
                    break
                size = min(2 * size, max_batch)
        finally:
            for drafter in self._drafters.values():
                drafter.close()
        return Prices(self._plain, self._drafted, self._growth, _PROMPT, self._prefill)

    def _join(self) -> None:
        index = len(self._sequences)
        if not index:
            self._first_token(index)  # warms up
            self._target.close([index])
        one = self._first_token(index)
        for kind, drafter in self._drafters.items():
            began = time.perf_counter()
            while not drafter.prefill(one, _PROMPT):
                pass
            self._prefill[kind] = (time.perf_counter() - began) / _PROMPT  # the last: the first warms up
        self._sequences.append(one)

    def _first_token(self, index: int) -> Text:
        prompt = tuple((7 * i + index) % self._vocabulary for i in range(_PROMPT))
        began = time.perf_counter()
        self._target.open(index, SequenceOptions(prompt=len(prompt), length=len(prompt)))
        (result,) = self._steps.result(self._steps.submit([Entry(index, 0, prompt)])).entries
        self.prefill_seconds = (time.perf_counter() - began) / _PROMPT
        assert result.following is not None
        return Text([*prompt, result.following])

    def _plain_steps(self, steps: int = _STEPS) -> float:
        """Pipelined as decoding is. The last is not, so that another can join after it, and is not measured."""
        ticks, ahead = list[float](), self._steps.submit(self._entries())
        for i in range(_WARM_UP + steps + 2):
            current = ahead
            if i < _WARM_UP + steps + 1:
                ahead = self._steps.submit(self._entries())
            self._read(current)
            ticks.append(time.perf_counter())
        measured = ticks[_WARM_UP:-1]
        return min(after - before for before, after in pairwise(measured))

    def _drafted_steps(self, size: int) -> None:
        """All depths in turn, again and again, so that a busy moment of the machine falls on all of them."""
        alone, steps = dict[int, float](), dict[DrafterName, float]()
        for _ in range(_DRAFTED_STEPS if self._depths else 0):
            for kind, drafter in self._drafters.items():
                steps[kind] = min(self._step(drafter), steps.get(kind, math.inf))
            for depth in self._depths:
                self._verify(size, depth, alone)
        for depth, seconds in alone.items():
            self._drafted.setdefault(PROMPT_LOOKUP, {})[size, depth] = seconds
            for drafts, step in steps.items():
                self._drafted.setdefault(drafts, {})[size, depth] = seconds + depth * step

    def _step(self, drafter: Drafter) -> float:
        """Seconds of one step of a draft model."""
        began, deepest = time.perf_counter(), self._depths[-1]
        sampling = Sampling([SamplingParams()] * len(self._sequences))
        draft = drafter.propose(self._sequences, [deepest] * len(self._sequences), sampling)
        mx.eval(draft.tokens)
        return (time.perf_counter() - began) / deepest

    def _verify(self, size: int, depth: int, least: dict[int, float]) -> None:
        """Verifies `depth` tokens of each sequence, of which few are accepted. `least`: seconds by the positions that
        were computed after the first, which are more where rejected ones are replayed."""
        if self._replays > MOST_REPLAYED:
            self._read(self._steps.submit(self._entries()))
        began = time.perf_counter()
        drafts = mx.full((size, depth), 1, dtype=mx.uint32)
        after = self._read(self._steps.submit(self._entries(depth), drafts)) - 1
        least[after] = min(time.perf_counter() - began, least.get(after, math.inf))

    def _entries(self, depth: int = 0) -> list[Entry]:
        held = self._target.lengths
        held += [_PROMPT] * (len(self._sequences) - len(held))  # of those that begin to run now
        return [Entry(sequence, position, (), depth) for sequence, position in enumerate(held)]

    def _read(self, plan: StepPlan) -> int:
        """The width of its forward."""
        result = self._steps.result(plan)
        for one, entry in zip(self._sequences, result.entries, strict=True):
            assert entry.following is not None
            one.tokens += [*entry.accepted, entry.following]
        self._replays = max(entry.replays for entry in result.entries)
        return result.width

    def _longer(self, size: int) -> None:
        """What context adds: the same sequences, told that they hold more, which costs the same whatever it is."""
        long = min(_LONG, self._context_length - 2 * max(self._depths, default=0) - 64)
        held = self._target.lengths
        if long < 4 * _PROMPT or not self._target.pretend([long] * size):
            return
        verified = self._drafted.get(PROMPT_LOOKUP, {})
        short = {0: self._plain[size]} | {width: seconds for (n, width), seconds in verified.items() if n == size}
        again = {0: self._plain_steps(_DRAFTED_STEPS)}
        for depth in self._depths * _DRAFTED_STEPS:
            self._verify(size, depth, again)
        for width in short.keys() & again.keys():
            self._growth[width] = max(0.0, again[width] - short[width]) / (size * (long - _PROMPT))
        self._target.pretend(held)
