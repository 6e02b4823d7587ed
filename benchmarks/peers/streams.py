"""One answer's raw timing as its client saw it, and what is computed from it. Times are seconds of one monotonic
clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Chunk:
    """Output tokens that arrived together: their time and number."""

    at: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Stream:
    """One request. `asked` and `ended` are the times of its start and end; `cached_tokens` of the prompt were reused
    from an earlier request. `error` is empty if the answer is complete."""

    prompt: str
    asked: float
    ended: float
    chunks: tuple[Chunk, ...]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str = ""

    @property
    def time_to_first_token(self) -> float | None:
        return self.chunks[0].at - self.asked if self.chunks else None

    def inter_token(self, since: float = float("-inf"), until: float = float("inf")) -> list[float]:
        """Returns the seconds between tokens, one value for each token that came in (since, until] after the first
        chunk. A chunk of n tokens that comes g seconds after the chunk before gives n values, each g/n, as in the
        acceptance harness."""
        pairs = pairwise(self.chunks)
        return [(b.at - a.at) / b.tokens for a, b in pairs if since < b.at <= until for _ in range(b.tokens)]

    def record(self, origin: float) -> dict[str, Any]:
        """Returns the stream as JSON data, with times in seconds from `origin`, rounded to microseconds."""
        chunks = [[round(chunk.at - origin, 6), chunk.tokens] for chunk in self.chunks]
        kept = {"prompt": self.prompt, "asked": round(self.asked - origin, 6), "ended": round(self.ended - origin, 6)}
        kept |= {"chunks": chunks, "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens}
        return kept | {"output_tokens": self.output_tokens, "text": self.text, "error": self.error}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Stream:
        chunks = tuple(Chunk(at, tokens) for at, tokens in record["chunks"])
        return cls(**{**record, "chunks": chunks})


def tokens_within(streams: Iterable[Stream], since: float, until: float) -> int:
    """Returns the number of output tokens that came in (since, until]."""
    return sum(chunk.tokens for stream in streams for chunk in stream.chunks if since < chunk.at <= until)


def failed(streams: Iterable[Stream]) -> None:
    """Raises RuntimeError if one of the requests was not answered."""
    for stream in streams:
        if stream.error:
            raise RuntimeError(f"{stream.prompt}: {stream.error}")


def counted(chunks: Sequence[tuple[float, int]]) -> tuple[Chunk, ...]:
    """Converts (time, tokens) to chunks, without those that hold no whole token: they are part of the wait for the next
    one."""
    return tuple(Chunk(at, tokens) for at, tokens in chunks if tokens > 0)
