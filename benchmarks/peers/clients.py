"""Part `clients`: tokens per second of 1 to 16 clients in a closed loop, with draftd and with mlx-lm's server.

A client in a closed loop sends its next prompt when the last one is answered. In a repetition all arms get the same
prompts for a number of clients, in a random order and after a pause. New servers are started for every second
repetition.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.arms import Prompt
from benchmarks.peers.asking import ARMS, AUTOMATIC, AUTOREGRESSIVE, PEER, PEER_DRAFT, arms, arms_of
from benchmarks.peers.codec import Codec
from benchmarks.peers.load import Load, closed_loop
from benchmarks.peers.part import Context, Direction, Figure

PAUSE_SECONDS = 0.1  # longer than OpenBLAS's threads spin after their last product

Loads = Mapping[tuple[int, int, str], Load]  # by repetition, clients, arm


@dataclass(frozen=True, slots=True)
class Clients:
    name: str = "clients"
    title: str = "closed loop: total tokens per second, medians of the ratios of repetitions"
    counts: tuple[int, ...] = (1, 2, 4, 8, 16)
    quick_counts: tuple[int, ...] = (1, 4, 8)
    repetitions: int = 4
    together: int = 2  # repetitions that use the same processes, which take a while to start
    max_tokens: int = 128

    def run(self, context: Context) -> list[Figure]:
        repetitions = 1 if context.quick else self.repetitions
        counts = self.quick_counts if context.quick else self.counts
        codec = Codec(context.pair.model)
        kept = loads(context.store.records())
        names = arms_of(context.pair)
        turns = [(r, *turn) for r in range(repetitions) for turn in turns_of(counts, r, context.seed, names)]
        for first in range(0, repetitions, self.together):
            served = range(first, first + self.together)
            missing = [turn for turn in turns if turn[0] in served and turn not in kept]
            if missing:
                began = time.perf_counter()
                self._measure(context, codec, missing, max(counts))
                done = missing[-1][0] + 1
                context.say(f"{done} of {repetitions} repetitions: {time.perf_counter() - began:.0f} s")
        found = loads(context.store.records())
        return [*compared(found, counts), *same_texts(found)]

    def _measure(self, context: Context, codec: Codec, turns: Sequence[tuple[int, int, str]], most: int) -> None:
        with arms(context.pair, codec, most) as askers:
            for asker in askers.values():  # the warm-up is not kept
                closed_loop(asker, context.prompts[-8:], 4, self.max_tokens)
            for repetition, clients, arm in turns:
                prompts = self._prompts(context, repetition, clients)
                time.sleep(PAUSE_SECONDS)
                load = closed_loop(askers[arm], prompts, clients, self.max_tokens)
                context.say(f"{clients} clients, {arm}: {load.tokens_per_second:.0f} tokens/s")
                place = {"repetition": repetition, "clients": clients, "arm": arm}
                context.store.add(place | {"load": load.record()})

    def _prompts(self, context: Context, repetition: int, clients: int) -> list[Prompt]:
        """Returns max(12, 3 × clients) prompts, or max(12, 2 × clients) in a quick measurement. Each category (class)
        has equally many."""
        number = max(12, (2 if context.quick else 3) * clients)
        first = 4 * random.Random(f"{context.seed}/{repetition}/{clients}").randrange(len(context.prompts) // 4)
        twice = [*context.prompts, *context.prompts]
        return twice[first : first + number]


def turns_of(counts: Sequence[int], repetition: int, seed: int, names: Sequence[str] = ARMS) -> list[tuple[int, str]]:
    """Returns (number of clients, arm) in the order in which they are measured: random, with all arms of a number in a
    row."""
    draw = random.Random(f"{seed}/{repetition}/turns")
    return [(count, arm) for count in draw.sample(counts, len(counts)) for arm in draw.sample(names, len(names))]


def loads(records: Sequence[dict[str, Any]]) -> dict[tuple[int, int, str], Load]:
    return {(one["repetition"], one["clients"], one["arm"]): Load.of_record(one["load"]) for one in records}


# arm that is divided by, name in the result's key, required ratio, numbers of clients that must reach it (None: all)
_CLAIMS: tuple[tuple[str, str, float, tuple[int, ...] | None], ...] = (
    (AUTOREGRESSIVE, "own_autoregressive", 1.0, (4, 8)),
    (PEER_DRAFT, "peer_with_draft", 1.5, (4, 8)),
    (PEER, "peer", 1.0, None),
)


def compared(found: Loads, counts: Sequence[int]) -> list[Figure]:
    """Returns ratios of tokens per second, by number of clients and paired by repetition: draftd's automatic arm over
    each other one that was measured, and draftd's autoregressive arm over the peer."""
    figures = []
    measured = {arm for _, _, arm in found}
    for base, name, wanted, at in _CLAIMS:
        if base == PEER_DRAFT and base not in measured:
            continue
        for clients in counts:
            asked = at is None or clients in at
            figures.append(_ratio(found, clients, AUTOMATIC, base, f"{clients}_clients_vs_{name}", wanted, asked))
    for clients in counts:
        figures.append(_ratio(found, clients, AUTOREGRESSIVE, PEER, f"{clients}_clients_autoregressive_vs_peer"))
    return figures


def _ratio(
    found: Loads, clients: int, arm: str, base: str, key: str, wanted: float = 1.0, asked: bool = False
) -> Figure:
    """Returns tokens per second of `arm` divided by those of `base`: the median and range over repetitions. Raises
    ValueError if no repetition has both."""
    pairs = [
        (load.tokens_per_second, found[repetition, clients, base].tokens_per_second)
        for (repetition, count, name), load in sorted(found.items(), key=lambda item: item[0])
        if count == clients and name == arm and (repetition, clients, base) in found
    ]
    if not pairs:
        raise ValueError(f"no repetition measured both the arms {arm} and {base} with {clients} clients")
    quotients = [mine / theirs for mine, theirs in pairs]
    rates = [statistics.median(side) for side in zip(*pairs, strict=True)]
    detail = f"{rates[0]:.0f} tokens/s against {rates[1]:.0f}"
    return Figure.of_ratios(key, quotients, wanted if asked else None, Direction.AT_LEAST, detail)


def same_texts(found: Loads) -> list[Figure]:
    """Returns for each arm the share of its greedy texts that equal draftd's autoregressive text of the prompt. Only
    draftd's automatic arm must reach 1. The peer's share shows whether the rates are of the same work."""
    texts: dict[str, dict[tuple[int, int, str], str]] = {arm: {} for arm in ARMS}
    for (repetition, clients, arm), load in found.items():
        for stream in load.streams:
            texts[arm][repetition, clients, stream.prompt] = stream.text
    figures = []
    for arm in (AUTOMATIC, PEER, PEER_DRAFT):
        if arm == PEER_DRAFT and not texts[arm]:
            continue
        same = [text == texts[AUTOREGRESSIVE].get(place) for place, text in texts[arm].items()]
        wanted = arm == AUTOMATIC
        figures.append(
            Figure(
                f"same_greedy_text_{arm}",
                sum(same) / len(same) if same else float("nan"),
                1.0 if wanted else None,
                Direction.AT_LEAST if wanted else None,
                f"{sum(same)} of {len(same)} answers",
            )
        )
    return figures
