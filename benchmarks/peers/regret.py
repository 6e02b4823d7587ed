"""Part `regret`: automatic depth against the best fixed depth of a sweep, in each of sixteen cells.

A cell is a workload class, a temperature and a number of requests at one time. In a cell every group of prompts is
decoded at each fixed depth and by automatic depth, one after the other in an order drawn anew, by one daemon that keeps
no prompt. Fixed depths are the draft model's, or prompt lookup's without one; automatic depth may also draft nothing,
or by prompt lookup.

The best of several noisy figures is too high: who chooses the best depth and compares with it on the same answers
asks automatic depth to beat luck. So the best depth is chosen on one half of the repetitions and each repetition of the
other half is compared with it, and the other way round; a cell's figure is the median of all of these. What it is
without that care is told beside it. Answers are of the length that the model gives them, which is a dozen tokens in one
class and all that it may write in another: a repetition of a cell goes on until it has enough tokens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.arms import Prompt, fixed_drafter
from benchmarks.peers.part import Context, Direction, Figure, Pair
from benchmarks.peers.serving import daemon, without_reuse
from benchmarks.peers.ways import AUTOMATIC, AUTOREGRESSIVE, Turn, Way, ask, fixed
from benchmarks.ratios import CLASSES
from draftd.client.client import DraftdClient

WANTED = 0.97
DEPTHS = (0, 1, 2, 3, 4, 6, 8)
_WARM_UP = 4  # prompts of each class, decoded in every way: what the daemon learns at first is another part's affair


def ways_of(pair: Pair) -> tuple[Way, ...]:
    """Fixed depths, by prompt lookup where the pair has no draft, and automatic depth."""
    drafter = fixed_drafter(pair.draft)
    return (*(fixed(depth, drafter) for depth in DEPTHS), AUTOMATIC)


@dataclass(frozen=True, slots=True)
class Cell:
    workload: str
    temperature: float
    batch: int

    @property
    def key(self) -> str:
        sampling = f"t{self.temperature:g}" if self.temperature else "greedy"
        return f"{self.workload}_{sampling}_x{self.batch}"


CELLS = tuple(Cell(name, temperature, batch) for name in CLASSES for temperature in (0.0, 0.8) for batch in (1, 4))


@dataclass(frozen=True, slots=True)
class Asked:
    """One group of prompts to decode in one way."""

    cell: Cell
    repetition: int
    group: int
    way: Way
    prompts: tuple[Prompt, ...]

    @property
    def place(self) -> dict[str, str | int]:
        return {"cell": self.cell.key, "repetition": self.repetition, "group": self.group, "way": self.way.name}

    @property
    def key(self) -> tuple[str | int, ...]:
        return tuple(self.place.values())


@dataclass(frozen=True, slots=True)
class Sample:
    """One group of prompts, decoded in one way."""

    repetition: int
    way: str
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Regret:
    name: str = "regret"
    title: str = "automatic depth over the best fixed depth, chosen on other answers than it is compared on"
    repetitions: int = 6
    least_tokens: int = 160  # of a cell in a repetition, each way
    most_groups: int = 16
    max_tokens: int = 96

    def run(self, context: Context) -> list[Figure]:
        repetitions = 2 if context.quick else self.repetitions
        answered: dict[tuple[str | int, ...], int] = {
            (one["cell"], one["repetition"], one["group"], one["way"]): Turn.of_record(one["turn"]).tokens
            for one in context.store.records()
        }
        if any(self._missing(context, repetition, answered) for repetition in range(repetitions)):
            settings: dict[str, object] = {"engine.max_draft_tokens": max(DEPTHS), "engine.max_batch": 4}
            with daemon(context.pair, settings | without_reuse()) as client:
                self._warm_up(client, context)
                began = time.perf_counter()
                for repetition in range(repetitions):
                    while missing := self._missing(context, repetition, answered):
                        for one in missing:
                            turn = ask(client, one.way, one.prompts, self.max_tokens, one.cell.temperature)
                            context.store.add(one.place | {"turn": turn.record()})
                            answered[one.key] = turn.tokens
                    context.say(f"repetition {repetition + 1}: done after {time.perf_counter() - began:.0f} s")
        return figures(context.store.records())

    def _missing(self, context: Context, repetition: int, answered: Mapping[tuple[str | int, ...], int]) -> list[Asked]:
        """The next group of each cell that has not enough tokens yet, in the order in which it is to be measured: the
        ways of a group side by side."""
        asked = []
        for cell in random.Random(f"{context.seed}/{repetition}/regret").sample(CELLS, len(CELLS)):
            found, group = 0, 0
            pool = [prompt for prompt in context.prompts if prompt.workload == cell.workload]
            while found < self.least_tokens and group < self.most_groups:
                first = (repetition * self.most_groups + group) * cell.batch
                some = tuple(pool[(first + i) % len(pool)] for i in range(cell.batch))
                all_ways = ways_of(context.pair)
                draw = random.Random(f"{context.seed}/{cell.key}/{repetition}/{group}")
                ways = draw.sample(all_ways, len(all_ways))
                whole = [Asked(cell, repetition, group, way, some) for way in ways]
                if missing := [one for one in whole if one.key not in answered]:
                    asked += missing
                    break
                found += next(answered[one.key] for one in whole if one.way is AUTOREGRESSIVE)
                group += 1
        return asked

    def _warm_up(self, client: DraftdClient, context: Context) -> None:
        for workload in CLASSES:
            pool = [prompt for prompt in context.prompts if prompt.workload == workload][-_WARM_UP:]
            for way in ways_of(context.pair):
                ask(client, way, pool[:1], self.max_tokens)
                ask(client, way, pool, self.max_tokens, 0.8)


def figures(records: Iterable[dict[str, object]]) -> list[Figure]:
    """One for each cell, and the least of all."""
    samples: dict[str, list[Sample]] = {}
    for one in records:
        turn = Turn.of_record(one["turn"])  # type: ignore[arg-type]
        sample = Sample(int(str(one["repetition"])), str(one["way"]), turn.tokens, turn.seconds)
        samples.setdefault(str(one["cell"]), []).append(sample)
    return [figure(cell.key, samples[cell.key]) for cell in CELLS if cell.key in samples]


def figure(key: str, samples: Sequence[Sample]) -> Figure:
    """What a cell's answers say. Raises ValueError with fewer than two repetitions: there is nothing to choose on."""
    halves = [[one for one in samples if one.repetition % 2 == half] for half in (0, 1)]
    if not all(halves):
        raise ValueError(f"{key}: got answers of one repetition; allowed: two or more")
    ratios, chosen = [], []
    for here, there in (halves, halves[::-1]):
        best = best_fixed(there)
        chosen.append(best)
        for repetition in sorted({one.repetition for one in here}):
            mine = [one for one in here if one.repetition == repetition]
            ratios.append(rate(mine, AUTOMATIC.name) / rate(mine, best))
    naive = best_fixed(samples)
    automatic, best_rate = rate(samples, AUTOMATIC.name), rate(samples, naive)
    detail = (
        f"{automatic:.0f} tokens/s; best on the halves: {chosen[1]}, {chosen[0]}; "
        f"on all: {naive} with {best_rate:.0f} (ratio {automatic / best_rate:.3f})"
    )
    return Figure.of_ratios(key, ratios, WANTED, Direction.AT_LEAST, detail)


def best_fixed(samples: Sequence[Sample]) -> str:
    """The fixed depth with most tokens a second."""
    ways = {one.way for one in samples} - {AUTOMATIC.name}
    return max(sorted(ways, key=int), key=lambda way: rate(samples, way))


def rate(samples: Iterable[Sample], way: str) -> float:
    """Tokens a second over all answers of a way."""
    mine = [one for one in samples if one.way == way]
    return sum(one.tokens for one in mine) / sum(one.seconds for one in mine)
