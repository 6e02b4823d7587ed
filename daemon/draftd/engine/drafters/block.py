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
        self._block_head, self.longest = head, head.block - 1
        self._read: list[int] = []  # the block's positions whose logits are computed
        self._logits: list[mx.array] = []  # of the block's positions that were not read yet: rows × vocabulary

    def propose(self, sequences: Sequence[DraftSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        depths = [min(depth, self.longest) for depth in depths]
        self._read = list(range(1, max(depths) + 1))
        draft = super().propose(sequences, depths, sampling)
        self._logits = []
        return replace(draft, forwards=[min(forwards, 1) for forwards in draft.forwards])

    def catch_up(self, drafting: Sequence[int]) -> mx.array:
        self.forward(self.pieces(drafting))
        head = self._block_head
        blocks = [[sequence.tokens[-1], *[head.mask_token] * (head.block - 1)] for sequence in self.sequences]
        widths, at = [head.block * wanted for wanted in drafting], [self._read] * len(blocks)
        with head.whole_blocks():
            logits = self.caches.forward(mx.array(blocks, dtype=mx.uint32), widths, at=at)
        first, *self._logits = (logits[:, i] for i in range(len(self._read)))
        return first

    def go_on(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        return self._logits.pop(0)
