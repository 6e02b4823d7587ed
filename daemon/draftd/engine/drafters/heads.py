"""Which drafter runs a draft head of which kind."""

from __future__ import annotations

from typing import Any

from draftd.engine.drafters.block import BlockDrafter
from draftd.engine.drafters.chained import ChainedDrafter
from draftd.engine.drafters.draft_head import DraftHead
from draftd.models.chained import ChainedHeads
from draftd.models.dflash import DFlashHead
from draftd.models.head_weights import Head

_DRAFTERS: dict[type, Any] = {DFlashHead: BlockDrafter, ChainedHeads: ChainedDrafter}


def drafter_of(head: Head) -> type[DraftHead]:
    """Returns the drafter for a head."""
    drafter: type[DraftHead] = _DRAFTERS.get(type(head), DraftHead)
    return drafter
