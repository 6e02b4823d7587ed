"""Which tokens a grammar allows next: masks over the vocabulary, and tokens that nothing else can stand in place of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np


class GrammarState:
    """How far one answer has come in its grammar. `matcher`: llguidance's, at the beginning of a text. `end_ids`:
    tokens that end a text; what comes after one is cut, and may be anything."""

    def __init__(self, matcher: Any, end_ids: frozenset[int]) -> None:
        self.matcher, self._end_ids = matcher, end_ids
        self._taken = 0  # tokens of the answer
        self.ended = False

    def take(self, token: int) -> bool:
        """Takes a token that may come next; False, and takes nothing, where it may not."""
        if self.ended:
            return True
        if token in self._end_ids:
            taken = self.ended = bool(self.matcher.is_accepting())
        else:
            taken = bool(self.matcher.try_consume_tokens([token]))
        self._taken += taken
        return taken

    def follow(self, text: Sequence[int], start: int) -> None:
        """Takes what the answer, which begins at `start` of `text`, has grown by. Raises ValueError where a token of
        it may not come there."""
        for token in text[start + self._taken :]:
            if not self.take(token):
                raise ValueError(self.error or f"token {token} is not of the grammar")

    def forced_tokens(self, most: int) -> list[int]:
        """Up to `most` tokens that must come next, as the tokenizer writes them. A model may choose others for the same
        bytes."""
        return [] if self.ended else list(self.matcher.compute_ff_tokens()[:most])

    def copy(self) -> GrammarState:
        state = GrammarState(self.matcher.deep_copy(), self._end_ids)
        state._taken, state.ended = self._taken, self.ended
        return state

    @property
    def error(self) -> str:
        """Why nothing may come next, such as a grammar that takes too much to follow; empty where something may."""
        return str(self.matcher.get_error())


class GrammarMasks:
    """Over `vocabulary` tokens, of which the tokenizer has `mask_tokens`. Computed on threads of llguidance's: what MLX
    computes goes on meanwhile. Drafts are followed in copies: not every grammar lets a matcher take tokens back."""

    def __init__(self, vocabulary: int, mask_tokens: int) -> None:
        from llguidance import LLExecutor

        self._executor, self._vocabulary = LLExecutor(), vocabulary
        self._words = (mask_tokens + 31) // 32

    def of(self, rows: Sequence[GrammarState | None], drafts: Sequence[Sequence[int]], width: int) -> mx.array:
        """Rows × width × vocabulary: True for what may come after each of a row's drafts, less than `width`, and
        before the first. After a draft that may not come, and in rows without a grammar, everything may."""
        words = np.full((len(rows) * width, self._words), 0xFFFFFFFF, dtype=np.uint32)
        where = words.ctypes.data, 4 * self._words, len(words)
        states = {i: state for i, state in enumerate(rows) if state is not None and not state.ended}
        for place in range(width):
            if not states:
                break
            self._executor.unsafe_compute_mask_ptr(
                [(state.matcher, i * width + place) for i, state in states.items()], *where
            )
            after = {i: state if place else state.copy() for i, state in states.items() if place < len(drafts[i])}
            states = {i: state for i, state in after.items() if state.take(drafts[i][place]) and not state.ended}
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=self._vocabulary)
        return mx.array(bits.view(np.bool_)).reshape(len(rows), width, self._vocabulary)
