"""The seam of a target's decoder: how its sequences go on. The scheduler owns their lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftd.engine.sequence import DecodeSequence


class Decoder(Protocol):
    """The sequences of one target. Engine thread only."""

    @property
    def sequences(self) -> Sequence[DecodeSequence]:
        """All that were added and have not left: waiting, prefilling, running."""

    @property
    def not_begun(self) -> Sequence[DecodeSequence]:
        """Those of which nothing was prefilled."""

    @property
    def idle(self) -> bool:
        """Whether there are none."""

    @property
    def pause(self) -> float:
        """Seconds for which nothing is due, unless something comes."""

    @property
    def context_length(self) -> int:
        """Tokens that a text has at most."""

    def add(self, sequence: DecodeSequence) -> None: ...

    def collect(self, now: float) -> None:
        """Applies what has come since the last step. A target that is waited for has nothing then."""

    def advance(self, now: float, *, busy: bool) -> bool:
        """Prefills, drafts and submits what is due. `busy`: another decoder waits for the end of it. Returns whether
        this machine computed for a target elsewhere."""

    def leave(self, ended: Sequence[DecodeSequence]) -> None:
        """Lets go of these, which have a reason to end: keeps what serves other requests, and frees the rest."""

    def review_drafting(self) -> None:
        """Decides anew how sequences go on: what they may draft has changed."""
