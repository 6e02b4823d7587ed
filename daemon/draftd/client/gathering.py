"""Gathers the events of a stream into one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from draftd.core import DecodeMode
from draftd.counts import DraftCounts
from draftd.protocol import DECODED, draft_counts
from draftd.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the answer. `from_draft`: it was drafted and accepted; otherwise the target wrote it. `remote`: the
    verifier was the remote of the daemon that was called."""

    text: str
    from_draft: bool
    remote: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer with the daemon's figures about it. Times are in seconds, and None if there is nothing to
    measure."""

    text: str
    tokens: tuple[int, ...]
    pieces: tuple[Piece, ...]
    started: pb.Started
    finished: pb.Finished
    reasoning: str = ""
    tool_calls: tuple[pb.ToolCall, ...] = ()

    @property
    def mode(self) -> DecodeMode:
        """The mode in which the answer was decoded, whichever was requested."""
        return DECODED.get(self.finished.mode, DecodeMode.AUTOREGRESSIVE)

    @property
    def tokens_per_second(self) -> float | None:
        timings = self.finished.timings
        return timings.decode_tokens_per_second if timings.HasField("decode_tokens_per_second") else None

    @property
    def time_to_first_token(self) -> float:
        return self.finished.timings.time_to_first_token.ToTimedelta().total_seconds()

    @property
    def counts(self) -> DraftCounts:
        return draft_counts(self.finished.counts, self.finished.usage.output_tokens)


def gather(
    stream: Iterable[pb.GenerateResponse],
    on_pieces: Callable[[Sequence[Piece]], None] | None = None,
    on_reasoning: Callable[[str], None] | None = None,
    on_wait: Callable[[pb.GenerateResponse], None] | None = None,
) -> Answer:
    """Reads the stream to its end. `on_pieces` receives the text as it arrives and `on_reasoning` the thoughts.
    `on_wait` receives the events before the answer: `loading` and `prompt_progress`."""
    started, finished = pb.Started(), pb.Finished()
    tokens: list[int] = []
    pieces: list[Piece] = []
    deltas: list[pb.Delta] = []
    for response in stream:
        event = response.WhichOneof("event")
        if event == "started":
            started = response.started
        elif event == "chunk":
            fresh = split(response.chunk)
            tokens += response.chunk.token_ids
            deltas += response.chunk.deltas
            if on_reasoning is not None and (thought := "".join(one.reasoning for one in response.chunk.deltas)):
                on_reasoning(thought)
            pieces += fresh
            if on_pieces is not None and fresh:
                on_pieces(fresh)
        elif event == "finished":
            finished = response.finished
        elif on_wait is not None:
            on_wait(response)
    reasoning = "".join(delta.reasoning for delta in deltas)
    calls = tuple(delta.tool_call for delta in deltas if delta.HasField("tool_call"))
    return Answer("".join(p.text for p in pieces), tuple(tokens), tuple(pieces), started, finished, reasoning, calls)


def split(chunk: pb.Chunk) -> list[Piece]:
    """Splits the chunk's text by origin: neighbouring tokens of one origin are joined. Text after the last token counts
    as the target's."""
    pieces: list[Piece] = []
    rest, remote = chunk.text, chunk.verifier == pb.VERIFIER_REMOTE
    for length, from_draft in [*zip(chunk.text_lengths, chunk.from_draft, strict=False), (len(rest), False)]:
        text, rest = rest[:length], rest[length:]
        if text and pieces and pieces[-1].from_draft == from_draft:
            pieces[-1] = Piece(pieces[-1].text + text, from_draft, remote)
        elif text:
            pieces.append(Piece(text, from_draft, remote))
    return pieces
