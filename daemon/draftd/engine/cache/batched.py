"""All rows of a plain-KV-cache model in one set of arrays, each row at its own length.

One forward serves every row, and a rollback only lowers a number, since what lies beyond a row's length is masked and
later overwritten. Rows begin at position 0 and are padded on the right: there is no left padding to reclaim.

Rows lie in the first slots of the arrays, in order; more slots and positions are kept than are used, so that a step
and a joining sequence write in place. MLX does that where nothing else refers to an array: nothing here may keep a view
of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.attention import Run, runs
from draftd.engine.cache.base import (
    MARGIN,
    Allocation,
    CachedPrefix,
    Caches,
    KVSegment,
    LayerCache,
    copied,
    slots,
    stepped,
)
from draftd.models.mlx_lm import KVCache, create_attention_mask, make_prompt_cache

_FORWARDS = 16  # over which they change their size, some layers in each: all at once would hold the rows up
_WASTE = 2  # times what is needed may be held before it is given back


class BatchedCaches:
    """`Caches` of a model that batched layers are for."""

    segmented = True

    def __init__(
        self,
        model: Any,
        most_rows: int | None = None,
        *,
        apart: bool = False,
        call_cost: int | None = None,
        make: Sequence[LayerFactory] | None = None,
    ) -> None:
        """`most_rows`: there will be at most so many. `apart`: the model's attention may take rows of unlike length
        apart. `call_cost`: positions that could be read in the time of one more call of it, where that is not what was
        measured. `make`: the layers, where they are not those that `batched_layers` has for the model."""
        self._model = model
        self._most_rows = most_rows
        self._apart = apart
        self._call_cost = call_cost
        self._make = make or batched_layers(model)
        self._layers: list[LayerCache] = [made(self) for made in self._make]
        self._positions: mx.array | None = None  # rows × width, where this forward writes; None when rows are level
        self._runs: list[Run] = []  # rows that this forward's attention takes together; none where it takes all
        self._expected: list[int] = []  # lengths of rows that will join
        self.allocation = Allocation(0, 0)  # what arrays are made for; those of some layers may lag behind
        self._even = False  # none lags behind
        self.offset: int | mx.array = 0
        self.lengths: list[int] = []

    def forward(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        first = self.lengths[0]
        if all(n == first for n in self.lengths):
            self.offset, self._positions, self._runs = first, None, []
        else:
            self._runs = runs(self.lengths, self._call_cost) if self._apart else []
            self.offset = mx.array(self.lengths)
            self._positions = self.offset[:, None] + mx.arange(tokens.shape[1])
        self._resize(max(self.lengths) + tokens.shape[1])
        logits: mx.array = self._model(tokens, cache=self._layers)
        self.lengths = [n + w for n, w in zip(self.lengths, widths, strict=True)]
        return logits

    def rollback(self, lengths: Sequence[int]) -> list[int]:
        held, wanted = self.lengths, list(lengths)
        assert all(new <= old for new, old in zip(wanted, held, strict=True)), (wanted, held)
        least = wanted
        for layer in self._layers:
            reached = layer.rollback(held, wanted)
            if reached != least:
                least = [min(pair) for pair in zip(least, reached, strict=True)]
        if least != wanted:
            least = self._roll_all_back(held, least)
        self.lengths = list(least)
        return self.lengths

    def _roll_all_back(self, held: list[int], least: list[int]) -> list[int]:
        """All layers go to the least that one reached; going there may take another further still."""
        while True:
            reached = [layer.rollback(held, least) for layer in self._layers]
            further = [min(lengths) for lengths in zip(*reached, strict=True)]
            if further == least:
                return least
            least = further

    def refusal(self, row: int, width: int) -> str:
        return ""

    def fresh(self, length: int = 0) -> BatchedCaches:
        new = BatchedCaches(self._model, make=self._make)
        new.lengths = [0]
        if length:
            new.allocation = Allocation(1, stepped(length + MARGIN))  # which it does not grow beyond before it joins
        return new

    def expect(self, lengths: Sequence[int]) -> None:
        self._expected = list(lengths)

    def join(self, joining: Caches) -> None:
        assert isinstance(joining, BatchedCaches)
        rows, longest = len(self.lengths), max(joining.lengths, default=0)
        if rows:
            expected = max(len(joining.lengths), len(self._expected))  # the joining ones are among them
            self._allocate(rows + expected, max(longest, *self.lengths, *self._expected) + MARGIN)
            for mine, theirs in zip(self._layers, joining._layers, strict=True):
                mine.join(rows, theirs, len(joining.lengths), longest)
        else:
            self.allocation, self._even = joining.allocation, False
            for mine, theirs in zip(self._layers, joining._layers, strict=True):
                mine.adopt(theirs)
        self.lengths = self.lengths + joining.lengths
        joining.clear()

    def select(self, rows: Sequence[int]) -> None:
        moved = [(place, row) for place, row in enumerate(rows) if place != row]
        self.lengths = [self.lengths[i] for i in rows]
        if not rows:
            self.allocation, self._even = Allocation(0, 0), False
            for layer in self._layers:
                layer.clear()
        elif moved:
            for layer in self._layers:
                layer.move(moved)

    def clear(self) -> None:
        # Layers refer to their owner: without this they would keep each other, and the weights, until the collector.
        self._model, self._layers, self.lengths = None, [], []

    def extract(self, row: int, start: int, end: int) -> CachedPrefix:
        assert end <= self.lengths[row]
        return copied([layer.arrays() for layer in self._layers], row, start, end)

    def restore(self, kept: Sequence[CachedPrefix]) -> None:
        assert self.lengths == [0]
        pieces = [piece for piece in kept if isinstance(piece, KVSegment)]
        length = sum(piece.length for piece in pieces)
        self.allocation = Allocation(1, max(self.allocation.capacity, stepped(length)))
        for i, layer in enumerate(self._layers):
            layer.restore([piece.layers[i] for piece in pieces], self.allocation.capacity)
        self.lengths = [length]

    @property
    def position_bytes(self) -> int:
        return sum(a.shape[1] * a.shape[3] * a.itemsize for a in self.arrays())

    def arrays(self) -> list[Any]:
        return [a for layer in self._layers for a in layer.arrays()]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays())

    def _resize(self, end: int) -> None:
        """Before a forward that writes up to `end`: arrays that are too small grow, and a few others take the size
        that all shall have."""
        rows, few = len(self.lengths), -(-len(self._layers) // _FORWARDS)
        expected = rows + len(self._expected)
        longest = max(end + (MARGIN if end < self.allocation.capacity else 0), *self._expected, 0)
        self._allocate(expected, longest)
        need = Allocation(slots(expected, self._most_rows), stepped(longest))
        if self.allocation.slots * self.allocation.capacity > _WASTE * need.slots * need.capacity:
            self.allocation, self._even = need, False
        if self._even:
            return
        lagging = [layer for layer in self._layers if layer.arrays() and layer.allocation != self.allocation]
        for layer in lagging:
            has = layer.allocation
            short = has.slots < rows or has.capacity < end
            if short or few:
                layer.resize(self.allocation)
            few -= not short and few > 0
        self._even = not lagging

    def _allocate(self, rows: int, positions: int) -> None:
        """Where there is too little, exactly as much as is needed: all is copied anyway."""
        if rows > self.allocation.slots or positions > self.allocation.capacity:
            self.allocation, self._even = Allocation(slots(rows, self._most_rows), stepped(positions)), False


class BatchedAttention:
    """One layer's keys and values, slots × heads × capacity × dim. To mlx-lm's models it is a KV cache."""

    def __init__(self, owner: BatchedCaches) -> None:
        self._owner = owner
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        return self._owner.offset

    @property
    def runs(self) -> Sequence[Run]:
        return self._owner._runs

    @property
    def allocation(self) -> Allocation:
        return Allocation(0, 0) if self.keys is None else Allocation(self.keys.shape[0], self.keys.shape[2])

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        rows, _, width, _ = keys.shape
        end = max(self._owner.lengths) + width
        if self.keys is None or self.values is None:
            self.keys, self.values = _zeros(keys, self._owner.allocation), _zeros(values, self._owner.allocation)
        held_keys, held_values = self.keys, self.values
        positions = self._owner._positions
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
        self.keys, self.values = held_keys, held_values
        return held_keys[:rows, :, :end], held_values[:rows, :, :end]

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
        self.keys = _joined([keys for keys, _ in pieces], capacity)
        self.values = _joined([values for _, values in pieces], capacity)

    def clear(self) -> None:
        self.keys = self.values = None

    def arrays(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [self.keys, self.values]

    def resize(self, allocation: Allocation) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = _resized(self.keys, allocation), _resized(self.values, allocation)

    def join(self, place: int, other: LayerCache, count: int, length: int) -> None:
        assert isinstance(other, BatchedAttention)
        like_keys, like_values = self.keys, self.values
        if like_keys is None:
            like_keys, like_values = other.keys, other.values
        if like_keys is None or like_values is None:
            return
        have, need = self.allocation, self._owner.allocation
        if self.keys is None or self.values is None:
            self.keys, self.values = _zeros(like_keys, need), _zeros(like_values, need)
        elif have.slots < place + count or have.capacity < length:
            self.resize(need)
        if other.keys is not None and other.values is not None and length:
            self.keys[place : place + count, :, :length] = other.keys[:count, :, :length]
            self.values[place : place + count, :, :length] = other.values[:count, :, :length]

    def move(self, places: Sequence[tuple[int, int]]) -> None:
        if self.keys is None or self.values is None:
            return
        source = mx.array([row for _, row in places])
        keys, values = self.keys[source], self.values[source]
        mx.eval(keys, values)  # or these would still refer to the arrays that are written next
        for i, (place, _) in enumerate(places):
            self.keys[place : place + 1] = keys[i : i + 1]
            self.values[place : place + 1] = values[i : i + 1]

    # mlx-lm's models ask no more of a cache than the above; some check these.
    def is_trimmable(self) -> bool:
        return True

    def empty(self) -> bool:
        return self.keys is None


LayerFactory = Callable[[BatchedCaches], LayerCache]

_BATCHED: dict[type, LayerFactory] = {KVCache: BatchedAttention}  # by the cache that mlx-lm makes for a layer


def batched_layers(model: Any) -> list[LayerFactory]:
    """One for each layer. Raises KeyError, with a name, for a layer that no batched layout is for."""
    made = [type(cache) for cache in make_prompt_cache(model)]
    missing = sorted({kind.__name__ for kind in made if kind not in _BATCHED})
    if missing:
        raise KeyError(", ".join(missing))
    return [_BATCHED[kind] for kind in made]


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
