"""Asking a daemon: building one request, and gathering the stream that answers it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from draftd.client.client import Message
from draftd.core import DecodeMode, DepthMode, DraftCounts, DrafterName, ModePreference, SamplingParams, WorkloadClass
from draftd.protocol import DECODED, draft_counts
from draftd.v1 import inference_pb2 as pb


@dataclass(frozen=True)
class Ask:
    """One question to a daemon: `messages`, a raw `prompt`, or `tokens`. What is None is left to the daemon. Its `vars`
    are what `DraftdClient.generate` takes."""

    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    tokens: tuple[int, ...] | None = None
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    mode: ModePreference = ModePreference.AUTO
    max_draft_tokens: int | None = None
    drafter: DrafterName | None = None
    depth_mode: DepthMode | None = None
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the answer: was it drafted and accepted, or did the target write it?"""

    text: str
    from_draft: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer, and the daemon's own figures of it. Seconds; None where there is nothing to measure."""

    text: str
    tokens: tuple[int, ...]
    pieces: tuple[Piece, ...]
    started: pb.Started
    finished: pb.Finished

    @property
    def mode(self) -> DecodeMode:
        """The mode it was decoded in, whatever was asked."""
        return DECODED.get(self.finished.mode, DecodeMode.AUTOREGRESSIVE)

    @property
    def tokens_per_second(self) -> float | None:
        return self.finished.timings.decode_tokens_per_second or None

    @property
    def time_to_first_token(self) -> float:
        return self.finished.timings.time_to_first_token.ToTimedelta().total_seconds()

    @property
    def counts(self) -> DraftCounts:
        return draft_counts(self.finished.counts, self.finished.usage.output_tokens)


def gather(stream: Iterable[pb.GenerateResponse], on_pieces: Callable[[Sequence[Piece]], None] | None = None) -> Answer:
    """Reads the stream to its end; `on_pieces` hears of the text as it comes."""
    started, finished = pb.Started(), pb.Finished()
    tokens: list[int] = []
    pieces: list[Piece] = []
    for response in stream:
        event = response.WhichOneof("event")
        if event == "started":
            started = response.started
        elif event == "chunk":
            fresh = split(response.chunk)
            tokens += response.chunk.token_ids
            pieces += fresh
            if on_pieces is not None and fresh:
                on_pieces(fresh)
        elif event == "finished":
            finished = response.finished
    return Answer("".join(p.text for p in pieces), tuple(tokens), tuple(pieces), started, finished)


def split(chunk: pb.Chunk) -> list[Piece]:
    """The chunk's text, token by token; neighbours of one origin are joined, text past the tokens' is the target's."""
    pieces: list[Piece] = []
    rest = chunk.text
    for length, from_draft in [*zip(chunk.text_lengths, chunk.from_draft, strict=False), (len(rest), False)]:
        text, rest = rest[:length], rest[length:]
        if text and pieces and pieces[-1].from_draft == from_draft:
            pieces[-1] = Piece(pieces[-1].text + text, from_draft)
        elif text:
            pieces.append(Piece(text, from_draft))
    return pieces
