"""A machine in simulated time: steps cost what a test says, drafts are accepted as often as it says, and nothing waits.

Scheduler, steps and depth control are the real ones; only the models are missing.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodeRequest, DrafterName, WorkloadClass
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import CalibratedCosts, StepCosts
from draftd.engine.drafters.base import Draft, Drafter
from draftd.engine.limits import Limits
from draftd.engine.local_decoder import LocalDecoder
from draftd.engine.observer import EngineObserver
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.scheduler import Scheduler
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import EntryResult, StepPlan, StepResult
from draftd.engine.targets.base import SequenceOptions
from tests.rig import Collected

DRAFT = DRAFT_MODEL
END = 7  # what a text ends with


@dataclass
class Machine:
    """Costs in seconds, and how often drafts are accepted; both may change during a test."""

    plain: Callable[[int], float] = lambda rows: 0.010 + 0.0015 * rows
    wider: Callable[[int, int], float] = lambda rows, width: 1 + 0.12 * (width - 1)  # beside a plain step
    step: Callable[[int], float] = lambda rows: 0.001
    take_in: float = 0.00003  # of the draft, a token
    stands: Mapping[WorkloadClass, Sequence[float]] = field(default_factory=dict)
    slowdown: float = 1.0
    noise: float = 0.05
    overhead: float = 0.0003  # of a step that was not started ahead
    ends: int = 1 << 20  # tokens after which a text is over
    now: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def spend(self, seconds: float) -> None:
        self.now += seconds * self.slowdown * math.exp(self.dice.gauss(0, self.noise))

    def round(self, rows: int, depth: int) -> float:
        """Returns the seconds of a step, without noise."""
        if not depth:
            return self.plain(rows)
        return self.plain(rows) * self.wider(rows, depth + 1) + depth * self.step(rows) + self.overhead

    def best(self, rows: int, stands: Sequence[float], most: int) -> tuple[int, float]:
        """Returns the fixed depth with the most tokens per second, and that rate."""
        found = (0, 0.0)
        for depth in range(most + 1):
            tokens, reach = 1.0, 1.0
            for i in range(depth):
                reach *= stands[min(i, len(stands) - 1)]
                tokens += reach
            rate = rows * tokens / self.round(rows, depth)
            found = max(found, (depth, rate), key=lambda one: one[1])
        return found

    def prices(self, most: int, sizes: Sequence[int] = (1, 2, 4, 8), off: float = 1.0) -> CalibratedCosts:
        """Returns the costs that a calibration would find; those of drafted steps are wrong by the factor `off`."""
        drafted = {(b, k): off * self.round(b, k) for b in sizes for k in range(1, most + 1)}
        alone = {(b, k): off * self.plain(b) * self.wider(b, k + 1) for b in sizes for k in range(1, most + 1)}
        return CalibratedCosts(
            {b: self.plain(b) for b in sizes},
            {DRAFT: drafted, PROMPT_LOOKUP: alone},
            prefill={DRAFT: self.take_in},
        )


class SimulatedTarget:
    """A target that accepts as often as the machine says for the sequence's category. Prompts cost nothing."""

    nbytes = 0
    slice_width = 1

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.workloads: dict[int, WorkloadClass] = {}
        self._prompts: dict[int, int] = {}
        self._submitted: deque[tuple[StepPlan, bool]] = deque()  # and whether each was started ahead

    def open(self, sequence: int, options: SequenceOptions) -> int | None:
        self._prompts[sequence] = options.prompt
        return options.length - 1

    def cached_prefix(self, tokens: Sequence[int]) -> int | None:
        return None

    def submit(self, plan: StepPlan) -> None:
        self._submitted.append((plan, bool(self._submitted)))

    def results(self) -> Iterator[StepResult]:
        while self._submitted:
            plan, ahead = self._submitted.popleft()
            if plan.entries[0].tokens:
                yield StepResult(plan.step, [EntryResult(entry.sequence, [], 1) for entry in plan.entries], 1)
            else:
                yield self._decoded(plan, ahead)

    def _decoded(self, plan: StepPlan, ahead: bool) -> StepResult:
        machine, size = self._machine, len(plan.entries)
        depth = max(entry.drafted for entry in plan.entries) if plan.draft is not None else 0
        seconds = machine.plain(size) * (machine.wider(size, depth + 1) if plan.draft is not None else 1.0)
        machine.spend(seconds + (0.0 if ahead else machine.overhead))
        done = []
        for sequence, position, _, drafted, _ in plan.entries:
            n, accepts = 0, self.accepts(sequence) if drafted else ()
            while n < drafted and machine.dice.random() < accepts[min(n, len(accepts) - 1)]:
                n += 1
            ends = position - self._prompts[sequence] + n + 2 >= machine.ends
            token = 4 if plan.draft is None else 3
            done.append(EntryResult(sequence, [2] * n, END if ends else token))
        return StepResult(plan.step, done, depth + 1)

    def accepts(self, sequence: int) -> Sequence[float]:
        return self._machine.stands[self.workloads[sequence]]

    def keep(self, sequence: int, length: int, *, last: bool = False) -> None:
        return None

    def close(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self._prompts.pop(sequence, None)
        for _ in range(len(self._submitted)):
            plan, ahead = self._submitted.popleft()
            left = [entry for entry in plan.entries if entry.sequence in self._prompts]
            if left:
                self._submitted.append((replace(plan, entries=left), ahead))

    def reset(self) -> None:
        self._submitted.clear()


class SimulatedDrafter(Drafter):
    """A drafter that keeps how far it has processed each row."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.held: dict[int, int] = {}
        self._entering: dict[int, int] = {}
        self.longest_slice = 0

    def prefill(self, row: DecodeSequence, chunk: int) -> bool:
        whole, had = len(row.tokens) - 1, self._entering.get(id(row), 0)
        now = min(whole, had + chunk)
        self._take(now - had)
        self._entering[id(row)] = now
        if now < whole:
            return False
        self.held[id(row)] = self._entering.pop(id(row))
        return True

    def behind(self, row: DecodeSequence) -> int | None:
        return None if id(row) not in self.held else max(0, len(row.tokens) - 1 - self.held[id(row)])

    def follow(self, rows: Sequence[DecodeSequence], chunk: int) -> None:
        unknown = next((row for row in rows if id(row) not in self.held), None)
        if unknown is not None:
            self.prefill(unknown, chunk)
            return
        lags = [min(chunk, self.behind(row) or 0) for row in rows]
        self._take(max(lags))
        for row, lag in zip(rows, lags, strict=True):
            self.held[id(row)] += lag

    def reach(self, row: DecodeSequence, most: int) -> int:
        return most

    def propose(self, rows: Sequence[DecodeSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        lag = max(len(row.tokens) - self.held[id(row)] for row in rows)
        self._take(lag - 1)
        self._machine.spend(self._machine.step(len(rows)) * max(depths))
        for row in rows:
            self.held[id(row)] = len(row.tokens)
        return Draft(mx.zeros((len(rows), max(depths)), mx.uint32), list(depths), None, list(depths), lag)

    def leave(self, row: DecodeSequence) -> None:
        self.held.pop(id(row), None)
        self._entering.pop(id(row), None)

    def close(self) -> None:
        self.held.clear()

    def _take(self, tokens: int) -> None:
        self.longest_slice = max(self.longest_slice, tokens)
        self._machine.spend(self._machine.take_in * tokens)


class SimulatedLookup(Drafter):
    """A drafter that finds proposals in stretches of a text, at no cost."""

    def __init__(self, machine: Machine, every: int = 24, found: int = 16) -> None:
        """Makes it find `found` of every `every` tokens."""
        self._machine, self._every, self._found = machine, every, found

    def reach(self, row: DecodeSequence, most: int) -> int:
        return most if len(row.tokens) % self._every < self._found else 0

    def propose(self, rows: Sequence[DecodeSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        depths = [min(depth, self.reach(row, depth)) for row, depth in zip(rows, depths, strict=True)]
        return Draft(mx.zeros((len(rows), max(depths)), mx.uint32), depths, None, [0] * len(rows))


class Simulation:
    """A scheduler on such a machine. `prices` are those of the calibration, None for none. `drafters` replace the
    draft."""

    def __init__(
        self,
        machine: Machine,
        most: int,
        *,
        prices: CalibratedCosts | None = None,
        observer: EngineObserver | None = None,
        max_batch: int = 8,
        depth: DepthControl | None = None,
        target: type[SimulatedTarget] | None = None,
        drafters: Mapping[DrafterName, Drafter] | None = None,
    ) -> None:
        self.machine = machine
        self.depth = depth or DepthControl(StepCosts(prices), most)
        self.drafter = SimulatedDrafter(machine)
        found = {DRAFT: self.drafter} if drafters is None else drafters
        self.target = (target or SimulatedTarget)(machine)
        local = LocalDecoder(
            target=self.target,
            drafters=lambda: found,
            eos=frozenset({END}),
            vocabulary=8,
            context_length=1 << 20,
            observer=observer or EngineObserver(),
            limits=Limits(max_batch=max_batch, prefill_chunk=512),
            clock=lambda: machine.now,
            timer=lambda: machine.now,
            depth=self.depth,
        )
        self.scheduler = Scheduler(local, clock=lambda: machine.now)

    def add(self, request: DecodeRequest) -> Collected:
        sink = Collected()
        sequence = DecodeSequence.of(request, sink, 1 << 20)
        self.scheduler.add(sequence)
        self.target.workloads[sequence.id] = request.workload
        return sink

    def run(self, requests: Sequence[DecodeRequest]) -> tuple[float, list[Collected]]:
        """Decodes the requests together to their ends. Returns tokens per second from when the last has begun, and the
        sinks."""
        sinks = [self.add(request) for request in requests]
        while not all(sink.tokens for sink in sinks):
            self.scheduler.step()
        began, had = self.machine.now, sum(len(sink.tokens) for sink in sinks)
        while not self.scheduler.idle:
            self.scheduler.step()
        return (sum(len(sink.tokens) for sink in sinks) - had) / (self.machine.now - began), sinks
