"""Drafters: who guesses the next tokens, so that the target can judge several in one forward pass.

A draft model (small, same tokenizer) and prompt lookup (n-grams of prompt and output; no weights) stand behind one
seam. Drafters are handed the rows that want a draft this round and answer with one `Draft`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from draftd.engine.sampling.transforms import Sampling, one_hot
from draftd.engine.sequence import DecodeSequence


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals for a list of rows. `tokens`: rows × k, uint32; row i's first `depths[i]` are real.

    `q`: rows × k × vocabulary, the transformed distributions they were drawn from; None when all rows are settled.
    `forwards[i]`: forward passes of a draft model spent on row i. `lag`: the most tokens of a row that the first of
    them took in.
    """

    tokens: mx.array
    depths: list[int]
    q: mx.array | None
    forwards: list[int]
    lag: int = 0


class Drafter(Protocol):
    """Called on the engine thread only. What it raises costs its rows their speculation, never their text."""

    def prefill(self, row: DecodeSequence, chunk: int) -> bool:
        """Takes in up to `chunk` more tokens of the prompt of a newcomer; True once there are none left."""
        ...

    def propose(self, rows: Sequence[DecodeSequence], depths: Sequence[int], sampling: Sampling) -> Draft: ...

    def behind(self, row: DecodeSequence) -> int | None:
        """Tokens of the row's text that it has not taken in, the last aside; None where it does not know the row."""
        ...

    def follow(self, rows: Sequence[DecodeSequence], chunk: int) -> None:
        """Takes in up to `chunk` tokens of running rows that it does not know, or lags behind."""
        ...

    def reach(self, row: DecodeSequence, most: int) -> int:
        """How many tokens, up to `most`, it could propose now for a row that it knows."""
        ...

    def leave(self, row: DecodeSequence) -> None:
        """Forgets a row; one that it never knew is no error."""
        ...

    def close(self) -> None:
        """Lets go of everything, the weights too."""
        ...

    @property
    def nbytes(self) -> int: ...


class _NgramIndex:
    """Where each n-gram of a growing text last ended, longest first. The text's own last n-gram is not its match."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in sizes]
        self._indexed = 0  # n-grams ending at or before this position are in the index

    def continuation(self, tokens: list[int], depth: int) -> list[int]:
        """Up to `depth` tokens that followed; empty where no n-gram recurs."""
        for end in range(self._indexed + 1, len(tokens)):
            for size, ends in zip(self._sizes, self._ends, strict=True):
                if end >= size:
                    ends[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens) - 1
        for size, ends in zip(self._sizes, self._ends, strict=True):
            at = ends.get(tuple(tokens[-size:]))
            if at is not None:
                return tokens[at : at + depth]
        return []


def merge(parts: Sequence[tuple[Sequence[int], Draft]], rows: int, vocabulary: int, settled: bool) -> Draft | None:
    """One draft for all `rows` from the drafts of groups of them; each part names the rows it is for.

    None when nobody proposed anything.
    """
    k = max((max(draft.depths, default=0) for _, draft in parts), default=0)
    if k == 0:
        return None
    if len(parts) == 1 and list(parts[0][0]) == list(range(rows)):
        return parts[0][1]
    tokens: list[mx.array] = [mx.zeros((1, k), dtype=mx.uint32)] * rows
    q: list[mx.array] = [] if settled else [mx.zeros((1, k, vocabulary))] * rows
    depths, forwards = [0] * rows, [0] * rows
    for members, draft in parts:
        short = k - draft.tokens.shape[1]
        padded = mx.pad(draft.tokens, [(0, 0), (0, short)]) if short else draft.tokens
        for i, row in enumerate(members):
            tokens[row] = padded[i : i + 1]
            depths[row], forwards[row] = draft.depths[i], draft.forwards[i]
            if not settled:
                own = draft.q[i : i + 1] if draft.q is not None else one_hot(draft.tokens[i : i + 1], vocabulary)
                q[row] = mx.pad(own, [(0, 0), (0, short), (0, 0)]) if short else own
    lag = max(draft.lag for _, draft in parts)
    return Draft(mx.concatenate(tokens), depths, None if settled else mx.concatenate(q), forwards, lag)
