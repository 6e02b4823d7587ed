from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draftd.engine.drafters.base import Draft
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.sequence import DecodeSequence


@dataclass(frozen=True, slots=True)
class Verdict:
    """For each row: how many drafted tokens stand, those tokens, and the one that follows them."""

    accepted: list[list[int]]
    following: list[int]


class Verifier(Protocol):
    """Holds the running rows, in the order they joined. Called on the engine thread only."""

    def prefill(self, row: DecodeSequence, chunk: int) -> int | None:
        """Takes in up to `chunk` more tokens of a newcomer's text; once all are in, the token that follows them."""
        ...

    def join(self, row: DecodeSequence) -> None:
        """Makes a prefilled newcomer the last of the running rows. Nothing may be under way from `advance`."""
        ...

    def verify(self, rows: Sequence[DecodeSequence], draft: Draft, sampling: Sampling) -> Verdict:
        """One forward over each row's last token and its draft; rejected tokens are rolled back."""
        ...

    def advance(self, rows: Sequence[DecodeSequence], sampling: Sampling, ahead: bool) -> list[int]:
        """One autoregressive token for each row. `ahead` lets it start on the next ones, which then must be asked for
        by `advance` and for the same rows, less those that left."""
        ...

    def refusal(self, row: int, width: int) -> str:
        """Why a draft of width - 1 tokens could not be rolled back for running row `row`; empty when it could."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these of the running rows, in this order."""
        ...

    def keep(self, at: int, row: DecodeSequence) -> None:
        """Keeps what the cache holds of the text of running row `at`, for requests that begin alike: all of it at its
        end, and before that what can be kept by pieces."""
        ...

    def drop(self, row: DecodeSequence) -> None:
        """Forgets a newcomer that has not joined."""
        ...

    def close(self) -> None:
        """Lets go of all rows, and of what was kept."""
        ...

    @property
    def pending(self) -> bool:
        """Whether the next round's forward is under way: that one can draft nothing."""
        ...

    @property
    def nbytes(self) -> int: ...
