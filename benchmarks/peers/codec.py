"""Token ids and the text that a server of text makes the same ids of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from draftd.models.blas import load_blas
from draftd.models.tokenizer import Tokenizer


class Codec:
    """The served model's own tokenizer."""

    def __init__(self, model: str) -> None:
        load_blas()
        from draftd.models.folder import ModelFolder

        self._wrapper: Any = ModelFolder(model).tokenizer()

    def text(self, tokens: Sequence[int]) -> str:
        """Text, special tokens spelt out, that tokenises to just these. Raises ValueError where none does."""
        text = str(self._wrapper.decode(list(tokens)))
        if self.tokens(text) != tuple(tokens):
            raise ValueError("a prompt whose text gives other tokens: the peer would not be asked the same")
        return text

    def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(int(token) for token in self._wrapper.encode(text))

    def words(self, tokens: Sequence[int]) -> str:
        """Their text without special tokens."""
        return str(self._wrapper.decode(list(tokens), skip_special_tokens=True))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Messages (role, content) in the model's chat template, ready for the answer."""
        return tuple(Tokenizer(self._wrapper).render_chat(messages))

    def ends(self, text: str) -> list[int]:
        """Where each token of `text` ends, in characters."""
        found = self._wrapper._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [end for _, end in found["offset_mapping"]]


def tokens_of(texts: Sequence[str], ends: Sequence[int], total: int) -> list[int]:
    """How many of `total` tokens came with each of `texts`, which is what a server of text does not say: those of the
    whole text that end within it. What tokenising anew does not account for (tokens without text, such as the one that
    ends it) came with the last."""
    lengths = [0]
    for text in texts:
        lengths.append(lengths[-1] + len(text))
    until = [min(bisect_right(ends, length), total) for length in lengths]
    if texts:
        until[-1] = total
    return [later - earlier for earlier, later in pairwise(until)]
