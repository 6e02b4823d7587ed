"""Key-value caches of the running rows, and the rollback that speculation needs: what every layout of them does.

After a forward of width w a row is w longer; `truncate` takes back what the target turned down. `ragged.py` and
`separate.py` are the layouts, `layouts.py` chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from draftd.engine.kept import Kept


class RollbackFailed(Exception):
    """A cache did not give back what it was asked to: its row's text can no longer be trusted."""


class Caches(Protocol):
    """The caches of one model for a list of rows."""

    lengths: list[int]  # tokens held, per row

    def forward(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        """Runs the model on `tokens` (rows × width). Row i's first `widths[i]` are real, the rest is padding.

        Returns logits, rows × width × vocabulary, lazily; those of padding mean nothing.
        """
        ...

    def truncate(self, lengths: Sequence[int]) -> None:
        """Rolls each row back to `lengths[i]`. Raises RollbackFailed where a cache does not comply."""
        ...

    def refusal(self, row: int, width: int) -> str:
        """Why a forward of `width` could not be rolled back for this row; empty when it could."""
        ...

    def fresh(self, length: int = 0) -> Caches:
        """New caches of the same model, holding one empty row that will come to hold `length` tokens."""
        ...

    def expect(self, lengths: Sequence[int]) -> None:
        """Rows of these lengths will join: room for them may be made beforehand. Replaces what was said before."""
        ...

    def join(self, newcomer: Caches) -> None:
        """Appends the rows of another of the same layout; that one is used up."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order. One that stays in its place costs nothing: see `left`."""
        ...

    def clear(self) -> None:
        """Lets go of rows and model, whoever still refers to this."""
        ...

    def extract(self, row: int, start: int, end: int) -> Kept | None:
        """A copy of positions `start` to `end` of a row, in memory of its own; None where they are not to be had.
        Unless caches can be kept in stretches, `start` is 0."""
        ...

    def restore(self, kept: Sequence[Kept]) -> None:
        """Puts what was extracted into the one empty row of fresh caches, in order, from position 0 on."""
        ...

    @property
    def in_stretches(self) -> bool:
        """Whether any stretch of a row can be kept by itself."""
        ...

    @property
    def position_bytes(self) -> int:
        """Bytes that one position of one row takes; 0 while nothing is held, or where that is not a number."""
        ...

    def arrays(self) -> list[Any]:
        """What must be evaluated for the caches to be up to date."""
        ...

    @property
    def nbytes(self) -> int: ...


def left(rows: int, gone: Sequence[int]) -> list[int]:
    """Who is in each place after those in `gone`, in ascending order, have left `rows` rows one after the other, and
    the last one has each time moved into the gap: few move, where closing ranks would move all behind a gap."""
    places = list(range(rows))
    for row in gone:
        last = places.pop()
        if last != row:
            places[places.index(row)] = last
    return places
