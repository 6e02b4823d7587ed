"""Layers whose attention sees the last `size` positions only, in a batch of sequences at unlike lengths.

A sequence keeps what its next query sees, and some more: what a rejected block is rolled back over, and room to write.
When that is used up the oldest positions go, and the others move to the front of the arrays. So memory and attention
are bounded by the window, whatever the text's length, and a block can always be rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from draftd.engine.cache.attention import Run
from draftd.engine.cache.base import Allocation, LayerCache, Part
from draftd.engine.cache.layers import BatchedAttention
from draftd.models.mlx_lm import create_attention_mask

if TYPE_CHECKING:
    from draftd.engine.cache.batched import BatchedCaches

_LEAST_ROOM = 64  # positions between two moves; of a large window a quarter
_SPARE = 16  # positions that are kept beyond what is seen: a draft is taken back over as many forwards as tokens
_GRAIN = 64  # capacities are multiples of this


class Window:
    """Where the sequences begin in the arrays of all layers with one window; and where this forward reads and writes.

    `size` positions are seen, the query's own among them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept = size - 1 + _SPARE
        self.most = self._kept + max(_LEAST_ROOM, size // 4)  # held at most, where forwards are short
        self.starts: list[int] = []  # by row: the position that lies first
        self.needed = self.most  # positions that arrays must have for this forward
        self.first = self.end = 0  # this forward reads from `first` to before `end`
        self.written: mx.array | None = None  # rows × width, where this forward writes; None where rows are level

    def begin(self, lengths: Sequence[int], width: int) -> list[int]:
        """Before a forward of `width` after so many tokens of each sequence: by how many positions each must move to
        the front; empty where none must."""
        moves = self._moves(lengths) if self._short(lengths, width) else []
        held = [length - start for length, start in zip(lengths, self.starts, strict=True)]
        self.end = max(held) + width
        self.first = max(0, min(held) - self.size + 1)
        self.needed = max(self.most, -(-self.end // _GRAIN) * _GRAIN)
        self.written = None if len(set(held)) == 1 else mx.array(held)[:, None] + mx.arange(width)
        return moves

    def settle(self, lengths: Sequence[int]) -> list[int]:
        """Gives back what no later query sees; by how many positions each must move."""
        return self._moves(lengths)

    def restore(self, length: int, first: int) -> None:
        """Of one row: it holds so many tokens, from position `first` on."""
        self.starts, self.needed = [first], max(self.most, length - first)

    def _short(self, lengths: Sequence[int], width: int) -> bool:
        return any(
            length < start or (length - start + width > self.most and length - start > self._kept)
            for length, start in zip(lengths, self.starts, strict=True)
        )

    def _moves(self, lengths: Sequence[int]) -> list[int]:
        before = self.starts
        self.starts = [
            start if 0 <= length - start <= self._kept else max(0, length - self._kept)
            for length, start in zip(lengths, before, strict=True)
        ]
        moves = [now - then for now, then in zip(self.starts, before, strict=True)]
        return moves if any(moves) else []

    def longest(self, lengths: Sequence[int]) -> int:
        """The most positions that any sequence holds."""
        return max((length - start for length, start in zip(lengths, self.starts, strict=True)), default=0)

    def mask(self, width: int, return_array: bool, seen: int | None) -> Any:
        """For the queries of this forward, as mlx-lm's models ask for it; `seen`: they see fewer than the window."""
        size = min(self.size, seen or self.size)
        if self.written is None:
            offset = self.end - width - self.first
            return create_attention_mask(width, offset, return_array, size if offset + width > size else None)
        keys = mx.arange(self.first, self.end)
        queries = self.written[:, :, None]
        return ((keys <= queries) & (keys > queries - size))[:, None]

    def sized(self, allocation: Allocation) -> Allocation:
        return Allocation(allocation.slots, min(allocation.capacity, self.needed))


class WindowAttention(BatchedAttention):
    """A layer with a sliding window. To mlx-lm's models it is a rotating KV cache."""

    def __init__(self, owner: BatchedCaches, size: int) -> None:
        super().__init__(owner)
        self.max_size = size
        self.window = owner.windows.setdefault(size, Window(size))

    @property
    def runs(self) -> Sequence[Run]:
        return ()  # no row's window is so much longer than another's that a call of its own would pay

    def sized(self, allocation: Allocation) -> Allocation:
        return self.window.sized(allocation)

    def _place(self, width: int) -> tuple[int, int, mx.array | None]:
        return self.window.first, self.window.end, self.window.written

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> Any:
        return self.window.mask(n, return_array, window_size)

    def join(self, place: int, other: LayerCache, count: int, length: int) -> None:
        assert isinstance(other, WindowAttention)
        super().join(place, other, count, other.window.longest(other._owner.lengths))

    def extract(self, row: int, length: int) -> Part | None:
        start = self.window.starts[row]
        least = start + self.max_size - 1 if start else 0
        if length < least:
            return None
        part = [mx.contiguous(a[row : row + 1, :, : length - start]) for a in self.arrays()]
        return Part(part, start, least)

    def shift(self, moves: Sequence[int]) -> None:
        """Each row's positions so many nearer to the front."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = moved(self.keys, moves), moved(self.values, moves)


def moved(held: mx.array, moves: Sequence[int]) -> mx.array:
    """Each sequence's positions, so many nearer to the front. What comes from beyond the arrays means nothing."""
    slots, heads, capacity, dim = held.shape
    by = mx.array([*moves, *[0] * (slots - len(moves))])[:, None]
    source = mx.clip(mx.arange(capacity)[None] + by, 0, capacity - 1)[:, None, :, None]
    return mx.take_along_axis(held, mx.broadcast_to(source, (slots, heads, capacity, dim)), axis=2)
