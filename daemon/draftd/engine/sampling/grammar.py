"""The tokens that a grammar allows next: masks over the vocabulary, and forced tokens, which have no alternative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np


class GrammarState:
    """The position of one answer in its grammar. `matcher`: llguidance's, at the beginning of a text. `end_ids`: tokens
    that end a text; what follows one is cut, so it may be anything."""

    def __init__(self, matcher: Any, end_ids: frozenset[int]) -> None:
        self.matcher, self._end_ids = matcher, end_ids
        self._taken = 0  # tokens of the answer that were taken
        self.ended = False

    def take(self, token: int) -> bool:
        """Takes a token if the grammar allows it next. Returns whether it did."""
        if self.ended:
            return True
        if token in self._end_ids:
            taken = self.ended = bool(self.matcher.is_accepting())
        else:
            taken = bool(self.matcher.try_consume_tokens([token]))
        self._taken += taken
        return taken

    def follow(self, text: Sequence[int], start: int) -> None:
        """Takes the tokens added to the answer, which begins at `start` of `text`. Raises ValueError if the grammar
        forbids one."""
        for token in text[start + self._taken :]:
            if not self.take(token):
                raise ValueError(self.error or f"the grammar does not allow token {token}")

    def forced_tokens(self, most: int) -> list[int]:
        """Returns up to `most` tokens that must come next, as the tokenizer writes them. A model may choose others for
        the same bytes."""
        return [] if self.ended else list(self.matcher.compute_ff_tokens()[:most])

    def copy(self) -> GrammarState:
        state = GrammarState(self.matcher.deep_copy(), self._end_ids)
        state._taken, state.ended = self._taken, self.ended
        return state

    @property
    def error(self) -> str:
        """Why no token may come next, such as a grammar that costs too much to follow; empty if some may."""
        return str(self.matcher.get_error())


class GrammarMasks:
    """Computes masks over `vocabulary` tokens, of which the tokenizer has `mask_tokens`, on llguidance's threads while
    MLX computes. Drafts are followed in copies, because not every grammar's matcher can take tokens back."""

    def __init__(self, vocabulary: int, mask_tokens: int) -> None:
        from llguidance import LLExecutor

        self._executor, self._vocabulary = LLExecutor(), vocabulary
        self._words = (mask_tokens + 31) // 32

    def of(self, rows: Sequence[GrammarState | None], drafts: Sequence[Sequence[int]], width: int) -> mx.array:
        """Returns rows × width × vocabulary: True for tokens allowed before a row's drafts and after each of them
        (fewer than `width`). Everything is allowed after a forbidden draft, and in rows without a grammar."""
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
