"""Part `short`: requests per second of 24 clients with prompts of 20 to 100 tokens and answers of four.

Most of such a request is its prompt, so that the result depends on how many prompts share a forward pass. The ceiling
is what forward passes alone would allow, measured in this process: 24 prompts of the mean length in one pass, and one
pass for each token of the answers.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.arms import Prompt
from benchmarks.peers.asking import AUTOMATIC, PEER, Asker, arms
from benchmarks.peers.clients import PAUSE_SECONDS
from benchmarks.peers.codec import Codec
from benchmarks.peers.drawn import long_prompt
from benchmarks.peers.load import Load, closed_loop
from benchmarks.peers.part import Context, Direction, Figure

CLIENTS, TOKENS, SHORTEST, LONGEST = 24, 4, 20, 100
_ALONE, _TOGETHER = 24, 96  # prompts of a repetition: for one client, and for 24
_FORWARDS = 5  # measurements of the ceiling, whose median counts

ONE, MANY, PEERS, CEILING = "one", "many", "peer", "ceiling"
ARMS = (ONE, MANY, PEERS, CEILING)


@dataclass(frozen=True, slots=True)
class ShortRequests:
    name: str = "short"
    title: str = "24 clients, prompts of 20 to 100 tokens, answers of four: requests a second"
    repetitions: int = 6

    def run(self, context: Context) -> list[Figure]:
        repetitions = 1 if context.quick else self.repetitions
        done = rates(context.store.records())
        missing = [turn for turn in turns_of(repetitions, context.seed) if turn not in done]
        if missing:
            self._measure(context, missing)
        return compared(rates(context.store.records()))

    def _measure(self, context: Context, turns: Sequence[tuple[int, str]]) -> None:
        codec = Codec(context.pair.model)
        ceiling = _ceiling(context.pair.model)
        with arms(context.pair, codec, CLIENTS, (AUTOMATIC, PEER)) as askers:
            for asker in askers.values():  # the warm-up is not kept
                closed_loop(asker, _prompts(context, codec, -1), CLIENTS, TOKENS)
            for repetition, arm in turns:
                prompts = _prompts(context, codec, repetition)[: _ALONE if arm == ONE else _TOGETHER]
                time.sleep(PAUSE_SECONDS)
                rate = ceiling(prompts) if arm == CEILING else _asked(askers, arm, prompts).requests_per_second
                context.say(f"{arm}: {rate:.1f} requests/s")
                context.store.add({"repetition": repetition, "arm": arm, "requests_per_second": rate})


def turns_of(repetitions: int, seed: int) -> list[tuple[int, str]]:
    """Returns (repetition, arm) in the order in which they are measured."""
    draw = random.Random(f"{seed}/short")
    return [(repetition, arm) for repetition in range(repetitions) for arm in draw.sample(ARMS, len(ARMS))]


def rates(records: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str], float]:
    return {(one["repetition"], one["arm"]): one["requests_per_second"] for one in records}


def compared(found: Mapping[tuple[int, str], float]) -> list[Figure]:
    """Returns draftd's requests per second with 24 clients divided by those of three other arms, paired by repetition:
    draftd with one client, mlx-lm's server with 24 clients, and the ceiling (if only forward passes took time)."""
    figures = []
    for base, key, wanted in ((ONE, "over_one_client", 1.9), (CEILING, "over_ceiling", 0.8), (PEERS, "over_peer", 1.0)):
        pairs = [(rate, found[n, base]) for (n, arm), rate in sorted(found.items()) if arm == MANY]
        mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        detail = f"{mine:.1f} requests/s against {theirs:.1f}"
        figures.append(Figure.of_ratios(key, [a / b for a, b in pairs], wanted, Direction.AT_LEAST, detail))
    return figures


def _asked(askers: Mapping[str, Asker], arm: str, prompts: Sequence[Prompt]) -> Load:
    return closed_loop(askers[PEER if arm == PEERS else AUTOMATIC], prompts, 1 if arm == ONE else CLIENTS, TOKENS)


def _prompts(context: Context, codec: Codec, repetition: int) -> list[Prompt]:
    """Returns the prompts of a repetition, which are the same for all arms."""
    draw = random.Random(f"{context.seed}/short/{repetition}")
    lengths = [draw.randint(SHORTEST, LONGEST) for _ in range(_TOGETHER)]
    return [long_prompt(context.prompts, codec, n, f"short-{i}", draw) for i, n in enumerate(lengths)]


def _ceiling(model: str) -> Callable[[Sequence[Prompt]], float]:
    """Returns a function that gives requests per second for such prompts if only forward passes took time."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from draftd.models.folder import ModelFolder

    loaded, _ = ModelFolder(model).open()
    mx.eval(loaded.parameters())

    def seconds(ids: Any, apart: bool) -> float:
        """Returns the seconds of all passes. With `apart` the prompts' last tokens have a pass of their own, so that
        logits are computed for them only."""
        caches = make_prompt_cache(loaded)
        began = time.perf_counter()
        if apart:
            loaded(ids[:, :-1], cache=caches)
            mx.eval([one.state for one in caches])
            ids = ids[:, -1:]
        for _ in range(TOKENS):
            ids = mx.argmax(loaded(ids, cache=caches)[:, -1:], axis=-1)
            mx.eval(ids)
        return time.perf_counter() - began

    def ceiling(prompts: Sequence[Prompt]) -> float:
        mean = sum(len(prompt.tokens) for prompt in prompts) // len(prompts)
        ids = mx.array([(prompt.tokens * LONGEST)[:mean] for prompt in prompts[:CLIENTS]])
        best = min(statistics.median(seconds(ids, apart) for _ in range(_FORWARDS)) for apart in (False, True))
        return CLIENTS / best

    return ceiling
