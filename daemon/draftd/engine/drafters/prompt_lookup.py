"""Prompt lookup: proposes what most often followed the text's end before, in the text and in the caller's earlier
answers. No weights.

Earlier answers are kept for each caller that the daemon knows by token or certificate. Which tokens are drafted for a
caller, and what it takes to find them, do not depend on other callers' texts: each has tables and bounds of their own.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from draftd.engine.drafters.base import DraftSequence, TextDrafter
from draftd.engine.drafters.suffix_index import (
    END,
    SIZES,
    Continuation,
    Place,
    Source,
    SuffixIndex,
    continuation,
)

_MOST_TOKENS = 8192  # of answers in each of a caller's two indexes, about 2 MB
_MOST_CALLERS = 16  # that have earlier answers: the latest


class EarlierAnswers:
    """The latest answers to one caller, at most 16,384 tokens: once an index is full, a new one replaces the one before
    it."""

    def __init__(self) -> None:
        self._indexed: deque[tuple[list[int], SuffixIndex]] = deque([([], SuffixIndex())], maxlen=2)

    def add(self, answer: list[int]) -> None:
        """Adds an answer, which `grow` will index."""
        if len(self._indexed[-1][0]) + len(answer) >= _MOST_TOKENS:
            self._indexed.append(([], SuffixIndex()))
        self._indexed[-1][0].extend((*answer[1 - _MOST_TOKENS :], END))

    def grow(self, most: int) -> None:
        """Indexes up to `most` more tokens."""
        for tokens, index in self._indexed:
            most = index.grow(tokens, len(tokens), most)

    @property
    def sources(self) -> list[Source]:
        """The tokens with their indexes, the latest first."""
        return [*reversed(self._indexed)]


@dataclass(slots=True)
class _SearchedText:
    """A running text's index and its latest search, for up to `depth` tokens after its first `length` ones. `latest`:
    the place from which a draft was copied last, up to its first wrong token."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    length: int = 0
    depth: int = 0
    draft: Continuation | None = None
    latest: Place | None = None

    def follow(self, tokens: list[int]) -> None:
        """Moves to the place that was copied from, now that the text has gone on."""
        if self.draft is not None:
            drafted, (source, place) = self.draft.tokens, self.draft.source
            accepted, most = 0, min(len(drafted), len(tokens) - self.length)
            while accepted < most and drafted[accepted] == tokens[self.length + accepted]:
                accepted += 1
            self.latest, self.draft = (source, place + accepted), None


class PromptLookup(TextDrafter):
    """Indexes each sequence from its first proposal on, and each answer after it ended."""

    def __init__(self) -> None:
        self._texts: dict[DraftSequence, _SearchedText] = {}
        self._earlier: OrderedDict[str, EarlierAnswers] = OrderedDict()  # by caller, the latest last

    def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
        text, length = self._texts.setdefault(sequence, _SearchedText()), len(sequence.tokens)
        if sequence.guesses or text.length != length or text.depth < depth:  # else a step asks a second time
            text.follow(sequence.tokens)
            text.draft = self._search(sequence, text, depth)
            text.length, text.depth = length, depth
        if text.draft is None:
            return []
        sequence.match = text.draft.size
        return text.draft.tokens[:depth]

    def _search(self, sequence: DraftSequence, text: _SearchedText, depth: int) -> Continuation | None:
        tokens = sequence.tokens
        remaining = text.index.grow(tokens, min(len(tokens) - sequence.guesses, len(tokens) - 1))
        sources: list[Source] = [(tokens, text.index)]
        if (earlier := self._earlier.get(sequence.identity)) is not None:
            earlier.grow(remaining)
            sources += earlier.sources
        return continuation(tokens, sources, depth, text.latest)

    def leave(self, sequence: DraftSequence) -> None:
        self._texts.pop(sequence, None)
        if sequence.ended and sequence.answered and sequence.identity:
            final = len(sequence.tokens) - sequence.guesses
            earlier = self._earlier.setdefault(sequence.identity, EarlierAnswers())
            earlier.add(sequence.tokens[max(0, final - sequence.answered - SIZES[-1]) : final])
            self._earlier.move_to_end(sequence.identity)
            if len(self._earlier) > _MOST_CALLERS:
                self._earlier.popitem(last=False)

    def close(self) -> None:
        self._texts.clear()
        self._earlier.clear()
