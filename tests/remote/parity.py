"""Checks that the text over the network is the verifier's own: prompts of all categories, greedy and seeded, at each
depth and delay, while connections are reset repeatedly."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.run import load_prompts
from draftd.v1 import inference_pb2 as pb
from tests.remote.asking import Asked, Clients, Reference, Wanted, wrong
from tests.remote.daemons import TARGET, Two

DEPTHS = (0, 1, 4, 8)
ROUND_TRIPS = (0.0, 0.015, 0.05, 0.15)
CLASSES = 4
_CLIENTS = 6
_DICE = 20_261_124


@dataclass
class Parity:
    """Results. `broken` has what was wrong, each with its request."""

    requests: int = 0
    tokens: int = 0
    remote: int = 0
    drafted: int = 0
    reopened: int = 0
    resets: int = 0
    broken: list[str] = field(default_factory=list)

    def report(self) -> str:
        return (
            f"{self.requests} requests, {self.tokens} tokens, {self.remote} of them the remote's; "
            f"{self.drafted} drafted; {self.resets} resets, {self.reopened} sequences resumed; "
            f"{len(self.broken)} wrong"
        )


def prompts(number: int) -> list[tuple[int, ...]]:
    """Returns prompts, equally many of each category."""
    found = load_prompts(TARGET, -(-number // CLASSES))
    return [one.tokens for one in found][:number]


def wanted_of(texts: Sequence[tuple[int, ...]], depth: int, most: int, number: int) -> list[Wanted]:
    """Returns each prompt greedily and with a seed of its own. Depth 0 is the remote's streaming."""
    strategy = pb.STRATEGY_SPECULATIVE if depth else pb.STRATEGY_REMOTE
    seeds = (None, 1000 + number)
    return [Wanted(text, most, seed, depth or None, strategy) for text in texts for seed in seeds]


def run(
    edges: Sequence[Two],
    reference: Reference,
    texts: Sequence[tuple[int, ...]],
    *,
    round_trips: Sequence[float] = ROUND_TRIPS,
    depths: Sequence[int] = DEPTHS,
    each: int | None = None,
    most: int = 32,
    every: tuple[int, int] = (20, 200),
    told: Callable[[str], None] = lambda line: None,
) -> Parity:
    """Sends the texts through `edges` in turn. `each` is how many of the texts are sent over each round trip at each
    depth, one part after the other; None for all. Connections are reset each time that a random number of tokens in the
    range `every` has come."""
    result = Parity()
    for number, (round_trip, depth) in enumerate(itertools.product(round_trips, depths)):
        before = result.requests
        some = texts if each is None else [texts[(number * each + n) % len(texts)] for n in range(each)]
        for two, part in zip(edges, _shared(some, len(edges), number), strict=True):
            two.network(round_trip)
            clients = Clients(two.edge.address, wanted_of(part, depth, most, number), _CLIENTS)
            result.resets += _disturbed(two, clients, every, number)
            for one in clients.asked:
                _judge(result, one, reference)
        done = result.requests - before
        told(f"round trip {1000 * round_trip:.0f} ms, depth {depth}: {done} requests; {result.report()}")
    return result


def _shared(texts: Sequence[tuple[int, ...]], edges: int, turn: int) -> list[list[tuple[int, ...]]]:
    return [[*texts[(edge + turn) % edges :: edges]] for edge in range(edges)]


def _disturbed(two: Two, clients: Clients, every: tuple[int, int], number: int) -> int:
    """Resets connections until all was asked, each time that so many tokens have come."""
    dice, resets = random.Random(_DICE + number), 0
    least = dice.randint(*every)
    while not clients.done:
        time.sleep(0.005)
        if clients.received >= least and clients.streaming():
            two.proxy.reset()
            resets += 1
            least = clients.received + dice.randint(*every)
    return resets


def _judge(result: Parity, one: Asked, reference: Reference) -> None:
    result.requests += 1
    result.tokens += len(one.tokens)
    result.remote += one.remote_tokens
    if one.finished is not None:
        result.drafted += one.finished.counts.drafted_tokens
        result.reopened += one.finished.remote.reopened
    why = wrong(one, [reference], reference)
    if not why and one.error:
        why = f"it ended with {one.error}"
    elif not why and one.remote_tokens < len(one.tokens):
        why = f"{len(one.tokens) - one.remote_tokens} tokens are not the remote's"
    if why:
        result.broken.append(f"{one.wanted.strategy} depth {one.wanted.depth}, seed {one.wanted.seed}: {why}")
