"""Key-value caches of the running sequences, and the rollback that speculation needs.

After a forward of width w a sequence is w longer; `rollback` takes back what the target rejected. `batched.py` and
`per_sequence.py` are the layouts, `layouts.py` chooses between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import mlx.core as mx

if TYPE_CHECKING:  # mlx-lm is imported where a model is
    from draftd.engine.cache.window import AttentionWindow


@dataclass(frozen=True, slots=True)
class KVSegment:
    """Keys and values of successive positions. `layers`: the arrays of each, 1 × heads × length × dim."""

    layers: list[list[mx.array]]
    length: int

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for arrays in self.layers for a in arrays)

    def split(self, n: int) -> tuple[KVSegment, KVSegment]:
        """The first `n` positions and the rest, each in memory of its own."""
        return self.copy(0, n), self.copy(n, self.length)

    def copy(self, start: int, end: int) -> KVSegment:
        """Positions `start` to `end`, in memory of their own."""
        copies = [[mx.contiguous(a[:, :, start:end]) for a in arrays] for arrays in self.layers]
        mx.eval(copies)
        return KVSegment(copies, end - start)

    def head(self, n: int) -> KVSegment:
        """The first `n` positions, to be read at once: they keep all of them alive."""
        return self if n == self.length else KVSegment([[a[:, :, :n] for a in arrays] for arrays in self.layers], n)


class CacheSnapshot(Protocol):
    """The contents of one sequence's caches after its first `length` tokens."""

    @property
    def length(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def least(self) -> int:
        """The fewest tokens that it can be cut to: 0 where it holds all of them still, `length` where it can give none
        back, as a state cannot, or a ring that has come round."""

    def cut(self, length: int) -> CacheSnapshot | None:
        """One that holds the first `length` tokens only, and that can be written to; None where that is not to be
        had."""


CachedPrefix = KVSegment | CacheSnapshot

Positions = Sequence[Sequence[int]]


def last(widths: Sequence[int]) -> Positions:
    """The last of each row's first `widths[i]` positions."""
    return [[max(width, 1) - 1] for width in widths]


class LayerSlice(NamedTuple):
    """A copy of one layer's cache of a row's first tokens."""

    arrays: list[mx.array]
    first: int = 0  # the position that lies first
    least: int = 0  # fewest tokens that it can be cut to


@dataclass(frozen=True, slots=True)
class BatchedSnapshot:
    """`CacheSnapshot` of one row of caches whose layers do not all keep whole texts: a part of each layer."""

    parts: list[LayerSlice]
    length: int

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for part in self.parts for a in part.arrays)

    @property
    def least(self) -> int:
        return max(part.least for part in self.parts)

    def cut(self, length: int) -> BatchedSnapshot | None:
        if length < self.least:
            return None
        if length == self.length:
            return self
        parts = [part._replace(arrays=[a[:, :, : length - part.first] for a in part.arrays]) for part in self.parts]
        return BatchedSnapshot(parts, length)


def pad_rows(rows: Sequence[Sequence[int]]) -> mx.array:
    """Token ids as an array, rows × the most that one has, with zeros on the right."""
    width = max(map(len, rows))
    return mx.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=mx.uint32)


def places_after(places: int, leaving: Sequence[int]) -> list[int]:
    """Which of `places` rows is at each place once the rows in `leaving`, in ascending order, have left. The last row
    moves into each gap, so that few rows move."""
    kept = list(range(places))
    for place in leaving:
        last = kept.pop()
        if last != place:
            kept[kept.index(place)] = last
    return kept


def flat(caches: Sequence[Any]) -> list[Any]:
    """Opens mlx-lm's CacheList, which bundles several caches of one layer."""
    return [leaf for c in caches for leaf in (flat(c.caches) if hasattr(c, "caches") else [c])]


class RollbackFailed(Exception):
    """A cache did not give back what it was asked to: its sequence's text can no longer be trusted."""


class LayerOwner(Protocol):
    """The batch of sequences that a layer's cache is for."""

    @property
    def lengths(self) -> list[int]:
        """Tokens held, by row."""

    @property
    def offset(self) -> int | mx.array:
        """The lengths when this forward began: one number where they are equal."""

    @property
    def apart(self) -> bool:
        """Whether the model's attention reads groups of rows one by one."""

    @property
    def forwards(self) -> int:
        """How many forwards a rollback may go back over."""

    def window(self, size: int | None) -> AttentionWindow:
        """The window of this size that all of its layers share; None: all of a text is seen."""


class LayerCache(Protocol):
    """One layer's memory for a batch of sequences at unlike lengths, each from position 0 on.

    To mlx-lm's model it is that layer's cache: the model writes to it, reads from it, and asks it for masks. What else
    the model asks of it depends on the architecture, which is why a trial decides at load (layouts.py).
    """

    def rollback(self, lengths: list[int], wanted: list[int]) -> list[int]:
        """Rolls each sequence back from `lengths` to `wanted`. Returns the lengths that it reached: a memory that
        cannot stop at `wanted` stops earlier, and the rest is fed again."""

    def join(self, place: int, other: LayerCache) -> None:
        """Takes over the sequences of another, which is used up, as those from `place` on."""

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these sequences, in this order."""

    def take(self, other: LayerCache, rows: Sequence[int]) -> None:
        """Holds copies of another's rows, holding nothing itself."""

    def move(self, other: LayerCache, row: int) -> bool:
        """Holds a row of another, holding nothing itself; the other holds it no more, or is to `select` the others.
        Whether something was copied."""

    def put(self, other: LayerCache, rows: Sequence[int]) -> None:
        """Has these rows hold what another's do that took them."""

    def restore(self, arrays: Sequence[Sequence[mx.array]]) -> None:
        """Holds one sequence, given as its `arrays` for successive positions."""

    def clear(self) -> None:
        """Frees its arrays."""

    def arrays(self) -> list[mx.array]:
        """All of its arrays, each slots × …, in any order; none while it is empty."""

    def extract(self, row: int, length: int) -> LayerSlice | None:
        """A copy of what is held of a row's first `length` tokens; None where that can no longer be told apart."""


class Caches(Protocol):
    """The caches of one model, all layers, for a list of sequences: its rows."""

    @property
    def lengths(self) -> list[int]:
        """Tokens held, by row."""

    @property
    def segmented(self) -> bool:
        """Whether any positions of a row can be kept by themselves."""

    def forward(self, tokens: mx.array, widths: Sequence[int], *, at: Positions | None = None) -> mx.array:
        """Runs the model on `tokens` (rows × width). Row i's first `widths[i]` are real, the rest is padding.

        Returns logits, rows × width × vocabulary, lazily; those of padding mean nothing. `at`: of these positions of
        `tokens` only, as many for each row, rows × n × vocabulary.
        """

    def rollback(self, lengths: Sequence[int]) -> list[int]:
        """Rolls each row back to `lengths[i]`, or further where a layer cannot stop there: all layers go to the least
        of what each reached, which is returned; the rest has to be fed again. Raises RollbackFailed where a cache does
        not comply."""

    def fresh(self, *lengths: int) -> Caches:
        """New caches of the same model, with an empty row for each that will come to hold so many tokens; with one
        where none is named."""

    def split(self, rows: Sequence[int], *, rest: bool = False) -> Caches:
        """New caches with these rows, in this order, which these here have no longer. A single one that lies in arrays
        of its own is not copied: as it does for a while where it was to `rest`, and has joined again."""

    def join(self, joining: Caches) -> None:
        """Appends the rows of another of the same layout; that one is used up."""

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order. One that stays in its place costs nothing."""

    def clear(self) -> None:
        """Lets go of all rows and of the model."""

    def extract(self, row: int, start: int, end: int) -> CachedPrefix | None:
        """A copy of positions `start` to `end` of a row, in memory of its own; None where they are not to be had.
        `start` is 0 unless `segmented`."""

    def restore(self, kept: Sequence[CachedPrefix]) -> None:
        """Puts what was extracted into the one empty row of fresh caches, in order, from position 0 on."""

    def pretend(self, lengths: Sequence[int]) -> bool:
        """Has the rows say that they hold so many tokens, which costs the same whatever they are; False where the
        layout cannot."""

    @property
    def position_bytes(self) -> int:
        """Bytes that one position of one row takes, in layers that keep all of a text; 0 while nothing is held, or
        where that is not a number."""

    @property
    def window_bytes(self) -> int:
        """Bytes that one row takes at most in layers that keep a window of a text; 0 while nothing is held."""

    def arrays(self) -> list[Any]:
        """All arrays that must be evaluated for the caches to be up to date."""

    @property
    def nbytes(self) -> int: ...
