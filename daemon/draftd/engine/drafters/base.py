"""Drafters: what guesses the next tokens, so that the target can judge several in one forward.

The seam is: all tokens in, proposals out. The last of the tokens may themselves be guesses that the target has not
judged, and may be other ones the next time: a drafter rolls itself back to the longest common prefix with what it knew.
What a drafter needs is declared where it is registered (registry.py)."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import mlx.core as mx

from draftd.core import FinishReason
from draftd.engine.cache.base import pad_rows
from draftd.engine.sampling.transforms import Sampling, one_hot

if TYPE_CHECKING:
    from draftd.engine.sequence import DecodeSequence


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals for a list of sequences. `tokens`: sequences × k, uint32; sequence i's first `depths[i]` are real.

    `q`: sequences × k × vocabulary, the transformed distributions they were drawn from; None where all mass was on
    them, or all sequences are deterministic. `forwards[i]`: forwards of a draft model spent on sequence i. `lag`: the
    most tokens of a sequence that the first of them took in."""

    tokens: mx.array
    depths: list[int]
    q: mx.array | None
    forwards: list[int]
    lag: int = 0


@dataclass(slots=True, eq=False)
class Text:
    """What a drafter sees of a sequence, which is the same object from its first call to `leave`. By itself it is a
    sequence without a request, as what is measured at load is drafted for."""

    tokens: list[int]  # prompt and output; all but the last `guesses` are final
    guesses: int = 0
    answered: int = 0  # final tokens after the prompt: with the guesses, the next one's position in seeded noise
    generator: random.Random = field(default_factory=random.Random)  # what unseeded sampling draws from
    shares: bool = False  # whether cached prefixes may be used for it, and its own be kept
    degraded: str = ""  # why it drafts no more; its drafter may have failed in the middle of a forward
    finish: FinishReason | None = None


DraftSequence: TypeAlias = "DecodeSequence | Text"
"""Of either a drafter can use no more than both have."""


class Drafter(ABC):
    """Called on the engine thread only. An error costs the sequences their speculation, never their text.

    Unless a drafter says otherwise it knows every text from the tokens alone, and holds nothing."""

    @abstractmethod
    def propose(self, sequences: Sequence[DraftSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        """Up to `depths[i]` tokens after the i-th sequence's last one."""

    def prefill(self, sequence: DraftSequence, chunk: int) -> bool:
        """Takes in up to `chunk` more tokens of a prefilling sequence's prompt; True once there are none left."""
        return True

    def behind(self, sequence: DraftSequence) -> int | None:
        """Tokens of the text that it has not taken in, the last aside; None for a sequence that it does not know."""
        return 0

    def follow(self, sequences: Sequence[DraftSequence], chunk: int) -> None:
        """Takes in up to `chunk` tokens of running sequences that it does not know, or lags behind."""
        return

    def reach(self, sequence: DraftSequence, most: int) -> int:
        """How many tokens, up to `most`, it could propose now for a sequence that it knows."""
        return most

    def leave(self, sequence: DraftSequence) -> None:
        """Forgets a sequence; an unknown one is no error."""
        return

    def close(self) -> None:
        """Frees everything, the weights too."""
        return

    @property
    def nbytes(self) -> int:
        """Bytes of key-value caches."""
        return 0


class TextDrafter(Drafter):
    """A drafter that needs the text alone: `continuation` is all that one has to add. It is sure of its guesses: all
    mass of its distributions is on them, and they need not be written out."""

    @abstractmethod
    def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
        """Up to `depth` tokens that may follow the text; empty where it has no guess."""

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
    """One draft for `count` sequences from drafts for groups of them; each part names the sequences it is for.

    None when nothing was proposed."""
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
