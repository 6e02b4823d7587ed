"""What another daemon proposes for a sequence that this one verifies. No weights, and no registration: requests have it
from their peer, and none can ask for it."""

from __future__ import annotations

from draftd.engine.drafters.base import DraftSequence, Text, TextDrafter


class Proposed(TextDrafter):
    """The scheduler asked the peer when it decided who is in the step."""

    def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
        return [] if isinstance(sequence, Text) else list(sequence.proposed[:depth])
