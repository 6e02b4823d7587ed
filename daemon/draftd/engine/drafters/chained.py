"""The drafter that runs chained heads: the first head drafts the first token, the second one the second.

Each head reads what the head before it made of the token before, so that of a text's last token is kept."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from draftd.engine.cache.model_layers import record_states
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.drafters.base import Draft, DraftSequence
from draftd.engine.drafters.draft_head import DraftHead
from draftd.engine.sampling.transforms import Sampling
from draftd.models.chained import ChainedHeads


class ChainedDrafter(DraftHead):
    """Drafts with chained heads, at most as many tokens as there are heads."""

    def __init__(self, heads: ChainedHeads, vocabulary: int, prefix: PrefixCache | None = None) -> None:
        super().__init__(heads, vocabulary, prefix)
        record_states(heads, [heads.states])
        self._heads, self.longest = heads, len(heads.heads)
        self._next = 0  # the number of the head that drafts next
        self._latest: dict[int, mx.array] = {}  # by id(): what the heads made of the last token of the text

    def project_rows(self, keys: Sequence[int], rows: Sequence[Sequence[mx.array]], width: int) -> mx.array:
        states = super().project_rows(keys, rows, width)
        # What the prefix cache kept has the others' states already.
        before = [
            None if row and row[0].shape[-1] == states.shape[-1] else self._latest.get(key)
            for key, row in zip(keys, rows, strict=True)
        ]
        if all(each is None for each in before):
            return states
        like = next(each for each in before if each is not None)
        first = mx.concatenate([mx.zeros_like(like) if each is None else each for each in before])
        return states + mx.pad(self._heads.project_own(first), [(0, 0), (0, width - 1), (0, 0)])

    def took_in(self, keys: Sequence[int], widths: Sequence[int], states: mx.array) -> None:
        for row, (key, width) in enumerate(zip(keys, widths, strict=True)):
            if width:
                self._latest[key] = states[row : row + 1, width - 1 : width]
        mx.async_eval(*self._latest.values())

    def propose(self, sequences: Sequence[DraftSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        self._next = 0
        return super().propose(sequences, [min(depth, self.longest) for depth in depths], sampling)

    def own_states(self, states: mx.array) -> mx.array:
        return self._heads.project_own(states)

    def go_on(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        self._next += 1
        with self._heads.reading(self._next):
            return super().go_on(tokens, widths)

    def leave(self, sequence: DraftSequence) -> None:
        super().leave(sequence)
        self._latest.pop(id(sequence), None)

    def close(self) -> None:
        super().close()
        self._latest = {}
