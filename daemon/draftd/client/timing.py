"""One answer, timed where it arrives, and the figures of its chunks: seconds, or None if there are too few."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol, Self

import numpy as np

from draftd.client.client import Answer, Ask, CallError, DraftdClient, gather
from draftd.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class TimedChunk:
    """One message: `at` seconds after it was asked, `tokens` in it, `from_draft` of them drafted and accepted."""

    at: float
    tokens: int
    from_draft: int


class TimedAnswer(Protocol):
    """An answer with the times of its chunks: one that was just captured, or a record of one."""

    @property
    def chunks(self) -> tuple[TimedChunk, ...]: ...


@dataclass(frozen=True)
class Capture:
    """`arrivals` run parallel to `responses`, in seconds since it was asked. `asked_at` is Unix time, `began`
    time.perf_counter()."""

    asked_at: float
    began: float
    ended: float  # in seconds since it was asked
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
        """Itself. Raises the CallError that ended it."""
        if self.failure is not None:
            raise self.failure
        return self


def capture(client: DraftdClient, ask: Ask, *, timeout: float) -> Capture:
    """Asks, and hears the answer to its end. A CallError is `failure`, for callers that continue without one answer."""
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
    """From asking to the first chunk with a token, as it arrives."""
    return answer.chunks[0].at if answer.chunks else None


def decode_tokens_per_second(answer: TimedAnswer) -> float | None:
    """Tokens after the first chunk, over the time since it; None with a single chunk."""
    chunks = answer.chunks
    if len(chunks) < 2 or chunks[-1].at <= chunks[0].at:
        return None
    return sum(chunk.tokens for chunk in chunks[1:]) / (chunks[-1].at - chunks[0].at)


def inter_token(answer: TimedAnswer) -> tuple[float, ...]:
    """For each token after the first chunk: a chunk of n tokens, g seconds after the one before, is n times g/n.

    SGLang's serving benchmark does so; without it several tokens that come together would be one slow token."""
    return tuple(gap / tokens for gap, tokens in _gaps(answer) for _ in range(tokens))


def inter_chunk(answer: TimedAnswer) -> tuple[float, ...]:
    """Between successive chunks: what one who reads along sees."""
    return tuple(gap for gap, _ in _gaps(answer))


def _gaps(answer: TimedAnswer) -> Iterator[tuple[float, int]]:
    return ((later.at - earlier.at, later.tokens) for earlier, later in pairwise(answer.chunks))


def quantile(values: Sequence[float], q: float) -> float | None:
    """Between two values it is interpolated, as numpy.quantile does; None without values."""
    return float(np.quantile(np.asarray(values, float), q)) if len(values) else None
