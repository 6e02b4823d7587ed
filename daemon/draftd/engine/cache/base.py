"""Key-value caches of the running sequences, and the rollback that speculation needs.

A forward of width w makes each sequence w longer; `rollback` takes back what the target rejected. `batched.py` and
`per_sequence.py` are the two layouts, and `layouts.py` chooses between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import mlx.core as mx

if TYPE_CHECKING:  # mlx-lm is imported where a model is
    from draftd.engine.cache.alone_mode import AloneMode
    from draftd.engine.cache.window import AttentionWindow


@dataclass(frozen=True, slots=True)
class KVSegment:
    """Keys and values of successive positions. `layers` has each layer's arrays, 1 × heads × length × dim."""

    layers: list[list[mx.array]]
    length: int

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for arrays in self.layers for a in arrays)

    def split(self, n: int) -> tuple[KVSegment, KVSegment]:
        """Returns the first `n` positions and the rest, each copied to its own memory."""
        return self.copy(0, n), self.copy(n, self.length)

    def copy(self, start: int, end: int) -> KVSegment:
        """Returns positions `start` to `end`, copied to their own memory."""
        copies = [[mx.contiguous(a[:, :, start:end]) for a in arrays] for arrays in self.layers]
        mx.eval(copies)
        return KVSegment(copies, end - start)

    def head(self, n: int) -> KVSegment:
        """Returns the first `n` positions as views, for reading at once: a view keeps the whole segment in memory."""
        return self if n == self.length else KVSegment([[a[:, :, :n] for a in arrays] for arrays in self.layers], n)


class CacheSnapshot(Protocol):
    """The contents of one sequence's caches after its first `length` tokens."""

    @property
    def length(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def least(self) -> int:
        """The fewest tokens that the snapshot can be cut to: 0 if it holds every position, `length` if it cannot be
        cut, as with a recurrent state or a ring that has wrapped around."""

    def cut(self, length: int) -> CacheSnapshot | None:
        """Returns a writable snapshot of the first `length` tokens, or None if it cannot be cut to that length."""


CachedPrefix = KVSegment | CacheSnapshot

Positions = Sequence[Sequence[int]]


def last(widths: Sequence[int]) -> Positions:
    """Returns each row's last real position: `widths[i] - 1`."""
    return [[max(width, 1) - 1] for width in widths]


class LayerSlice(NamedTuple):
    """A copy of one layer's cache for the first tokens of a row. `first`: the first position that `arrays` hold, more
    than 0 if a window has dropped earlier ones. `least`: the fewest tokens that the copy can be cut to."""

    arrays: list[mx.array]
    first: int = 0
    least: int = 0


@dataclass(frozen=True, slots=True)
class BatchedSnapshot:
    """A `CacheSnapshot` of one row, layer by layer, for models in which some layers do not keep whole texts."""

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
    """Returns token ids as an array, rows × the longest row's length, padded with zeros on the right."""
    width = max(map(len, rows))
    return mx.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=mx.uint32)


def places_after(places: int, leaving: Sequence[int]) -> list[int]:
    """Returns which of `places` rows is at each place after the rows in `leaving` (ascending) have left. The last row
    moves into each gap, so few rows move."""
    kept = list(range(places))
    for place in leaving:
        last = kept.pop()
        if last != place:
            kept[kept.index(place)] = last
    return kept


def flat(caches: Sequence[Any]) -> list[Any]:
    """Flattens mlx-lm's CacheList, which bundles several caches of one layer."""
    return [leaf for c in caches for leaf in (flat(c.caches) if hasattr(c, "caches") else [c])]


class RollbackFailed(Exception):
    """The error for a cache that did not roll back as asked: its sequence's text can no longer be trusted."""


class LayerOwner(Protocol):
    """The batch of sequences that a layer's cache belongs to."""

    @property
    def lengths(self) -> list[int]:
        """Tokens in the cache, by row."""

    @property
    def offset(self) -> int | mx.array:
        """The lengths when this forward began: one number if they are all equal."""

    @property
    def apart(self) -> bool:
        """Whether the model's attention reads groups of rows one by one."""

    @property
    def forwards(self) -> int:
        """The most forwards that one rollback may undo."""

    @property
    def alone_mode(self) -> AloneMode | None:
        """The model's mode while it is active (alone.py), else None."""

    def window(self, size: int | None) -> AttentionWindow:
        """Returns the window of this size, shared by all layers that have it. None: the layers attend to the whole
        text."""


class LayerCache(Protocol):
    """One layer's cache for a batch of sequences of unequal length, each starting at position 0.

    mlx-lm's model treats it as that layer's cache: it writes keys and values, reads them, and asks for masks. Some
    architectures ask for more, so a trial at load decides whether batching works (layouts.py)."""

    def rollback(self, lengths: list[int], wanted: list[int]) -> list[int]:
        """Rolls each sequence back from `lengths` to `wanted`. Returns the lengths reached: a cache that cannot stop at
        `wanted` stops earlier, and the caller feeds the difference again."""

    def join(self, place: int, other: LayerCache) -> None:
        """Takes over all sequences of `other`, placing them from row `place` on. `other` must not be used
        afterwards."""

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these sequences, in this order."""

    def take(self, other: LayerCache, rows: Sequence[int]) -> None:
        """Fills this empty cache with copies of the given rows of `other`."""

    def move(self, other: LayerCache, row: int) -> bool:
        """Moves one row of `other` into this empty cache: its own arrays if it has some, else a copy. The caller must
        then `select` the remaining rows of `other`. Returns whether arrays were copied."""

    def put(self, other: LayerCache, rows: Sequence[int]) -> None:
        """Overwrites these rows with those of `other`, which came from `take`."""

    def restore(self, arrays: Sequence[Sequence[mx.array]]) -> None:
        """Fills this empty cache with one sequence, given as `arrays` for successive positions."""

    def clear(self) -> None:
        """Frees all arrays."""

    def arrays(self) -> list[mx.array]:
        """Returns all arrays, each slots × …, in any order; none while the cache is empty."""

    def extract(self, row: int, length: int) -> LayerSlice | None:
        """Returns a copy of the cache for a row's first `length` tokens, or None if later tokens can no longer be
        separated from them."""


class Caches(Protocol):
    """The caches of all layers of one model for a list of sequences, called rows."""

    @property
    def lengths(self) -> list[int]:
        """Tokens in the cache, by row."""

    @property
    def segmented(self) -> bool:
        """Whether any range of a row's positions can be kept by itself."""

    @property
    def states(self) -> mx.array | None:
        """The last hidden states of the latest forward, rows × width × size, those of padding meaningless; None if the
        model records none (`model_layers.record_states`)."""

    def forward(self, tokens: mx.array, widths: Sequence[int], *, at: Positions | None = None) -> mx.array:
        """Runs the model on `tokens` (rows × width). The first `widths[i]` tokens of row i are real; the rest is
        padding.

        Returns logits lazily, rows × width × vocabulary; those of padding are meaningless. With `at`, n positions for
        each row, only their logits: rows × n × vocabulary."""

    def rollback(self, lengths: Sequence[int]) -> list[int]:
        """Rolls each row back to `lengths[i]`, or further if a layer cannot stop there. Returns the lengths reached,
        the same in all layers; the caller feeds the difference again. Raises RollbackFailed if a cache does not
        comply."""

    def fresh(self, *lengths: int) -> Caches:
        """Returns new caches of the same model with one empty row for each of `lengths`, the tokens that it will hold.
        Without `lengths`: one row."""

    def split(self, rows: Sequence[int], *, rest: bool = False) -> Caches:
        """Moves these rows, in this order, into new caches. A single row that has arrays of its own is not copied.
        `rest`: the row will join again and be split off repeatedly, so it keeps its own arrays for some forwards after
        each join."""

    def join(self, joining: Caches) -> None:
        """Appends the rows of other caches of the same layout, which must not be used afterwards."""

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order. A row that stays in place costs nothing."""

    def clear(self) -> None:
        """Drops all rows and the model."""

    def extract(self, row: int, start: int, end: int) -> CachedPrefix | None:
        """Returns a copy of positions `start` to `end` of a row in its own memory, or None if that is impossible.
        `start` must be 0 unless `segmented`."""

    def restore(self, kept: Sequence[CachedPrefix]) -> None:
        """Puts extracted prefixes into the single empty row of fresh caches, in order from position 0."""

    def pretend(self, lengths: Sequence[int]) -> bool:
        """Sets row lengths without filling the rows, for calibration: a forward's cost depends on lengths, not on
        content. Returns False if the layout cannot."""

    @property
    def position_bytes(self) -> int:
        """Bytes of one position of one row, in layers that keep the whole text. 0 while the caches are empty, or if the
        bytes do not grow by position."""

    @property
    def window_bytes(self) -> int:
        """The most bytes that one row uses in layers with a window; 0 while the caches are empty."""

    def arrays(self) -> list[Any]:
        """Returns all arrays that must be evaluated before the caches are up to date."""

    @property
    def nbytes(self) -> int: ...
