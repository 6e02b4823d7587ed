"""The drafter that runs a DFlash head: it drafts a block of tokens with one forward.

Its caches have an entry for each of the target's hidden states, and those of a block only until the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.drafters.base import Draft, DraftSequence
from draftd.engine.drafters.draft_head import DraftHead
from draftd.engine.sampling.transforms import Sampling
from draftd.models.dflash import DFlashHead


class BlockDrafter(DraftHead):
    """Drafts with a DFlash head, at most a token less than its block has."""

    def __init__(self, head: DFlashHead, vocabulary: int, prefix: PrefixCache | None = None) -> None:
        super().__init__(head, vocabulary, prefix)
        self._block_head = head
        self._logits: list[mx.array] = []  # of the block's positions that were not read yet: rows × vocabulary

    def reach(self, sequence: DraftSequence, most: int) -> int:
        return min(most, self._block_head.block - 1)

    def propose(self, sequences: Sequence[DraftSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        reached = [self.reach(sequence, depth) for sequence, depth in zip(sequences, depths, strict=True)]
        draft = super().propose(sequences, reached, sampling)
        self._logits = []
        return replace(draft, forwards=[min(forwards, 1) for forwards in draft.forwards])

    def catch_up(self, drafting: Sequence[int]) -> mx.array:
        self.forward(self.pieces(drafting))
        head = self._block_head
        blocks = [[sequence.tokens[-1], *[head.mask_token] * (head.block - 1)] for sequence in self.sequences]
        with head.whole_blocks():
            logits = self.caches.forward(mx.array(blocks, dtype=mx.uint32), [head.block * w for w in drafting])
        first, *self._logits = (logits[:, position] for position in range(1, head.block))
        return first

    def go_on(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        return self._logits.pop(0)
