"""Part `growth`: tokens per second and memory, by the length of the context and by the batch size.

The pair accepts 4,096 tokens and its texts never end by themselves, so that all requests write equally many tokens.
Only the time in which all requests decode counts. Each result stands beside what memory allows: its bandwidth, measured
before, divided by the bytes that a step must read.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.arms import Prompt
from benchmarks.peers import bandwidth
from benchmarks.peers.bandwidth import Reading
from benchmarks.peers.codec import Codec
from benchmarks.peers.drawn import long_prompt
from benchmarks.peers.part import Context, Figure
from benchmarks.peers.serving import daemon, without_reuse
from benchmarks.peers.store import Store
from benchmarks.peers.streams import tokens_within
from benchmarks.peers.stretched import stretched
from benchmarks.peers.ways import AUTOMATIC, AUTOREGRESSIVE, Turn, Way, ask
from draftd.client.client import DraftdClient

CONTEXTS = (128, 256, 512, 1024, 2048, 4096)  # tokens of one request
BATCHES = (1, 2, 4, 8, 16)
BATCH_CONTEXT = 384  # tokens of each request in a batch; not one of CONTEXTS
_WAYS = (AUTOREGRESSIVE, AUTOMATIC)
_LOOK_SECONDS = 0.05
_PERIOD_SECONDS = 0.5  # after which the daemon reads the machine again


@dataclass(frozen=True, slots=True)
class Place:
    """A point on a curve: `batch` concurrent requests that each end at `context` tokens, prompt and answer together."""

    context: int
    batch: int

    @property
    def of_batches(self) -> bool:
        """True if it belongs to the curve over batch sizes, False for the curve over contexts."""
        return self.context == BATCH_CONTEXT

    @property
    def tokens(self) -> int:
        """Answer tokens of each request: in a batch so many that the first one still decodes when the last prompt is
        processed."""
        return self.context * 7 // 8 if self.of_batches else min(64, self.context // 2)

    @property
    def middle(self) -> float:
        """Mean length of the context while the request decodes, in tokens."""
        return self.context - self.tokens / 2


PLACES = (
    *(Place(context, 1) for context in CONTEXTS),
    *(Place(BATCH_CONTEXT, batch) for batch in BATCHES),
)


@dataclass(frozen=True, slots=True)
class Point:
    """Results at a place (context length and batch size), as medians over repetitions. `way` is the decoding
    configuration, `rate` the tokens per second of all requests together, and `tokens_a_step` the mean output tokens of
    a request's step. In each repetition, the bytes are the daemon's maximum while it decoded the place's batch."""

    place: Place
    way: str
    rate: float
    tokens_a_step: float
    kv_bytes: float
    active_bytes: float
    resident_bytes: float


@dataclass(slots=True)
class Seen:
    """Maximum bytes that a daemon reported while it was watched: of the KV cache, of MLX's active memory, and
    resident."""

    kv: int = 0
    active: int = 0
    resident: int = 0

    def look(self, client: DraftdClient) -> None:
        status = client.status()
        self.kv = max(self.kv, status.kv_cache_bytes)
        self.active = max(self.active, status.hardware.mlx_active_bytes)
        self.resident = max(self.resident, status.hardware.process_resident_bytes)


@dataclass(frozen=True, slots=True)
class Growth:
    name: str = "growth"
    title: str = "tokens per second and memory as context and batch grow, and the bound of memory bandwidth"
    repetitions: int = 3
    places: Sequence[Place] = field(default=PLACES)

    def run(self, context: Context) -> list[Figure]:
        repetitions = 1 if context.quick else self.repetitions
        records = context.store.records()
        done = {(one["context"], one["batch"], one["repetition"], one["way"]) for one in records if "turn" in one}
        rising = sorted(
            self.places, key=lambda place: place.context * place.batch
        )  # a process may keep memory that it once used
        missing = {
            repetition: [
                (place, way)
                for place in rising
                for way in random.Random(f"{context.seed}/{repetition}/{place}").sample(_WAYS, len(_WAYS))
                if (place.context, place.batch, repetition, way.name) not in done
            ]
            for repetition in range(repetitions)
        }
        if any(missing.values()):
            self._measure(context, missing)
        return figures(context.store.records())

    def draw(self, store: Store, path: Path) -> None:
        """Draws the results in `store` to the file `path`."""
        from benchmarks.peers.growth_picture import draw

        records = store.records()
        draw(points(records), *machine(records), path)

    def _measure(self, context: Context, missing: Mapping[int, Sequence[tuple[Place, Way]]]) -> None:
        codec = Codec(context.pair.model)
        settings: dict[str, object] = {
            "engine.max_batch": max(BATCHES),
            "engine.queue_capacity": 2 * max(BATCHES),  # a connection may not fill the whole queue
            "hardware.period_seconds": _PERIOD_SECONDS,
        }
        with stretched(context.pair, max(CONTEXTS), endless=True) as pair:
            speed = None
            if not any("bandwidth" in one for one in context.store.records()):
                speed = bandwidth.measured()  # before anything else runs
                context.say(f"memory: {speed / 1e9:.1f} GB/s")
            for repetition, some in missing.items():
                if some:  # a process may keep memory that it once used: each repetition has a new one
                    with daemon(pair, settings | without_reuse()) as client:
                        if speed is not None:
                            context.store.add(_machine(client, Path(pair.model), speed))
                            speed = None
                        self._repetition(context, client, codec, repetition, some)

    def _repetition(
        self,
        context: Context,
        client: DraftdClient,
        codec: Codec,
        repetition: int,
        places: Sequence[tuple[Place, Way]],
    ) -> None:
        for way in _WAYS:
            ask(client, way, context.prompts[-2:], 64)  # the warm-up is not kept
        for place, way in places:
            prompts = _prompts(context, codec, place, repetition)
            time.sleep(1.5 * _PERIOD_SECONDS)  # else the daemon would still report the memory of the place before
            with _watched(client) as seen:
                turn = ask(client, way, prompts, place.tokens)
            where = {"context": place.context, "batch": place.batch, "repetition": repetition, "way": way.name}
            memory = {"kv": seen.kv, "active": seen.active, "resident": seen.resident}
            context.store.add(where | {"turn": turn.record(), "seen": memory})
            context.say(f"context {place.context}, batch {place.batch}, {way.name}: {decoding(turn):.0f} tokens/s")


def _machine(client: DraftdClient, model: Path, speed: float) -> dict[str, float]:
    """Returns the record of what bounds the curves: memory bandwidth (bytes per second), and what a step reads."""
    number = 4 if client.status().backend.startswith("cpu") else 2  # MLX's CPU build decodes in fp32
    reading = Reading.of(model, number)
    return {
        "bandwidth": speed,
        "number_bytes": number,
        "weight_bytes": reading.weight_bytes,
        "kv_bytes_a_token": reading.kv_bytes_a_token,
    }


def _prompts(context: Context, codec: Codec, place: Place, repetition: int) -> list[Prompt]:
    draw = random.Random(f"{context.seed}/{repetition}/{place.context}/{place.batch}")
    length = place.context - place.tokens
    return [long_prompt(context.prompts, codec, length, f"{length}-{i}", draw) for i in range(place.batch)]


@contextmanager
def _watched(client: DraftdClient) -> Iterator[Seen]:
    """Polls the daemon's memory from a thread while the block runs. Yields the maxima."""
    seen, over = Seen(), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            seen.look(client)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(30)
    seen.look(client)


def decoding(turn: Turn) -> float:
    """Returns tokens per second while all requests decode: from the latest first token to the earliest last one. Raises
    ValueError if they never decode at the same time."""
    since = max(stream.chunks[0].at for stream in turn.streams)
    until = min(stream.chunks[-1].at for stream in turn.streams)
    if until <= since:
        raise ValueError(f"{len(turn.streams)} requests: one ended before another decoded; longer answers are needed")
    return tokens_within(turn.streams, since, until) / (until - since)


def points(records: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Returns the results in the order of contexts and batch sizes, one for each decoding configuration."""
    found = []
    measured = [one for one in records if "turn" in one]
    for place in sorted({Place(one["context"], one["batch"]) for one in measured}, key=lambda p: (p.context, p.batch)):
        for way in _WAYS:
            mine = [one for one in measured if (one["context"], one["batch"]) == (place.context, place.batch)]
            mine = [one for one in mine if one["way"] == way.name]
            if not mine:
                continue
            turns = [Turn.of_record(one["turn"]) for one in mine]
            found.append(
                Point(
                    place,
                    way.name,
                    statistics.median(map(decoding, turns)),
                    statistics.median(turn.tokens_a_step for turn in turns),
                    *(statistics.median(one["seen"][name] for one in mine) for name in ("kv", "active", "resident")),
                )
            )
    return found


def machine(records: Sequence[Mapping[str, Any]]) -> tuple[float, Reading]:
    """Returns memory bandwidth in bytes per second, and the bytes that a step reads. Raises ValueError if no record has
    them."""
    for one in records:
        if "bandwidth" in one:
            return one["bandwidth"], Reading(one["weight_bytes"], one["kv_bytes_a_token"])
    raise ValueError("no record has the memory bandwidth: nothing was measured")


def figures(records: Sequence[Mapping[str, Any]]) -> list[Figure]:
    speed, reading = machine(records)
    found = [Figure("memory_gigabytes_per_second", speed / 1e9, detail="read once by all cores")]
    for point in points(records):
        place = point.place
        bound = reading.tokens_per_second(speed, place.middle, place.batch, point.tokens_a_step)
        way = "automatic" if point.way == AUTOMATIC.name else "autoregressive"
        key = f"context_{place.context}_batch_{place.batch}_{way}"
        memory = f"KV {point.kv_bytes / 1e6:.0f} MB, MLX {point.active_bytes / 1e6:.0f} MB"
        memory += f", process {point.resident_bytes / 1e6:.0f} MB"
        detail = f"tokens/s; memory allows {bound:.0f}; {point.tokens_a_step:.2f} tokens a step; {memory}"
        found.append(Figure(key, point.rate, detail=detail))
    return found
