from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from draftd.engine.drafters.base import Draft, _NgramIndex
from draftd.engine.sampling.transforms import Sampling, one_hot
from draftd.engine.sequence import DecodeSequence


class PromptLookup:
    """Drafts by repeating what followed the last n-gram where it stood before in prompt or output."""

    def __init__(self, vocabulary: int, sizes: tuple[int, ...] = (3, 2)) -> None:
        self._vocabulary = vocabulary
        self._sizes = sizes

    def prefill(self, row: DecodeSequence, chunk: int) -> bool:
        row.lookup = _NgramIndex(self._sizes)
        return True

    def behind(self, row: DecodeSequence) -> int | None:
        return 0

    def follow(self, rows: Sequence[DecodeSequence], chunk: int) -> None:
        return None

    def reach(self, row: DecodeSequence, most: int) -> int:
        if not isinstance(row.lookup, _NgramIndex):
            row.lookup = _NgramIndex(self._sizes)
        return len(row.lookup.continuation(row.tokens, most))

    def propose(self, rows: Sequence[DecodeSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        found: list[list[int]] = []
        for row, depth in zip(rows, depths, strict=True):
            if not isinstance(row.lookup, _NgramIndex):
                row.lookup = _NgramIndex(self._sizes)
            found.append(row.lookup.continuation(row.tokens, depth))
        k = max(map(len, found))
        tokens = mx.array([f + [0] * (k - len(f)) for f in found], dtype=mx.uint32).reshape(len(rows), k)
        q = None if sampling.settled else one_hot(tokens, self._vocabulary)
        return Draft(tokens=tokens, depths=[len(f) for f in found], q=q, forwards=[0] * len(rows))

    def leave(self, row: DecodeSequence) -> None:
        row.lookup = None

    def close(self) -> None:
        return None

    @property
    def nbytes(self) -> int:
        return 0
