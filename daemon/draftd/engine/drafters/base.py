"""Drafters guess the next tokens, so that the target can judge several in one forward.

A drafter gets all tokens and returns proposals. The last tokens may themselves be guesses that the target has not
judged yet, and may differ the next time: a drafter rolls itself back to the longest common prefix with what it knew.
What a drafter needs is declared when it is registered (registry.py).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import mlx.core as mx

from draftd.engine.cache.base import pad_rows
from draftd.engine.sampling.transforms import Sampling, one_hot

if TYPE_CHECKING:
    from draftd.engine.features import Features
    from draftd.engine.sequence import DecodeSequence


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals for a list of sequences. `tokens`: sequences × k, uint32; the first `depths[i]` of sequence i are real.

    `q`: sequences × k × vocabulary, the transformed distributions that the tokens were drawn from; None if all mass was
    on the tokens, or all sequences are deterministic. `forwards[i]`: a draft model's forwards spent on sequence i.
    `lag`: the most tokens of one sequence that the first of these forwards had to take in."""

    tokens: mx.array
    depths: list[int]
    q: mx.array | None
    forwards: list[int]
    lag: int = 0


@dataclass(slots=True, eq=False)
class Text:
    """The part of a sequence that drafters see; the same object from a drafter's first call until `leave`. Calibration
    uses it without a request. `tokens`: prompt and output; the target has not judged the last `guesses` of them yet.
    `answered`: final tokens after the prompt; `answered` + `guesses` is the next token's position in seeded noise.
    `generator`: the source of unseeded sampling. `shares`: whether it uses the prefix cache. `identity`: the caller
    whose earlier answers it may draft from, or empty. `match`: tokens of its end that prompt lookup found before.
    `degraded`: why drafting stopped for it, empty if it did not; its drafter may have failed during a forward."""

    tokens: list[int]
    guesses: int = 0
    answered: int = 0
    generator: random.Random = field(default_factory=random.Random)
    shares: bool = False
    identity: str = ""
    match: int = 0
    degraded: str = ""
    ended: bool = False


DraftSequence: TypeAlias = "DecodeSequence | Text"
"""Of either a drafter can use no more than both have."""


class Drafter(ABC):
    """The interface of drafters. Engine thread only. An error ends the sequences' speculation, never their text.

    The defaults suit a drafter that holds nothing and drafts from the tokens alone. `fed`: whether it drafts from the
    target's hidden states, which `feed` gives it. `longest`: the most tokens that it drafts in a step."""

    fed = False
    longest: int = 1 << 30

    @abstractmethod
    def propose(self, sequences: Sequence[DraftSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        """Returns up to `depths[i]` tokens after the i-th sequence's last one."""

    def prefill(self, sequence: DraftSequence, chunk: int) -> bool:
        """Takes in up to `chunk` more tokens of a prefilling sequence's prompt. Returns True once none remain."""
        return True

    def feed(self, sequence: DraftSequence, features: Features) -> None:
        """Takes the target's hidden states of a sequence: each position once, in order. A state that was missed never
        comes again. The tokens up to the last of these positions are in the text."""
        return

    def begin(self, sequence: DraftSequence, cached: int) -> None:
        """Begins a sequence of which the target has `cached` tokens from its prefix cache: it gets no hidden states for
        these."""
        return

    def known_prefix(self, tokens: Sequence[int]) -> int:
        """Returns how many of the first tokens need no hidden states, because its prefix cache has them."""
        return len(tokens)

    def behind(self, sequence: DraftSequence) -> int | None:
        """Returns the tokens of the text that it has not taken in, not counting the last; None for an unknown
        sequence."""
        return 0

    def misses(self, sequence: DraftSequence) -> bool:
        """Returns whether it can never draft for the sequence, because it missed hidden states."""
        return self.fed and self.behind(sequence) is None

    def follow(self, sequences: Sequence[DraftSequence], chunk: int) -> None:
        """Takes in up to `chunk` tokens of running sequences that are unknown or lag behind."""
        return

    def reach(self, sequence: DraftSequence, most: int) -> int:
        """Returns how many tokens, up to `most`, it could propose now for a known sequence."""
        return most

    def leave(self, sequence: DraftSequence) -> None:
        """Forgets a sequence; an unknown one is no error."""
        return

    def close(self) -> None:
        """Frees everything, weights included."""
        return

    @property
    def nbytes(self) -> int:
        """Bytes of key-value caches."""
        return 0


class TextDrafter(Drafter):
    """A drafter that needs only the text; subclasses implement `continuation`. Its distributions have all mass on its
    guesses, so they need not be written out."""

    @abstractmethod
    def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
        """Returns up to `depth` tokens that may follow the text; empty without a guess."""

    def propose(self, sequences: Sequence[DraftSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        continuations = [self.continuation(sequence, depth) for sequence, depth in zip(sequences, depths, strict=True)]
        return Draft(
            tokens=pad_rows(continuations),
            depths=[len(f) for f in continuations],
            q=None,
            forwards=[0] * len(sequences),
        )

    def reach(self, sequence: DraftSequence, most: int) -> int:
        return len(self.continuation(sequence, most))


def merge(
    parts: Sequence[tuple[Sequence[int], Draft]], count: int, vocabulary: int, deterministic: bool
) -> Draft | None:
    """Merges drafts for groups of sequences into one for `count` sequences; each part names its sequences. Returns None
    if nothing was proposed."""
    k = max((max(draft.depths, default=0) for _, draft in parts), default=0)
    if k == 0:
        return None
    if len(parts) == 1 and list(parts[0][0]) == list(range(count)):
        return parts[0][1]
    tokens: list[mx.array] = [mx.zeros((1, k), dtype=mx.uint32)] * count
    q: list[mx.array] = [] if deterministic else [mx.zeros((1, k, vocabulary))] * count
    depths, forwards = [0] * count, [0] * count
    for members, draft in parts:
        short = k - draft.tokens.shape[1]
        wide = mx.pad(draft.tokens, [(0, 0), (0, short)]) if short else draft.tokens
        for i, row in enumerate(members):
            tokens[row] = wide[i : i + 1]
            depths[row], forwards[row] = draft.depths[i], draft.forwards[i]
            if not deterministic:
                own = draft.q[i : i + 1] if draft.q is not None else one_hot(draft.tokens[i : i + 1], vocabulary)
                q[row] = mx.pad(own, [(0, 0), (0, short), (0, 0)]) if short else own
    lag = max(draft.lag for _, draft in parts)
    return Draft(mx.concatenate(tokens), depths, None if deterministic else mx.concatenate(q), forwards, lag)
