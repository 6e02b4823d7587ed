"""Part `open`: requests that arrive at random times (Poisson), whether or not earlier ones are answered.

The rates are fractions of draftd's capacity: its answers per second to eight clients in a closed loop. All arms get the
same prompts at the same times. Goodput is answers per second whose time to the first token and 95th percentile of the
time between tokens are within bounds. The bounds are multiples of what a single autoregressive stream needs. A
request's time begins when it was due, even if it was sent later, so that a backlog counts.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.arms import Prompt
from benchmarks.peers.asking import ANSWER_SECONDS, ARMS, AUTOMATIC, AUTOREGRESSIVE, Asker, arms, arms_of
from benchmarks.peers.codec import Codec
from benchmarks.peers.load import closed_loop, together
from benchmarks.peers.long_prompts import settle
from benchmarks.peers.part import Context, Figure
from benchmarks.peers.streams import Stream
from draftd.client.timing import quantile


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a good answer, in seconds: the time to the first token, and the 95th percentile of the time between
    tokens."""

    first_token: float
    inter_token: float

    def hold(self, stream: Stream) -> bool:
        """Returns True if the answer is complete and within both limits."""
        first = stream.time_to_first_token
        if stream.error or first is None:
            return False
        between = quantile(stream.inter_token(), 0.95)
        return first <= self.first_token and (between is None or between <= self.inter_token)

    @classmethod
    def of(cls, alone: Sequence[Stream], first_times: float, between_times: float) -> Bounds:
        """Computes the limits as multiples of the medians over `alone`, answers that were decoded one at a time."""
        first = [stream.time_to_first_token for stream in alone if stream.time_to_first_token is not None]
        between = [gap for stream in alone for gap in stream.inter_token()]
        return cls(first_times * statistics.median(first), between_times * statistics.median(between))


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Answers to the requests that arrived within `seconds`. A stream's `asked` is the time at which it was due."""

    streams: tuple[Stream, ...]
    seconds: float

    def goodput(self, bounds: Bounds) -> float:
        return sum(map(bounds.hold, self.streams)) / self.seconds

    @property
    def rate(self) -> float:
        return len(self.streams) / self.seconds

    def first_token_p95(self) -> float:
        """Returns the 95th percentile of the seconds to the first token: infinite if more than a twentieth of the
        answers have none."""
        firsts = [stream.time_to_first_token for stream in self.streams]
        if sum(first is None for first in firsts) > 0.05 * len(firsts):
            return float("inf")
        return quantile([first for first in firsts if first is not None], 0.95) or 0.0


@dataclass(frozen=True, slots=True)
class OpenLoop:
    name: str = "open"
    title: str = "open loop: answers per second within a bound on the first token and between tokens"
    fractions: tuple[float, ...] = (0.3, 0.6, 0.9)  # of draftd's capacity
    seconds: float = 10.0  # during which requests arrive
    grace_seconds: float = 5.0  # after that, for the last answers
    first_token_times: float = 10.0  # limits, as multiples of a single stream's medians
    inter_token_times: float = 4.0
    max_tokens: int = 128

    def run(self, context: Context) -> list[Figure]:
        fractions = self.fractions[1:2] if context.quick else self.fractions
        seconds = 4.0 if context.quick else self.seconds
        known = context.store.records()
        wanted = len(fractions) * len(arms_of(context.pair))
        if not any(one["kind"] == "capacity" for one in known) or len(cells(known)) < wanted:
            with arms(context.pair, Codec(context.pair.model), 16) as askers:
                self._measure(context, askers, fractions, seconds)
        return compared(context.store.records())

    def _measure(
        self, context: Context, askers: Mapping[str, Asker], fractions: Sequence[float], seconds: float
    ) -> None:
        known = context.store.records()
        for asker in askers.values():  # the warm-up is not kept
            closed_loop(asker, context.prompts[-8:], 4, self.max_tokens)
        found = next((one for one in known if one["kind"] == "capacity"), None)
        if found is None:
            alone = closed_loop(askers[AUTOREGRESSIVE], context.prompts[:4], 1, self.max_tokens)
            bounds = Bounds.of(alone.streams, self.first_token_times, self.inter_token_times)
            full = closed_loop(askers[AUTOMATIC], context.prompts[8:40], 8, self.max_tokens)
            found = {"kind": "capacity", "requests_per_second": full.requests_per_second, "bounds": asdict(bounds)}
            context.store.add(found | {"alone": alone.record(), "full": full.record()})
        capacity = found["requests_per_second"]
        context.say(f"capacity {capacity:.1f} requests/s")
        done = cells(known)
        draw = random.Random(f"{context.seed}/open")
        for fraction in draw.sample(fractions, len(fractions)):
            times = arrivals(capacity * fraction, seconds, random.Random(f"{context.seed}/{fraction}"))
            first = draw.randrange(len(context.prompts))
            prompts = [context.prompts[(first + i) % len(context.prompts)] for i in range(len(times))]
            for arm in draw.sample(tuple(askers), len(askers)):
                if (fraction, arm) in done:
                    continue
                origin, streams = self._arrive(askers[arm], prompts, times, seconds)
                settle(askers[arm], context.prompts[0])
                context.say(f"{fraction:g} of capacity, {arm}: {sum(not s.error for s in streams)} of {len(streams)}")
                place = {"kind": "arrivals", "fraction": fraction, "arm": arm, "seconds": seconds}
                context.store.add(place | {"streams": [stream.record(origin) for stream in streams]})

    def _arrive(
        self, asker: Asker, prompts: Sequence[Prompt], times: Sequence[float], seconds: float
    ) -> tuple[float, list[Stream]]:
        """Sends each prompt when it is due and records the answers until the grace period ends. Returns the time that
        the prompts' times count from, and the answers."""
        origin = time.perf_counter() + 0.1
        until = origin + seconds + self.grace_seconds
        streams: list[Stream] = []

        def one(prompt: Prompt, due: float) -> Callable[[], None]:
            def task() -> None:
                time.sleep(max(0.0, due - time.perf_counter()))
                streams.append(replace(asker.ask(prompt, self.max_tokens, until), asked=due))

            return task

        tasks = [one(prompt, origin + at) for prompt, at in zip(prompts, times, strict=True)]
        together(tasks, seconds + self.grace_seconds + ANSWER_SECONDS)
        return origin, streams


def arrivals(rate: float, seconds: float, draw: random.Random) -> list[float]:
    """Returns the times of a Poisson process's events at `rate` per second, in (0, seconds); at least one."""
    found: list[float] = []
    at = draw.expovariate(rate)
    while at < seconds:
        found.append(at)
        at += draw.expovariate(rate)
    return found or [seconds / 2]


def cells(records: Sequence[Mapping[str, Any]]) -> dict[tuple[float, str], Arrivals]:
    """Returns the stored answers by (fraction of the capacity, arm)."""
    return {
        (one["fraction"], one["arm"]): Arrivals(tuple(map(Stream.of_record, one["streams"])), one["seconds"])
        for one in records
        if one["kind"] == "arrivals"
    }


def compared(records: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Returns the capacity, the two limits, and the goodput by fraction of the capacity and arm. A goodput's `detail`
    names the 95th percentile of the time to the first token. No result has a required value."""
    capacity = next(one for one in records if one["kind"] == "capacity")
    bounds = Bounds(**capacity["bounds"])
    figures = [
        Figure("capacity", capacity["requests_per_second"], detail="requests/s, draftd, eight clients"),
        Figure("bound_first_token", bounds.first_token, detail="seconds"),
        Figure("bound_inter_token_p95", bounds.inter_token, detail="seconds, of each answer"),
    ]
    found = cells(records)
    for fraction, arm in sorted(found, key=lambda cell: (cell[0], ARMS.index(cell[1]))):
        came = found[fraction, arm]
        detail = f"answers/s of {came.rate:.1f} that came; first token p95 {came.first_token_p95():.2f} s"
        figures.append(Figure(f"goodput_{round(100 * fraction)}_percent_{arm}", came.goodput(bounds), detail=detail))
    return figures
