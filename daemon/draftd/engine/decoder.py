"""The interface of a target's decoder, which advances its sequences. The scheduler owns their lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftd.engine.sequence import DecodeSequence


class Decoder(Protocol):
    """The sequences of one target. Engine thread only."""

    @property
    def sequences(self) -> Sequence[DecodeSequence]:
        """All sequences that were added and have not left: waiting, prefilling, running."""

    @property
    def not_begun(self) -> Sequence[DecodeSequence]:
        """The sequences of which nothing was prefilled."""

    @property
    def idle(self) -> bool:
        """Whether it has no sequences."""

    @property
    def pause(self) -> float:
        """Seconds for which nothing is due, unless something comes."""

    @property
    def context_length(self) -> int:
        """The most tokens of a text."""

    def add(self, sequence: DecodeSequence) -> None: ...

    def collect(self, now: float) -> None:
        """Applies results that came since the last step. A local target has none then."""

    def advance(self, now: float, *, busy: bool) -> bool:
        """Prefills, drafts and submits what is due. `busy`: the local decoder waits for this to end. Returns whether
        this machine computed for a target elsewhere."""

    def leave(self, ended: Sequence[DecodeSequence]) -> None:
        """Removes ended sequences: keeps what serves other requests, and frees the rest."""

    def review_drafting(self) -> None:
        """Decides again whether and how each sequence drafts, after the scheduler lowered the limits of its drafts."""
