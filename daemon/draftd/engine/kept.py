"""What is kept of one row's caches, in memory of its own: nothing of the batch that it was taken from stays alive."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Stretch:
    """Keys and values of successive positions, for each layer: 1 × heads × length × dim."""

    arrays: list[mx.array]
    length: int

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays)

    def split(self, n: int) -> tuple[Stretch, Stretch]:
        """The first `n` positions and the rest, each in memory of its own."""
        return stretch(self.arrays, 0, 0, n), stretch(self.arrays, 0, n, self.length)


def stretch(arrays: Sequence[mx.array], row: int, start: int, end: int) -> Stretch:
    """Copies positions `start` to `end` of one row of `arrays`, each rows × heads × capacity × dim."""
    copies = [mx.contiguous(a[row : row + 1, :, start:end]) for a in arrays]
    mx.eval(copies)
    return Stretch(copies, end - start)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """mlx-lm's own caches of one row, after its first `length` tokens."""

    caches: list[Any]
    length: int

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    def cut(self, length: int) -> Snapshot | None:
        """One that holds the first `length` tokens only, and that can be written to; None where that is not to be had:
        some caches do not give tokens back."""
        surplus = self.length - length
        if surplus and not self.can_be_cut:
            return None
        caches = copy.deepcopy(self.caches)  # the arrays are shared until one is written to
        if surplus and not all(cache.trim(surplus) == surplus for cache in caches):
            return None
        return Snapshot(caches, length)

    @property
    def can_be_cut(self) -> bool:
        """A ring that has come round, or a state, holds the whole text or nothing of it."""
        return all(cache.is_trimmable() for cache in self.caches)


Kept = Stretch | Snapshot
