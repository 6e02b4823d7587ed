"""The text of a sequence that one daemon drafts for and another verifies, and the guess of how it goes on.

Both daemons keep a copy and apply the same proposals and decisions to it. So any number of proposals may be under way,
and a repeated one changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from draftd.engine.cache.trie import alike


class Guess:
    """`tokens`: the text followed by the guess (proposed tokens). The first `decided` tokens are the text."""

    __slots__ = ("decided", "tokens")

    def __init__(self, text: list[int]) -> None:
        """Begins with the list `text` and no guess. Later tokens are appended to this list itself."""
        self.tokens, self.decided = text, len(text)

    @property
    def pending(self) -> list[int]:
        """The guess alone."""
        return self.tokens[self.decided :]

    def __len__(self) -> int:
        return len(self.tokens) - self.decided

    def propose(self, position: int, last: int, proposed: Sequence[int]) -> int | None:
        """Proposes tokens after the first `position` ones, which end with `last`. Beyond the text, they extend the
        guess, or replace it from the first difference on. Returns how many guessed tokens were dropped. A stale
        proposal, where text or guess have another token than `last`, changes nothing and returns None."""
        if not 1 <= position <= len(self.tokens) or self.tokens[position - 1] != last:
            return None
        late = max(0, self.decided - position)  # proposed tokens in places that the text has decided
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
        """Extends the text by `tokens`. The guess stays if it began with all of them, else it is dropped. Returns how
        many of them it began with."""
        agreed = alike(self.pending, list(tokens))
        if agreed < len(tokens):
            self.tokens[self.decided :] = tokens
        self.decided += len(tokens)
        return agreed

    def cut(self, most: int = 0) -> int:
        """Drops the guess after its first `most` tokens. Returns how many were dropped."""
        dropped = max(0, len(self) - most)
        del self.tokens[len(self.tokens) - dropped :]
        return dropped

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Removes the guess inside the `with` block: `tokens` are then the text alone."""
        pending = self.pending
        self.cut()
        try:
            yield
        finally:
            self.tokens += pending
