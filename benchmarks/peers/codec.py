"""Converts token ids to text from which a server that takes only text makes the same ids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from draftd.models.blas import load_blas
from draftd.models.tokenizer import Tokenizer


class Codec:
    """The tokenizer of the served model."""

    def __init__(self, model: str) -> None:
        load_blas()
        from draftd.models.folder import ModelFolder

        self._wrapper: Any = ModelFolder(model).tokenizer()

    def text(self, tokens: Sequence[int]) -> str:
        """Decodes `tokens`, with special tokens, to text that is tokenized to the same ids. Raises ValueError if it is
        not."""
        text = str(self._wrapper.decode(list(tokens)))
        if self.tokens(text) != tuple(tokens):
            raise ValueError("the prompt's text is tokenized to other ids, so the peer would answer another prompt")
        return text

    def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(int(token) for token in self._wrapper.encode(text))

    def words(self, tokens: Sequence[int]) -> str:
        """Decodes `tokens` to text without special tokens."""
        return str(self._wrapper.decode(list(tokens), skip_special_tokens=True))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Renders messages (role, content) with the model's chat template, ready for the answer. Returns token ids."""
        return tuple(Tokenizer(self._wrapper).render_chat(messages))

    def ends(self, text: str) -> list[int]:
        """Returns for each token of `text` the offset of its end, in characters."""
        found = self._wrapper._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [end for _, end in found["offset_mapping"]]


def tokens_of(texts: Sequence[str], ends: Sequence[int], total: int) -> list[int]:
    """Returns how many of an answer's `total` tokens came with each chunk in `texts`. mlx-lm's server streams text and
    does not report these numbers. `ends` are the offsets at which the tokens of the whole text end; a token belongs to
    the chunk in which it ends. Tokens without text, such as the end token, belong to the last chunk."""
    lengths = [0]
    for text in texts:
        lengths.append(lengths[-1] + len(text))
    until = [min(bisect_right(ends, length), total) for length in lengths]
    if texts:
        until[-1] = total
    return [later - earlier for earlier, later in pairwise(until)]
