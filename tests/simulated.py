"""A machine whose time is made up: rounds cost what a test says, drafts stand as often as it says, and nothing waits.

The scheduler, the rounds and the control of depth are the real ones; only the models are not there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodeRequest, DrafterName, WorkloadClass
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import Prices, RoundCosts
from draftd.engine.drafters.base import Draft, Drafter
from draftd.engine.observer import EngineObserver, NullObserver
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.scheduler import Scheduler
from draftd.engine.sequence import DecodeSequence
from draftd.engine.targets.base import Verdict
from tests.rig import Collected

DRAFT = DRAFT_MODEL
END = 7  # what a text ends with


@dataclass
class Machine:
    """What things cost, in seconds, and how often drafts stand; both may change while it runs."""

    plain: Callable[[int], float] = lambda rows: 0.010 + 0.0015 * rows
    wider: Callable[[int, int], float] = lambda rows, width: 1 + 0.12 * (width - 1)  # beside a plain round
    step: Callable[[int], float] = lambda rows: 0.001
    take_in: float = 0.00003  # of the draft, a token
    stands: Mapping[WorkloadClass, Sequence[float]] = field(default_factory=dict)
    tempo: float = 1.0
    noise: float = 0.05
    overhead: float = 0.0003  # of a round that was not started ahead
    ends: int = 1 << 20  # tokens after which a text is over
    now: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def spend(self, seconds: float) -> None:
        self.now += seconds * self.tempo * math.exp(self.dice.gauss(0, self.noise))

    def round(self, rows: int, depth: int) -> float:
        """Seconds of a round, without noise."""
        if not depth:
            return self.plain(rows)
        return self.plain(rows) * self.wider(rows, depth + 1) + depth * self.step(rows) + self.overhead

    def best(self, rows: int, stands: Sequence[float], most: int) -> tuple[int, float]:
        """The fixed depth with the most tokens a second, and how many."""
        found = (0, 0.0)
        for depth in range(most + 1):
            tokens, reach = 1.0, 1.0
            for i in range(depth):
                reach *= stands[min(i, len(stands) - 1)]
                tokens += reach
            rate = rows * tokens / self.round(rows, depth)
            found = max(found, (depth, rate), key=lambda one: one[1])
        return found

    def prices(self, most: int, sizes: Sequence[int] = (1, 2, 4, 8), off: float = 1.0) -> Prices:
        """What a calibration would find; drafted rounds by `off` times wrong."""
        drafted = {(b, k): off * self.round(b, k) for b in sizes for k in range(1, most + 1)}
        alone = {(b, k): off * self.plain(b) * self.wider(b, k + 1) for b in sizes for k in range(1, most + 1)}
        return Prices(
            {b: self.plain(b) for b in sizes},
            {DRAFT: drafted, PROMPT_LOOKUP: alone},
            taking_in={DRAFT: self.take_in},
        )


class SimulatedVerifier:
    def __init__(self, machine: Machine) -> None:
        self._machine, self._rows = machine, list[DecodeSequence]()
        self._ahead = False

    def prefill(self, row: DecodeSequence, chunk: int) -> int | None:
        return 1

    def join(self, row: DecodeSequence) -> None:
        assert not self._ahead
        self._rows.append(row)

    def verify(self, rows: Sequence[DecodeSequence], draft: Draft, sampling: Sampling) -> Verdict:
        assert not self._ahead
        machine = self._machine
        depth = max(draft.depths)
        machine.spend(machine.plain(len(rows)) * machine.wider(len(rows), depth + 1) + machine.overhead)
        accepted = []
        for row, drafted in zip(rows, draft.depths, strict=True):
            stands = machine.stands[row.request.workload]
            n = 0
            while n < drafted and machine.dice.random() < stands[min(n, len(stands) - 1)]:
                n += 1
            accepted.append([2] * n)
        return Verdict(accepted, [self._next(row, 3, len(kept)) for row, kept in zip(rows, accepted, strict=True)])

    def advance(self, rows: Sequence[DecodeSequence], sampling: Sampling, ahead: bool) -> list[int]:
        machine = self._machine
        machine.spend(machine.plain(len(rows)) + (0.0 if self._ahead else machine.overhead))
        self._ahead = ahead
        return [self._next(row, 4) for row in rows]

    def _next(self, row: DecodeSequence, token: int, accepted: int = 0) -> int:
        return END if row.emitted + accepted + 1 >= self._machine.ends else token

    def keep(self, row: int, text: DecodeSequence) -> None:
        return None

    def refusal(self, row: int, width: int) -> str:
        return ""

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[i] for i in rows]
        self._ahead = self._ahead and bool(rows)

    def drop(self, row: DecodeSequence) -> None:
        return None

    @property
    def pending(self) -> bool:
        return self._ahead

    @property
    def nbytes(self) -> int:
        return 0


class SimulatedDrafter:
    """Keeps how far it has taken each row in."""

    nbytes = 0

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


class Simulation:
    """A scheduler on such a machine. `prices`: of the calibration, None for none."""

    def __init__(
        self,
        machine: Machine,
        most: int,
        *,
        prices: Prices | None = None,
        observer: EngineObserver | None = None,
        max_batch: int = 8,
        depth: DepthControl | None = None,
    ) -> None:
        self.machine = machine
        self.depth = depth or DepthControl(RoundCosts(prices), most)
        self.drafter = SimulatedDrafter(machine)
        drafters: dict[DrafterName, Drafter] = {DRAFT: self.drafter}
        self.scheduler = Scheduler(
            verifier=lambda: SimulatedVerifier(machine),
            drafters=lambda: drafters,
            eos=frozenset({END}),
            vocabulary=8,
            observer=observer or NullObserver(),
            max_batch=max_batch,
            prefill_chunk=512,
            clock=lambda: machine.now,
            timer=lambda: machine.now,
            depth=self.depth,
        )

    def add(self, request: DecodeRequest) -> Collected:
        sink = Collected()
        self.scheduler.add(DecodeSequence.of(request, sink, 1 << 20))
        return sink

    def run(self, requests: Sequence[DecodeRequest]) -> tuple[float, list[Collected]]:
        """Decodes them together to their ends; tokens a second, from when the last has begun."""
        sinks = [self.add(request) for request in requests]
        while not all(sink.tokens for sink in sinks):
            self.scheduler.step()
        began, had = self.machine.now, sum(len(sink.tokens) for sink in sinks)
        while not self.scheduler.idle:
            self.scheduler.step()
        return (sum(len(sink.tokens) for sink in sinks) - had) / (self.machine.now - began), sinks
