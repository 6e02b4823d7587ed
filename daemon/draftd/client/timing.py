"""Captures one answer with the arrival times of its chunks, and computes figures from them. Times are in seconds; a
figure is None if there are too few chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol, Self

import numpy as np

from draftd.client.client import Ask, CallError, DraftdClient
from draftd.client.gathering import Answer, gather
from draftd.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class TimedChunk:
    """One message of the stream. `at`: seconds since the request; `from_draft`: how many of its `tokens` were drafted
    and accepted."""

    at: float
    tokens: int
    from_draft: int


class TimedAnswer(Protocol):
    """An answer with the times of its chunks: a new capture, or a saved one."""

    @property
    def chunks(self) -> tuple[TimedChunk, ...]: ...


@dataclass(frozen=True)
class Capture:
    """One answer as it arrived. `arrivals` has the time of each of the `responses`, in seconds since the request.
    `asked_at` is Unix time; `began` is on time.perf_counter()."""

    asked_at: float
    began: float
    ended: float  # seconds since the request
    arrivals: tuple[float, ...]
    responses: tuple[pb.GenerateResponse, ...]
    failure: CallError | None = None

    @cached_property
    def answer(self) -> Answer:
        return gather(self.responses)

    @cached_property
    def chunks(self) -> tuple[TimedChunk, ...]:
        """The chunks with tokens."""
        return tuple(
            TimedChunk(at, len(response.chunk.token_ids), sum(response.chunk.from_draft))
            for at, response in zip(self.arrivals, self.responses, strict=True)
            if response.WhichOneof("event") == "chunk" and response.chunk.token_ids
        )

    @property
    def complete(self) -> bool:
        return bool(self.responses) and self.responses[-1].WhichOneof("event") == "finished"

    def raise_failure(self) -> Self:
        """Returns the capture, or raises the CallError that ended it."""
        if self.failure is not None:
            raise self.failure
        return self


def capture(client: DraftdClient, ask: Ask, *, timeout: float) -> Capture:
    """Sends a request and reads the answer to its end. A CallError is kept as `failure`, for callers that can continue
    without this answer."""
    arrivals: list[float] = []
    responses: list[pb.GenerateResponse] = []
    failure, clock = None, time.perf_counter
    asked_at, began = time.time(), clock()
    try:
        for response in client.generate_raw(ask.message(), timeout=timeout):
            arrivals.append(clock() - began)
            responses.append(response)
    except CallError as failed:
        failure = failed
    return Capture(asked_at, began, clock() - began, tuple(arrivals), tuple(responses), failure)


def time_to_first_token(answer: TimedAnswer) -> float | None:
    """Seconds from the request to the arrival of the first chunk with a token."""
    return answer.chunks[0].at if answer.chunks else None


def decode_tokens_per_second(answer: TimedAnswer) -> float | None:
    """Tokens after the first chunk, over the time since it; None with a single chunk."""
    chunks = answer.chunks
    if len(chunks) < 2 or chunks[-1].at <= chunks[0].at:
        return None
    return sum(chunk.tokens for chunk in chunks[1:]) / (chunks[-1].at - chunks[0].at)


def inter_token(answer: TimedAnswer) -> tuple[float, ...]:
    """For each token after the first chunk: a chunk of n tokens, g seconds after the one before, is n times g/n.

    This follows SGLang's serving benchmark. Otherwise several tokens in one chunk would count as one slow token."""
    return tuple(gap / tokens for gap, tokens in _gaps(answer) for _ in range(tokens))


def inter_chunk(answer: TimedAnswer) -> tuple[float, ...]:
    """Seconds between successive chunks, as a reader sees them."""
    return tuple(gap for gap, _ in _gaps(answer))


def _gaps(answer: TimedAnswer) -> Iterator[tuple[float, int]]:
    return ((later.at - earlier.at, later.tokens) for earlier, later in pairwise(answer.chunks))


def quantile(values: Sequence[float], q: float) -> float | None:
    """The quantile, interpolated as by numpy.quantile; None without values."""
    return float(np.quantile(np.asarray(values, float), q)) if len(values) else None
