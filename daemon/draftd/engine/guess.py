"""The text of a sequence that one daemon drafts for and another verifies, and the guess of how it goes on. Both ends
keep one, and apply the same proposals and decisions to it: so any number of proposals may be on their way, and one that
comes twice changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from draftd.engine.cache.trie import alike


class Guess:
    """`tokens`: those of the text, which are `decided`, and behind them the guess: what was proposed."""

    __slots__ = ("decided", "tokens")

    def __init__(self, text: list[int]) -> None:
        """Goes on in this list; without a guess at first."""
        self.tokens, self.decided = text, len(text)

    @property
    def pending(self) -> list[int]:
        """The guess alone."""
        return self.tokens[self.decided :]

    def __len__(self) -> int:
        return len(self.tokens) - self.decided

    def propose(self, position: int, last: int, proposed: Sequence[int]) -> int | None:
        """Proposes tokens after the first `position` ones, the last of which is `last`. What they say beyond the text
        follows the guess, or takes its place from where they differ on. Returns how many tokens of the guess were
        dropped; None, and changes nothing, where the proposal is stale: text and guess have another token there."""
        if not 1 <= position <= len(self.tokens) or self.tokens[position - 1] != last:
            return None
        late = max(0, self.decided - position)  # tokens of the proposal in whose places the text has its own
        if list(proposed[:late]) != self.tokens[position : position + len(proposed)][:late]:
            return 0
        start, beyond = max(position, self.decided), list(proposed[late:])
        agreed = start + alike(self.tokens[start:], beyond)
        if agreed == start + len(beyond):
            return 0
        dropped = len(self.tokens) - agreed
        self.tokens[agreed:] = beyond[agreed - start :]
        return dropped

    def decide(self, tokens: Sequence[int]) -> int:
        """The text goes on with `tokens`. The guess stays behind them where it began with all of them. Returns with how
        many of them it began."""
        agreed = alike(self.pending, list(tokens))
        if agreed < len(tokens):
            self.tokens[self.decided :] = tokens
        self.decided += len(tokens)
        return agreed

    def cut(self, most: int = 0) -> int:
        """Drops the guess but for its first `most` tokens. Returns how many were dropped."""
        dropped = max(0, len(self) - most)
        del self.tokens[len(self.tokens) - dropped :]
        return dropped

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Takes the guess away meanwhile: `tokens` are the text."""
        pending = self.pending
        self.cut()
        try:
            yield
        finally:
            self.tokens += pending
