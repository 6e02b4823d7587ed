"""Measures what a step costs, by depth and number of sequences, a forward at a time.

It runs the same code as decoding. First come the costs that a single request depends on: plain steps, and the
shallowest and the deepest draft, of one sequence. These nine forwards may run between the steps of requests, but never
before a prompt. All else is measured while the engine is idle, and values in between are interpolated (depth/costs.py).

Prices measured while the machine was busy are wrong afterwards, and not all by one factor. So all are measured again,
in the same order, when the machine speed has changed by half.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import mlx.core as mx

from draftd.core import GRAMMAR, PROMPT_LOOKUP, DrafterName, SamplingParams
from draftd.engine.depth.costs import CalibratedCosts
from draftd.engine.drafters.base import Draft, Drafter, Text
from draftd.engine.limits import MOST_REPLAYED, REST_SECONDS
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.step import PlanEntry, StepPlan
from draftd.engine.targets.base import PlanNumbers, SequenceOptions
from draftd.engine.targets.local import LocalTarget

_PROMPT = 32  # tokens of each sequence
_MEASURES_THE_REST = True  # off in tests that start hundreds of engines
_STEPS, _DRAFTED_STEPS = 6, 3
_FIRST_STEPS, _FIRST_DRAFTED_STEPS = 2, 2
_LONG = 768  # tokens of context to compare the short one with, of one sequence: several would take memory
_CHANGED = math.log(1.5)  # of the machine speed: a noisy machine often changes by less
_SLOWER_SECONDS = 30.0  # a load is over soon, or lasts
_FIRST_WAIT, _LONGEST_WAIT = 5.0, 320.0  # seconds between two measurements, which double while they come so often


class Calibration:
    """Engine thread only."""

    def __init__(
        self,
        model: Callable[[], Any],
        vocabulary: int,
        drafters: Callable[[], Mapping[DrafterName, Drafter]] = dict,
        deepest: int = 0,
        *,
        context_length: int = 1 << 30,
        max_batch: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`model` and `drafters` are called for each measurement; the drafters must know no sequences. `deepest`: the
        most tokens that they draft in a step."""
        self._model, self._vocabulary, self._make, self._clock = model, vocabulary, drafters, clock
        self._depths = [d for d in (1, 2, 4, 8, 16) if d < deepest] + [deepest] * (deepest > 0)
        self._context_length, self._max_batch = context_length, max_batch
        self._pieces: Iterator[CalibratedCosts | None] | None = None
        self._beside = False  # whether it measures between requests' steps too, not only while idle
        self._stopped = False  # whether `stop` interrupted a measurement
        self._began, self._wait = -math.inf, _FIRST_WAIT
        self._busy_at = clock()
        self._measurement: _Measurement | None = None
        self.prefill_seconds = 0.0  # of a token of a prompt, once measured

    @property
    def pending(self) -> bool:
        return self._pieces is not None or self._stopped

    def begin(self) -> None:
        """Starts measuring everything. The costs that a single request depends on come first, also between requests'
        steps."""
        self._begin(self._first())
        self._beside = True

    def due(self, speed: float, *, idle: bool) -> bool:
        """Returns whether to measure a forward now. `speed`: the logarithm of how much longer steps take than at the
        last measurement."""
        now = self._clock()
        passed = now - self._began  # infinite before the first measurement
        faster, slower = speed < -_CHANGED, speed > _CHANGED and passed > _SLOWER_SECONDS
        changed = math.isfinite(passed) and passed > self._wait and (faster or slower)
        if self._pieces is None and (self._stopped or changed):
            if changed:
                self._wait = _FIRST_WAIT if passed > 4 * self._wait else min(2 * self._wait, _LONGEST_WAIT)
            self.begin()
        if not idle:
            self._busy_at = now
        rested = now - self._busy_at >= REST_SECONDS
        return self._pieces is not None and (rested if idle else self._beside)

    def step(self) -> CalibratedCosts | None:
        """Measures a forward, and returns the prices of a batch size when these are complete."""
        assert self._pieces is not None
        prices = next(self._pieces, None)
        if prices is not None and self._beside:
            self.close()
            if _MEASURES_THE_REST:
                self._begin(self._whole())
        return prices

    def stop(self) -> None:
        """Releases model and drafters, as others may replace them. A pending measurement starts again when it is
        due."""
        stopped = self.pending
        self.close()
        self._stopped = stopped

    def close(self) -> None:
        """Ends a pending measurement, and releases model and drafters."""
        self._pieces, self._beside, self._stopped = None, False, False
        if self._measurement is not None:
            self._measurement.close()
            self._measurement = None

    def _begin(self, pieces: Iterator[CalibratedCosts | None]) -> None:
        self.close()
        self._pieces, self._began = pieces, self._clock()

    def _start_run(self) -> _Measurement:
        self._measurement = _Measurement(self._model(), self._vocabulary, self._make(), self._depths)
        return self._measurement

    def _first(self) -> Iterator[CalibratedCosts | None]:
        run = self._start_run()
        yield from run.join()
        self.prefill_seconds = run.prefill_seconds
        yield from run.plain_steps(_FIRST_STEPS, at_once=True)
        yield from run.drafted_steps(1, sorted({*self._depths[:1], *self._depths[-1:]}), _FIRST_DRAFTED_STEPS)
        yield run.prices(1)

    def _whole(self) -> Iterator[CalibratedCosts | None]:
        run, size = self._start_run(), 1
        while True:
            while run.size < size:
                yield from run.join()
            self.prefill_seconds = run.prefill_seconds
            yield from run.plain_steps(_STEPS)
            yield from run.drafted_steps(size, self._depths, _DRAFTED_STEPS)
            if size == 1:
                yield from run.longer(min(_LONG, self._context_length - 2 * max(self._depths, default=0) - 64))
            yield run.prices(size)
            if size >= self._max_batch:
                break
            size = min(2 * size, self._max_batch)
        self.close()


class _MeasuredDraft(NamedTuple):
    """The time of a draft of `tokens` tokens, made with so many forwards."""

    seconds: float
    tokens: int
    forwards: int

    def seconds_of(self, depth: int) -> float:
        """Returns what a draft of `depth` tokens takes: less if each token has a forward of its own."""
        return self.seconds * depth / self.tokens if self.forwards == self.tokens else self.seconds


class _Measurement:
    """One measurement: its own sequences of the target, and the results so far. Each iterator does one forward at a
    time."""

    def __init__(self, model: Any, vocabulary: int, drafters: Mapping[DrafterName, Drafter], depths: list[int]) -> None:
        self._target, self._vocabulary = LocalTarget(model, vocabulary), vocabulary
        self._steps = PlanNumbers(self._target)
        self._drafters = {kind: d for kind, d in drafters.items() if kind not in (PROMPT_LOOKUP, GRAMMAR)}
        self._deepest = max(depths, default=0)
        self._depths = depths
        self._sequences: list[Text] = []
        self._pretends = False  # whether the target's sequence claims to be longer than it is
        self._replays = 0  # the most tokens that a sequence computes again in the next step
        self._plain: dict[int, float] = {}
        self._drafted: dict[DrafterName, dict[tuple[int, int], float]] = {}
        self._prefill: dict[DrafterName, float] = {}
        self.growth: dict[int, float] = {}
        self.prefill_seconds = 0.0

    @property
    def size(self) -> int:
        return len(self._sequences)

    def close(self) -> None:
        for drafter in self._drafters.values():
            drafter.close()
        self._target.close(range(self.size))
        self._target.unload()

    def prices(self, size: int) -> CalibratedCosts:
        """The prices of a batch size: each the least of several steps, as other load only makes steps slower."""
        drafted = {
            kind: {key: seconds for key, seconds in by_depth.items() if key[0] == size}
            for kind, by_depth in self._drafted.items()
        }
        return CalibratedCosts({size: self._plain[size]}, drafted, dict(self.growth), _PROMPT, dict(self._prefill))

    def join(self) -> Iterator[None]:
        index = len(self._sequences)
        prompt = tuple((7 * i + index) % self._vocabulary for i in range(_PROMPT))
        began = time.perf_counter()
        self._target.open(index, SequenceOptions(prompt=len(prompt), length=len(prompt)))
        (result,) = self._steps.result(self._steps.submit([PlanEntry(index, 0, prompt)])).entries
        self.prefill_seconds = (time.perf_counter() - began) / _PROMPT
        assert result.following is not None
        sequence = Text([*prompt, result.following])
        for kind, drafter in self._drafters.items():
            yield None
            began = time.perf_counter()
            if result.features is not None:
                drafter.feed(sequence, result.features)
            while not drafter.prefill(sequence, _PROMPT):
                pass
            self._prefill[kind] = (time.perf_counter() - began) / _PROMPT  # the last: the first warms up
        self._sequences.append(sequence)
        yield None

    def plain_steps(self, steps: int, *, at_once: bool = False) -> Iterator[None]:
        """Measures plain steps, pipelined as in decoding. `at_once`: without a pause between them, in which a step of a
        request could run and be measured too."""
        self._plain[self.size] = math.inf
        yield from self._plain_ticks(steps, self._plain, self.size, at_once=at_once)

    def _plain_ticks(self, steps: int, least: dict[int, float], at: int, *, at_once: bool) -> Iterator[None]:
        mx.synchronize()  # other work under way is not measured
        ahead, before = self._steps.submit(self._entries()), None
        for _ in range(steps + 1):
            current, ahead = ahead, self._steps.submit(self._entries())
            self._read(current)
            now = time.perf_counter()
            if before is not None:  # the first has no other before it
                least[at] = min(now - before, least.get(at, math.inf))
            before = now
            if not at_once:
                yield None  # a request that comes now makes one look slower, which the least passes over
        self._read(ahead)  # so that another can join
        yield None

    def drafted_steps(self, size: int, depths: list[int], steps: int) -> Iterator[None]:
        """Measures all depths in turn, `steps` times, so that a busy moment of the machine affects all of them."""
        alone, drafts = dict[int, float](), dict[DrafterName, _MeasuredDraft]()
        for _ in range(steps if depths else 0):
            for kind, drafter in self._drafters.items():
                draft = self._draft(drafter)
                drafts[kind] = min(draft, drafts.get(kind, draft))
                yield None
            for depth in depths:
                self._verify(size, depth, alone)
                yield None
        for depth, seconds in alone.items():
            self._drafted.setdefault(PROMPT_LOOKUP, {})[size, depth] = seconds
            for kind, draft in drafts.items():
                if depth <= draft.tokens:
                    self._drafted.setdefault(kind, {})[size, depth] = seconds + draft.seconds_of(depth)

    def longer(self, long: int) -> Iterator[None]:
        """Measures what context adds to a step: the one sequence claims to hold `long` tokens, which costs the same
        whatever they are."""
        lengths = self._target.lengths
        if long < 4 * _PROMPT or not self._target.pretend([long]):
            return
        self._pretends = True
        verified = self._drafted.get(PROMPT_LOOKUP, {})
        short = {0: self._plain[1]} | {width: seconds for (_, width), seconds in verified.items()}
        again = dict[int, float]()
        yield from self._plain_ticks(_DRAFTED_STEPS, again, 0, at_once=True)
        for depth in self._depths * _DRAFTED_STEPS:
            self._verify(1, depth, again)
            yield None
        for width in short.keys() & again.keys():
            self.growth[width] = max(0.0, again[width] - short[width]) / (long - _PROMPT)
        self._target.pretend(lengths)
        for sequence, length in zip(self._sequences, lengths, strict=True):
            del sequence.tokens[length + 1 :]
        self._pretends = False

    def _draft(self, drafter: Drafter) -> _MeasuredDraft:
        """Measures the deepest draft of a drafter."""
        mx.synchronize()
        began = time.perf_counter()
        sampling = Sampling([SamplingParams()] * len(self._sequences))
        draft = drafter.propose(self._sequences, [self._deepest] * len(self._sequences), sampling)
        mx.eval(draft.tokens)
        return _MeasuredDraft(time.perf_counter() - began, max(draft.depths), max(draft.forwards))

    def _verify(self, size: int, depth: int, least: dict[int, float]) -> None:
        """Verifies `depth` tokens of each sequence, of which few are accepted. `least`: the shortest time so far in
        seconds, by width of the forward less 1: `depth`, or more if rolled-back tokens are computed again."""
        if self._replays > MOST_REPLAYED:
            self._read(self._steps.submit(self._entries()))
        mx.synchronize()
        began = time.perf_counter()
        draft = Draft(mx.full((size, depth), 1, dtype=mx.uint32), [depth] * size, None, [0] * size)
        after = self._read(self._steps.submit(self._entries(depth), draft)) - 1
        least[after] = min(time.perf_counter() - began, least.get(after, math.inf))

    def _entries(self, depth: int = 0) -> list[PlanEntry]:
        lengths = self._target.lengths
        lengths += [_PROMPT] * (len(self._sequences) - len(lengths))  # for those that begin to run now
        return [PlanEntry(sequence, position, (), depth) for sequence, position in enumerate(lengths)]

    def _read(self, plan: StepPlan) -> int:
        """Reads a plan's result into the sequences; returns the width of its forward."""
        result = self._steps.result(plan)
        for sequence, entry in zip(self._sequences, result.entries, strict=True):
            assert entry.following is not None
            sequence.tokens += [*entry.accepted, entry.following]
            if entry.features is not None and not self._pretends:
                for drafter in self._drafters.values():
                    drafter.feed(sequence, entry.features)
        self._replays = max(entry.replays for entry in result.entries)
        return result.width
