"""Decoding configurations (ways) that a request can ask of a daemon: a fixed depth, automatic depth, or no drafts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.arms import Prompt
from benchmarks.peers.load import together
from benchmarks.peers.streams import Stream, counted, failed
from draftd.client.client import DraftdClient
from draftd.core import DepthMode, DrafterName, ModePreference, SamplingParams, WorkloadClass

_ANSWER_SECONDS = 600.0  # without OpenBLAS, and beside fifteen others, an answer may take minutes


@dataclass(frozen=True, slots=True)
class Way:
    """A decoding configuration that a request asks for. `depth` is the maximum of draft tokens a step, None for the
    daemon's limit. `drafter` None is the daemon's default."""

    name: str
    mode: ModePreference
    depth: int | None = None
    depth_mode: DepthMode | None = None
    drafter: DrafterName | None = None


AUTOMATIC = Way("automatic", ModePreference.SPECULATIVE, None, DepthMode.AUTOMATIC)
AUTOREGRESSIVE = Way("0", ModePreference.AUTOREGRESSIVE)


def fixed(depth: int, drafter: DrafterName | None = None) -> Way:
    """Returns the configuration that drafts `depth` tokens in each step; 0 is autoregressive decoding."""
    return Way(str(depth), ModePreference.SPECULATIVE, depth, DepthMode.FIXED, drafter) if depth else AUTOREGRESSIVE


@dataclass(frozen=True, slots=True)
class Turn:
    """Complete answers to prompts that were sent at once. `steps` counts the decode steps of all requests, the ones
    that give the first tokens included; `drafted` counts their draft tokens."""

    streams: tuple[Stream, ...]
    steps: int
    drafted: int = 0

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for stream in self.streams for chunk in stream.chunks)

    @property
    def seconds(self) -> float:
        """Seconds from the first request to the end of the last answer."""
        return max(one.ended for one in self.streams) - min(one.asked for one in self.streams)

    @property
    def tokens_a_step(self) -> float:
        """Mean output tokens of a request's step, its first step left out."""
        steps = self.steps - len(self.streams)
        return (self.tokens - len(self.streams)) / steps if steps else 1.0

    def record(self) -> dict[str, Any]:
        """Returns the answers as JSON data, with times in seconds from the first request."""
        origin = min(stream.asked for stream in self.streams)
        return {
            "streams": [stream.record(origin) for stream in self.streams],
            "steps": self.steps,
            "drafted": self.drafted,
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Turn:
        return cls(tuple(map(Stream.of_record, record["streams"])), record["steps"], record["drafted"])


def ask(client: DraftdClient, way: Way, prompts: Sequence[Prompt], max_tokens: int, temperature: float = 0.0) -> Turn:
    """Sends all `prompts` at once, without a seed, and returns the answers. Raises RuntimeError if one is not
    answered."""
    found: list[tuple[Stream, int, int]] = []
    sampling = SamplingParams(temperature=temperature)

    def one(prompt: Prompt) -> None:
        found.append(_answer(client, way, prompt, max_tokens, sampling))

    if len(prompts) == 1:
        one(prompts[0])  # not on a new thread, whose start would count
    else:
        together([lambda prompt=prompt: one(prompt) for prompt in prompts], _ANSWER_SECONDS)  # type: ignore[misc]
    streams = tuple(stream for stream, _, _ in found)
    failed(streams)
    return Turn(streams, sum(steps for _, steps, _ in found), sum(drafted for _, _, drafted in found))


def _answer(
    client: DraftdClient, way: Way, prompt: Prompt, max_tokens: int, sampling: SamplingParams
) -> tuple[Stream, int, int]:
    chunks: list[tuple[float, int]] = []
    steps, drafted, said = 0, 0, (0, 0, 0)
    asked = time.perf_counter()
    for response in client.generate(
        tokens=prompt.tokens,
        max_tokens=max_tokens,
        sampling=sampling,
        mode=way.mode,
        max_draft_tokens=way.depth,
        depth_mode=way.depth_mode,
        drafter=way.drafter,
        workload=WorkloadClass(prompt.workload),
        timeout=_ANSWER_SECONDS,
    ):
        if response.HasField("chunk"):
            chunks.append((time.perf_counter(), len(response.chunk.token_ids)))
        elif response.HasField("finished"):
            usage, counts = response.finished.usage, response.finished.counts
            steps, drafted = counts.steps, counts.drafted_tokens
            said = (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens)
    return Stream(prompt.id, asked, time.perf_counter(), counted(chunks), *said), steps, drafted
