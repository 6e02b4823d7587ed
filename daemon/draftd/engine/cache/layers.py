"""A layer of a batched model that keeps all of a text: where mlx-lm's models write keys and values, and read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from draftd.engine.cache.attention import Run
from draftd.engine.cache.base import Allocation, LayerCache, Part
from draftd.models.mlx_lm import create_attention_mask

if TYPE_CHECKING:
    from draftd.engine.cache.batched import BatchedCaches


class BatchedAttention:
    """One layer's keys and values, slots × heads × capacity × dim. To mlx-lm's models it is a KV cache."""

    def __init__(self, owner: BatchedCaches) -> None:
        self._owner = owner
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._read = (0, 0, 0)  # rows, first and end of what the last forward read

    @property
    def offset(self) -> int | mx.array:
        return self._owner.offset

    @property
    def runs(self) -> Sequence[Run]:
        return self._owner._runs

    @property
    def allocation(self) -> Allocation:
        return Allocation(0, 0) if self.keys is None else Allocation(self.keys.shape[0], self.keys.shape[2])

    def sized(self, allocation: Allocation) -> Allocation:
        return allocation

    def _place(self, width: int) -> tuple[int, int, mx.array | None]:
        """From where and to where this forward reads, and where it writes: rows × width, None at the end of it."""
        return 0, max(self._owner.lengths) + width, self._owner._positions

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        rows, _, width, _ = keys.shape
        first, end, positions = self._place(width)
        if self.keys is None or self.values is None:
            size = self.sized(self._owner.allocation)
            self.keys, self.values = _zeros(keys, size), _zeros(values, size)
        held_keys, held_values = self.keys, self.values
        if positions is None:
            held_keys[:rows, :, end - width : end] = keys
            held_values[:rows, :, end - width : end] = values
        else:
            spare = held_keys.shape[0] - rows
            if spare:  # what is written into slots without a row is never read
                positions = mx.pad(positions, [(0, spare), (0, 0)])
                keys, values = (mx.pad(new, [(0, spare), (0, 0), (0, 0), (0, 0)]) for new in (keys, values))
            at = positions[:, None, :, None]
            held_keys = mx.put_along_axis(held_keys, mx.broadcast_to(at, keys.shape), keys, axis=2)
            held_values = mx.put_along_axis(held_values, mx.broadcast_to(at, values.shape), values, axis=2)
        self.keys, self.values, self._read = held_keys, held_values, (rows, first, end)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What this forward reads: layers that have none of their own ask the one whose they share."""
        assert self.keys is not None
        assert self.values is not None
        rows, first, end = self._read
        return self.keys[:rows, :, first:end], self.values[:rows, :, first:end]

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> Any:
        positions = self._owner._positions
        if positions is None:
            return create_attention_mask(n, self._owner.offset, return_array, window_size)
        keys = mx.arange(max(self._owner.lengths) + n)
        mask = keys <= positions[:, :, None]
        if window_size is not None:
            mask = mask & (keys > positions[:, :, None] - window_size)
        return mask[:, None]

    def rollback(self, held: list[int], wanted: list[int]) -> list[int]:
        return wanted  # what lies beyond a sequence's length is masked, and overwritten later

    def adopt(self, other: LayerCache) -> None:
        assert isinstance(other, BatchedAttention)
        self.keys, self.values = other.keys, other.values

    def restore(self, pieces: Sequence[Sequence[mx.array]], capacity: int) -> None:
        if all(pieces):  # a model may have caches that it never uses
            self.keys = _joined([keys for keys, _ in pieces], capacity)
            self.values = _joined([values for _, values in pieces], capacity)

    def clear(self) -> None:
        self.keys = self.values = None

    def arrays(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [self.keys, self.values]

    def resize(self, allocation: Allocation) -> None:
        if self.keys is not None and self.values is not None:
            size = self.sized(allocation)
            self.keys, self.values = _resized(self.keys, size), _resized(self.values, size)

    def join(self, place: int, other: LayerCache, count: int, length: int) -> None:
        assert isinstance(other, BatchedAttention)
        like_keys, like_values = self.keys, self.values
        if like_keys is None:
            like_keys, like_values = other.keys, other.values
        if like_keys is None or like_values is None:
            return
        have, need = self.allocation, self.sized(self._owner.allocation)
        if self.keys is None or self.values is None:
            self.keys, self.values = _zeros(like_keys, need), _zeros(like_values, need)
        elif have.slots < place + count or have.capacity < length:
            self.resize(need)
        if other.keys is not None and other.values is not None and length:
            self.keys[place : place + count, :, :length] = other.keys[:count, :, :length]
            self.values[place : place + count, :, :length] = other.values[:count, :, :length]

    def take(self, other: LayerCache, rows: Sequence[int]) -> None:
        assert isinstance(other, BatchedAttention)
        if other.keys is not None and other.values is not None:
            self.keys, self.values = other.keys[mx.array(rows)], other.values[mx.array(rows)]

    def put(self, other: LayerCache, rows: Sequence[int]) -> None:
        assert isinstance(other, BatchedAttention)
        if other.keys is None or other.values is None:
            return
        if self.keys is None or self.values is None:
            size = self.sized(self._owner.allocation)
            self.keys, self.values = _zeros(other.keys, size), _zeros(other.values, size)
        end = min(self.allocation.capacity, other.allocation.capacity)
        self.keys[mx.array(rows), :, :end] = other.keys[:, :, :end]
        self.values[mx.array(rows), :, :end] = other.values[:, :, :end]

    def move(self, places: Sequence[tuple[int, int]]) -> None:
        if self.keys is None or self.values is None:
            return
        source = mx.array([row for _, row in places])
        keys, values = self.keys[source], self.values[source]
        mx.eval(keys, values)  # or these would still refer to the arrays that are written next
        for i, (place, _) in enumerate(places):
            self.keys[place : place + 1] = keys[i : i + 1]
            self.values[place : place + 1] = values[i : i + 1]

    def extract(self, row: int, length: int) -> Part | None:
        return Part([mx.contiguous(a[row : row + 1, :, :length]) for a in self.arrays()])

    # mlx-lm's models ask no more of a cache than the above; some check these.
    def is_trimmable(self) -> bool:
        return True

    def empty(self) -> bool:
        return self.keys is None


def _joined(pieces: Sequence[mx.array], capacity: int) -> mx.array:
    """One array of successive segments, with room to grow."""
    rows, heads, _, dim = pieces[0].shape
    spare = mx.zeros((rows, heads, capacity - sum(piece.shape[2] for piece in pieces), dim), pieces[0].dtype)
    return mx.concatenate([*pieces, spare], axis=2)


def _zeros(like: mx.array, size: Allocation) -> mx.array:
    return mx.zeros((size.slots, like.shape[1], size.capacity, like.shape[3]), like.dtype)


def _resized(held: mx.array, size: Allocation) -> mx.array:
    rows, capacity = min(held.shape[0], size.slots), min(held.shape[2], size.capacity)
    new = _zeros(held, size)  # in any case: a part of the old would hold all of its memory
    new[:rows, :, :capacity] = held[:rows, :, :capacity]
    return new
