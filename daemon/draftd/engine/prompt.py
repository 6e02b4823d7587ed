"""A prompt that is being prefilled, and the sequences that wait for it because their prompts begin as it does.

They read that beginning from the prefix store as soon as the first prompt has it. None waits for a beginning that it
computes as fast itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftd.engine.cache.trie import alike
from draftd.engine.sequence import DecodeSequence

_WHOLE = 64  # tokens: a shorter prompt is computed as fast as it is kept and found
_PART = 256  # tokens, where more of the prompt follows: prompts that share fewer may share a forward instead


@dataclass(slots=True, eq=False, weakref_slot=True)
class Prompt:
    """A sequence whose prompt is being prefilled."""

    sequence: DecodeSequence
    cached: int | None = None  # tokens that the prefix store had when it began; None if others read nothing of it
    position: int | None = None  # tokens that the target has; None before it knows the sequence
    done: bool = False  # it has all of them, and has chosen the token that follows
    alone: bool = False  # a forward that it shared failed
    passed: int = 0  # slices that others had since it had one
    shared: dict[DecodeSequence, int] = field(default_factory=dict)  # tokens that waiting ones begin with as it does

    @property
    def left(self) -> int:
        """Tokens that the target has not prefilled."""
        return 0 if self.done else len(self.sequence.tokens) - (self.position or 0)

    @property
    def uncached(self) -> int:
        """Tokens that the prefix store did not have when it began."""
        return len(self.sequence.tokens) - (self.cached or 0)

    @property
    def least_left(self) -> int:
        """Tokens left of the shortest among this prompt and those that wait for it: no longer one may delay that."""
        shortest = min((len(sequence.tokens) for sequence in self.waiting), default=len(self.sequence.tokens))
        return min(self.left, shortest - (self.position or 0))

    @property
    def waiting(self) -> list[DecodeSequence]:
        """The sequences that wait for tokens which this one has not reached yet."""
        if self.done or not self.shared:
            return []
        reached = self._reached
        return [sequence for sequence, n in self.shared.items() if n > reached and sequence.finish is None]

    def forks(self, end: int) -> set[int]:
        """The lengths of this text after its position, up to `end`, that sequences wait for."""
        return {length for sequence in self.waiting if (length := self.shared[sequence]) <= end}

    def compare(self, sequence: DecodeSequence) -> None:
        """Lets a sequence that has not begun wait for this one, if both texts begin alike."""
        first, text = self.sequence.tokens, sequence.tokens
        if self.cached is None or self.done or not sequence.shares or sequence.wants_prompt:
            return
        reached = self._reached
        if first[reached : reached + _WHOLE] != text[reached : reached + _WHOLE]:
            return
        most = len(text) - 1  # the last token is computed in any case
        shared = min(alike(first, text), most)
        if shared - reached >= (_WHOLE if shared == most else _PART):
            self.shared[sequence] = shared

    @property
    def _reached(self) -> int:
        return max(self.cached or 0, self.position or 0)  # a prompt that is scored begins without what is cached
