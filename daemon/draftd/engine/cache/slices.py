"""How prompts are cut into slices: anywhere, or where an exact model's texts need it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from draftd.engine.cache.alone_mode import is_exact, tokens_alone
from draftd.engine.limits import EXACT_SLICE

_ANSWERED = 8  # tokens of an answer in a forward: all layers were measured with so many


class AnySlices:
    """Slices of any length. A slice ends at a multiple of `width`, or with the text."""

    width = 1

    def usable(self, length: int, prompt: int) -> int:
        """Returns how many of the first `length` tokens can be kept for other texts. `prompt`: tokens before the
        answer."""
        return length

    def widest(self, length: int, prompt: int, most: int) -> int:
        """Returns the tokens of the next forward after `length`, which may have at most `most`."""
        return most

    def computing(self, length: int, prompt: int) -> AbstractContextManager[None]:
        """Returns the context to run the next forward in, after `length` tokens."""
        return nullcontext()


class ExactSlices(AnySlices):
    """Slices whose places depend on nothing but the prompt. An answer's tokens are computed each alone, as in decoding,
    and are not kept for other texts: as part of a prompt they would have other bits."""

    width = EXACT_SLICE

    def __init__(self, model: Any) -> None:
        self._model = model

    def usable(self, length: int, prompt: int) -> int:
        most = min(length, prompt)
        return most - most % self.width

    def widest(self, length: int, prompt: int, most: int) -> int:
        if length >= prompt:
            return _ANSWERED
        assert not length % self.width, f"a slice begins at {length}"
        return min(self.width, prompt - length)

    def computing(self, length: int, prompt: int) -> AbstractContextManager[None]:
        return tokens_alone(self._model) if length >= prompt else nullcontext()


def slices_of(model: Any) -> AnySlices:
    """Returns how this model's prompts are cut."""
    return ExactSlices(model) if is_exact(model) else AnySlices()
