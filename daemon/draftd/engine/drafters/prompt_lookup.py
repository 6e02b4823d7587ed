"""Prompt lookup: proposes what followed the last n-gram at its earlier occurrence in prompt or output. No weights."""

from __future__ import annotations

from draftd.engine.drafters.base import DraftSequence, TextDrafter

_SIZES = (3, 2)  # sizes of n-grams, the longest first
_MOST = 1024  # tokens indexed at a time, about 3 ms: the other sequences of a step wait for it


class _NgramIndex:
    """Maps each n-gram of a growing text to the position after its latest occurrence. The n-gram at the text's end is
    not indexed, so it does not match itself."""

    def __init__(self) -> None:
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in _SIZES]
        self._indexed = 0  # n-grams that end at or before this position are indexed

    def continuation(self, tokens: list[int], final: int, depth: int) -> list[int]:
        """Looks up the n-gram at the text's end, and returns up to `depth` tokens that followed its earlier occurrence;
        empty if the n-gram has none. Each call indexes up to 1,024 more of the first `final` tokens; later tokens may
        be rolled back."""
        last = min(final, len(tokens) - 1, self._indexed + _MOST)
        for end in range(self._indexed + 1, last + 1):
            for size, ends in zip(_SIZES, self._ends, strict=True):
                if end >= size:
                    ends[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, last)
        for size, ends in zip(_SIZES, self._ends, strict=True):
            at = ends.get(tuple(tokens[-size:]))
            if at is not None:
                return tokens[at : at + depth]
        return []


class PromptLookup(TextDrafter):
    """Indexes each sequence from its first proposal on."""

    def __init__(self) -> None:
        self._indexes: dict[int, _NgramIndex] = {}  # by a sequence's id()

    def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
        index = self._indexes.setdefault(id(sequence), _NgramIndex())
        return index.continuation(sequence.tokens, len(sequence.tokens) - sequence.guesses, depth)

    def leave(self, sequence: DraftSequence) -> None:
        self._indexes.pop(id(sequence), None)

    def close(self) -> None:
        self._indexes.clear()
