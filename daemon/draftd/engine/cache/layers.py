"""The cache of an attention layer in a batched model: mlx-lm's models write keys and values to it and read them
back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from draftd.engine.cache.alone_mode import AloneMode
from draftd.engine.cache.base import LayerCache, LayerOwner, LayerSlice
from draftd.engine.cache.groups import Group, Groups, alone, join_groups
from draftd.engine.cache.window import ForwardReads, GroupRead


class GroupArrays(NamedTuple):
    """Keys and values of one group, slots × heads × capacity × dim."""

    keys: mx.array
    values: mx.array


class BatchedAttention:
    """One layer's keys and values. It stands in for mlx-lm's KV cache, or its rotating cache if the layer has a
    window."""

    def __init__(self, owner: LayerOwner, size: int | None = None) -> None:
        """`size` of the window; None if the layer attends to the whole text."""
        self._owner = owner
        self.window = owner.window(size)
        if size is not None:
            self.max_size = size
        self.groups: Groups = ()
        self.parts: list[GroupArrays] = []  # by group; empty until the model first writes
        self._reads: ForwardReads | None = None  # of the last forward

    @property
    def offset(self) -> int | mx.array:
        return self._owner.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if not self.parts:
            self.groups, self.parts = self.window.groups, _empty(GroupArrays(keys, values), self.window.groups)
        self._reads = self.window.reads(self.groups)
        whole = self._reads.whole
        if whole is not None and whole.written is None:  # the usual case: in place, in fewer operations
            (part,) = self.parts
            _write(part.keys, keys, whole)
            _write(part.values, values, whole)
        else:
            self.parts = [
                GroupArrays(_write(part.keys, keys, read), _write(part.values, values, read))
                for part, read in zip(self.parts, self._reads.groups, strict=True)
            ]
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Returns the keys and values for this forward; layers that share another layer's cache ask that layer. If
        attention reads groups one by one, it calls `apart` instead."""
        assert self._reads is not None
        if (read := self._reads.whole) is not None:
            (part,) = self.parts
            return part.keys[: read.used, :, read.first : read.end], part.values[: read.used, :, read.first : read.end]
        if self._owner.apart:
            return self.parts[0]
        return self._together([part.keys for part in self.parts]), self._together([part.values for part in self.parts])

    @property
    def alone_mode(self) -> AloneMode | None:
        """The model's mode while it is active and includes attention, else None."""
        mode = self._owner.alone_mode
        return mode if mode is not None and mode.attention and self._owner.apart else None

    def own(self, row: int) -> tuple[mx.array, mx.array, int]:
        """Returns the array of a row, 1 × heads × capacity × dim for keys and for values, and the positions that it had
        before this forward."""
        part, slot = self._place(row)
        return part.keys[slot : slot + 1], part.values[slot : slot + 1], self.window.stored[row]

    def apart(self) -> list[tuple[GroupRead, mx.array, mx.array]]:
        """Returns each group's part for this forward, or nothing if one attention call reads everything."""
        if self._reads is None or not self._owner.apart or self._reads.whole is not None:
            return []
        return [
            (read, keys[: read.used, :, read.first : read.end], values[: read.used, :, read.first : read.end])
            for read, (keys, values) in zip(self._reads.groups, self.parts, strict=True)
        ]

    @property
    def order(self) -> mx.array | None:
        return None if self._reads is None else self._reads.order

    def _together(self, parts: Sequence[mx.array]) -> mx.array:
        """Concatenates all groups into one array, in the batch's row order."""
        assert self._reads is not None
        first, end = self.window.first, self.window.end
        same = [
            mx.pad(part[: read.used, :, first : read.end], [(0, 0), (0, 0), (0, end - read.end), (0, 0)])
            for part, read in zip(parts, self._reads.groups, strict=True)
        ]
        whole = mx.concatenate(same, axis=0)
        return whole if self._reads.order is None else whole[self._reads.order]

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> Any:
        if (
            self.alone_mode is not None
            and not return_array
            and (window_size is None or window_size == self.window.size)
        ):
            return None  # each token reads only keys that it sees
        return self.window.mask(n, return_array, window_size)

    def rollback(self, lengths: list[int], wanted: list[int]) -> list[int]:
        return wanted  # positions beyond a sequence's length are masked, and overwritten later

    # rows

    def regroup(self) -> None:
        """Rearranges the arrays into the window's current groups. Unchanged groups are not copied."""
        present = dict(zip(self.groups, self.parts, strict=False))
        parts = [present.get(group) or self._gather(group.rows, group) for group in self.window.groups]
        self.groups, self.parts = self.window.groups, parts

    def join(self, place: int, other: LayerCache) -> None:
        assert isinstance(other, BatchedAttention)
        if self.parts or other.parts:
            like = (self.parts or other.parts)[0]
            for layer in (self, other):
                if not layer.parts:  # empty rows
                    layer.groups, layer.parts = layer.window.groups, _empty(like, layer.window.groups)
        self.groups, self.parts = join_groups(self.groups, place, other.groups), self.parts + other.parts

    def select(self, rows: Sequence[int]) -> None:
        if not self.parts:
            return
        self.groups, moves = self.window.selections.select(self.groups, rows)
        if moves is not None:
            parts = zip(self.parts, moves, strict=True)
            self.parts = [_move_slots(part, own) for part, own in parts if own is not None]

    def take(self, other: LayerCache, rows: Sequence[int]) -> None:
        assert isinstance(other, BatchedAttention)
        if other.parts:
            self.groups = self.window.groups
            self.parts = [other._gather([rows[row] for row in group.rows], group) for group in self.groups]

    def move(self, other: LayerCache, row: int) -> bool:
        assert isinstance(other, BatchedAttention)
        place = alone(other.groups, row)
        if place is None:
            self.take(other, [row])
            return bool(self.parts)
        self.groups, self.parts = (other.groups[place]._replace(rows=(0,)),), [other.parts[place]]
        other.groups = (*other.groups[:place], *other.groups[place + 1 :])
        other.parts = [*other.parts[:place], *other.parts[place + 1 :]]
        return False

    def put(self, other: LayerCache, rows: Sequence[int]) -> None:
        assert isinstance(other, BatchedAttention)
        if not other.parts:
            return
        if not self.parts:
            self.groups, self.parts = self.window.groups, _empty(other.parts[0], self.window.groups)
        for i, row in enumerate(rows):
            (mine, slot), (theirs, source) = self._place(row), other._place(i)
            end = min(mine.keys.shape[2], theirs.keys.shape[2])
            for to, of in zip(mine, theirs, strict=True):
                to[slot : slot + 1, :, :end] = of[source : source + 1, :, :end]

    def shift(self, moves: Sequence[int]) -> None:
        """Moves each row's positions `moves[row]` places to the front."""
        for i, (group, part) in enumerate(zip(self.groups, self.parts, strict=False)):
            own = [moves[row] for row in group.rows]
            if any(own):
                self.parts[i] = GroupArrays(*(shift_positions(array, own) for array in part))

    def restore(self, arrays: Sequence[Sequence[mx.array]]) -> None:
        """Fills this empty cache with one sequence, given as keys and values for successive positions."""
        self.groups = self.window.groups
        if all(arrays):  # some models have caches that they never use
            (group,) = self.groups
            self.parts = [GroupArrays(*(_concatenate(pieces, group.capacity) for pieces in zip(*arrays, strict=True)))]

    def clear(self) -> None:
        self.groups, self.parts = (), []

    def arrays(self) -> list[mx.array]:
        return [array for part in self.parts for array in part]

    def positions(self, row: int, start: int, end: int) -> list[mx.array]:
        """Returns a copy of a row's keys and values, positions counted from the first that is held."""
        if not self.parts:
            return []
        part, slot = self._place(row)
        return [mx.contiguous(array[slot : slot + 1, :, start:end]) for array in part]

    def extract(self, row: int, length: int) -> LayerSlice | None:
        start = self.window.starts[row]
        least = start + (self.window.size or 0) - 1 if start else 0
        if length < least:
            return None
        return LayerSlice(self.positions(row, 0, length - start), start, least)

    def _place(self, row: int) -> tuple[GroupArrays, int]:
        """Returns the arrays and slot of a row."""
        return next(
            (part, group.rows.index(row))
            for group, part in zip(self.groups, self.parts, strict=True)
            if row in group.rows
        )

    def _gather(self, rows: Sequence[int], group: Group) -> GroupArrays:
        """Copies these rows into new arrays for this group."""
        (copy,) = _empty(self.parts[0], [group])
        for slot, row in enumerate(rows):
            part, source = self._place(row)
            end = min(group.capacity, part.keys.shape[2])
            for to, of in zip(copy, part, strict=True):
                to[slot : slot + 1, :, :end] = of[source : source + 1, :, :end]
        return copy

    # Attributes that some of mlx-lm's models read, or use to make one array wait for another.

    @property
    def keys(self) -> mx.array | None:
        return self.parts[0].keys if self.parts else None

    @keys.setter
    def keys(self, keys: mx.array) -> None:
        self.parts[0] = self.parts[0]._replace(keys=keys)

    @property
    def values(self) -> mx.array | None:
        return self.parts[0].values if self.parts else None

    @values.setter
    def values(self, values: mx.array) -> None:
        self.parts[0] = self.parts[0]._replace(values=values)

    def is_trimmable(self) -> bool:
        return True

    def empty(self) -> bool:
        return not self.parts


class KeyPositions(NamedTuple):
    """The positions in their texts of the keys that a forward reads, rows × keys, for rows of unequal length."""

    positions: mx.array


class ChunkedAttention(BatchedAttention):
    """`BatchedAttention` for models such as Llama 4 that attend within the query's chunk and make the mask themselves.
    A chunk is kept as a window of its size."""

    @property
    def start_position(self) -> int | KeyPositions:
        """The position of the first key in this forward."""
        starts, first = self.window.starts, self.window.first
        if isinstance(self.offset, int) and min(starts) == max(starts):
            return starts[0] + first
        return KeyPositions(mx.array(starts)[:, None] + mx.arange(first, self.window.end))

    def maybe_trim_front(self) -> None:
        """Does nothing: the window has already dropped positions that are out of sight."""


def _write(array: mx.array, new: mx.array, read: GroupRead) -> mx.array:
    """Writes `new` into `array`, in place if nothing else refers to it."""
    if read.rows is not None:
        new = new[read.rows]
    width = new.shape[2]
    if read.written is None:
        array[: read.used, :, read.end - width : read.end] = new
        return array
    spare = array.shape[0] - read.used
    if spare:  # slots without a row are never read
        new = mx.pad(new, [(0, spare), (0, 0), (0, 0), (0, 0)])
    at = mx.broadcast_to(read.written, new.shape)
    return mx.put_along_axis(array, at, new, axis=2)


def _move_slots(part: GroupArrays, moves: Sequence[tuple[int, int]]) -> GroupArrays:
    """Copies slots, each given as (to, from)."""
    if moves:
        source = mx.array([slot for _, slot in moves])
        copies = [array[source] for array in part]
        mx.eval(copies)  # otherwise these would refer to arrays that are written next
        for array, copy in zip(part, copies, strict=True):
            for i, (slot, _) in enumerate(moves):
                array[slot : slot + 1] = copy[i : i + 1]
    return part


def _concatenate(pieces: Sequence[mx.array], capacity: int) -> mx.array:
    """Returns one array of successive segments, padded to `capacity` positions."""
    rows, heads, _, dim = pieces[0].shape
    spare = mx.zeros((rows, heads, capacity - sum(piece.shape[2] for piece in pieces), dim), pieces[0].dtype)
    return mx.concatenate([*pieces, spare], axis=2)


def _empty(like: GroupArrays, groups: Iterable[Group]) -> list[GroupArrays]:
    """Returns zeros for each of these groups, with the heads, dimensions and types of `like`."""

    def zeros(array: mx.array, group: Group) -> mx.array:
        return mx.zeros((group.slots, array.shape[1], group.capacity, array.shape[3]), array.dtype)

    return [GroupArrays(zeros(like.keys, group), zeros(like.values, group)) for group in groups]


def shift_positions(array: mx.array, moves: Sequence[int]) -> mx.array:
    """Moves each slot's positions `moves[slot]` places to the front. Positions from beyond the array are
    meaningless."""
    slots, heads, capacity, dim = array.shape
    by = mx.array([*moves, *[0] * (slots - len(moves))])[:, None]
    source = mx.clip(mx.arange(capacity)[None] + by, 0, capacity - 1)[:, None, :, None]
    return mx.take_along_axis(array, mx.broadcast_to(source, (slots, heads, capacity, dim)), axis=2)
