"""Part `regret`: automatic depth against the best fixed depth, in each of sixteen cells.

A cell is a prompt category (class), a temperature and a number of concurrent requests. Each group of prompts is decoded
at every fixed depth and with automatic depth, one after the other in a random order, by one daemon without a prefix
store. Fixed depths use the draft model, or prompt lookup without one. Automatic depth may also draft nothing, or use
prompt lookup.

The best of several noisy numbers is biased upwards. If the best depth were chosen on the answers it is compared on,
automatic depth would have to beat luck. So the best depth is chosen on one half of the repetitions, and each repetition
of the other half is compared with it; then the halves swap. A cell's result is the median of all these ratios. The
ratio without this care stands beside it. An answer has a dozen tokens in one category and the maximum in another, so a
repetition of a cell goes on until it has enough tokens.
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
_WARM_UP = 4  # prompts of each category (class), decoded first: another part measures what the daemon learns from them


def ways_of(pair: Pair) -> tuple[Way, ...]:
    """Returns the decoding configurations that are compared: the fixed depths, by prompt lookup if the pair has no
    draft, and automatic depth."""
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
    """One group of prompts to decode in one decoding configuration (`way`)."""

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
    """Output tokens and seconds of one group of prompts in one decoding configuration (`way`)."""

    repetition: int
    way: str
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Regret:
    name: str = "regret"
    title: str = "automatic depth over the best fixed depth, chosen on other answers than it is compared on"
    repetitions: int = 6
    least_tokens: int = 160  # minimum of a cell in a repetition
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
        """Returns what to measure next in a repetition: for each cell (category, temperature and number of concurrent
        requests) that has not enough tokens yet, its next group in each decoding configuration. The order is random,
        with the configurations of a group in a row."""
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
    """Returns a result for each measured cell: each combination of prompt category (class), temperature and number of
    concurrent requests."""
    samples: dict[str, list[Sample]] = {}
    for one in records:
        turn = Turn.of_record(one["turn"])  # type: ignore[arg-type]
        sample = Sample(int(str(one["repetition"])), str(one["way"]), turn.tokens, turn.seconds)
        samples.setdefault(str(one["cell"]), []).append(sample)
    return [figure(cell.key, samples[cell.key]) for cell in CELLS if cell.key in samples]


def figure(key: str, samples: Sequence[Sample]) -> Figure:
    """Returns a cell's tokens per second with automatic depth divided by those at the best fixed depth. The best
    depth is chosen on the odd repetitions and compared on the even ones, and the reverse. Raises ValueError unless both
    odd and even repetitions were measured."""
    halves = [[one for one in samples if one.repetition % 2 == half] for half in (0, 1)]
    if not all(halves):
        raise ValueError(f"{key}: got answers of one repetition only; allowed: two or more repetitions")
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
    """Returns the name of the fixed depth with the most tokens per second."""
    ways = {one.way for one in samples} - {AUTOMATIC.name}
    return max(sorted(ways, key=int), key=lambda way: rate(samples, way))


def rate(samples: Iterable[Sample], way: str) -> float:
    """Returns tokens per second over all samples of a decoding configuration."""
    mine = [one for one in samples if one.way == way]
    return sum(one.tokens for one in mine) / sum(one.seconds for one in mine)
