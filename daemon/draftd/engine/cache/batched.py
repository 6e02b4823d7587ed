"""All rows of a plain-KV-cache model in one set of arrays, each row at its own length.

One forward serves every row, and a rollback only lowers a number, since what lies beyond a row's length is masked and
later overwritten. Rows begin at position 0 and are padded on the right: there is no left padding to reclaim.

Rows lie in the first slots of the arrays, in order; more slots and positions are kept than are used, so that a step
and a joining sequence write in place. MLX does that where nothing else refers to an array: nothing here may keep a view
of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.attention import Run, runs
from draftd.engine.cache.base import (
    MARGIN,
    Allocation,
    BatchedSnapshot,
    CachedPrefix,
    Caches,
    KVSegment,
    LayerCache,
    copied,
    slots,
    stepped,
)
from draftd.engine.cache.factories import LayerFactory, batched_layers, listed
from draftd.engine.cache.layers import BatchedAttention
from draftd.engine.cache.state import RecurrentState
from draftd.engine.cache.window import Window, WindowAttention

_FORWARDS = 16  # over which they change their size, some layers in each: all at once would hold the rows up
_WASTE = 2  # times what is needed may be held before it is given back


class BatchedCaches:
    """`Caches` of a model that batched layers are for."""

    def __init__(
        self,
        model: Any,
        most_rows: int | None = None,
        *,
        apart: bool = False,
        call_cost: int | None = None,
        forwards: int = 1,
        level: bool = False,
        make: Sequence[LayerFactory] | None = None,
    ) -> None:
        """`most_rows`: there will be at most so many. `apart`: the model's attention may take rows of unlike length
        apart. `call_cost`: positions that could be read in the time of one more call of it, where that is not what was
        measured. `forwards`: how many a rollback may go back over. `level`: only rows of equal width may share a
        forward. `make`: the layers, where they are not those that `batched_layers` has for the model."""
        self._model = model
        self._most_rows = most_rows
        self._apart = apart
        self._call_cost = call_cost
        self.forwards = forwards
        self._level = level
        self._make = make or batched_layers(model)
        self.windows: dict[int, Window] = {}  # by size
        self._layers: list[LayerCache] = [made(self) for made in self._make]
        self._states = [layer for layer in self._layers if isinstance(layer, RecurrentState)]
        self.segmented = not self.windows and not self._states
        self._listed = listed(model, self._layers)  # as the model takes them
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
        for window in self.windows.values():
            self._move(window, window.begin(self.lengths, tokens.shape[1]))
        for state in self._states:
            state.begin(widths, tokens.shape[1])
        self._resize(max(self.lengths) + tokens.shape[1])
        if self._level and any(w != tokens.shape[1] for w in widths):
            logits = self._by_width(tokens, widths)
        else:
            logits = self._model(tokens, cache=self._listed)
        self.lengths = [n + w for n, w in zip(self.lengths, widths, strict=True)]
        return logits

    def _by_width(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        """A forward for each width, of copies of the rows that have it."""
        order: list[int] = []
        out: list[mx.array] = []
        for width in sorted(set(widths) - {0}):
            rows = [row for row, w in enumerate(widths) if w == width]
            some = BatchedCaches(self._model, apart=self._apart, call_cost=self._call_cost, make=self._make)
            some.lengths = [self.lengths[row] for row in rows]
            some.allocation = Allocation(len(rows), self.allocation.capacity)
            for size, window in some.windows.items():
                window.starts = [self.windows[size].starts[row] for row in rows]
            for mine, theirs in zip(self._layers, some._layers, strict=True):
                theirs.take(mine, rows)
            logits = some.forward(tokens[mx.array(rows), :width], [width] * len(rows))
            for mine, theirs in zip(self._layers, some._layers, strict=True):
                mine.put(theirs, rows)
            some.clear()
            out.append(mx.pad(logits, [(0, 0), (0, tokens.shape[1] - width), (0, 0)]))
            order += rows
        idle = [row for row, w in enumerate(widths) if not w]
        if idle:
            out.append(mx.zeros((len(idle), *out[0].shape[1:]), out[0].dtype))
        places = [(order + idle).index(row) for row in range(len(widths))]
        return mx.concatenate(out, axis=0)[mx.array(places)]

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

    def fresh(self, length: int = 0) -> BatchedCaches:
        new = BatchedCaches(self._model, level=self._level, make=self._make)
        new.lengths = [0]
        for window in new.windows.values():
            window.starts = [0]
        if length:
            new.allocation = Allocation(1, stepped(length + MARGIN))  # which it does not grow beyond before it joins
        return new

    def expect(self, lengths: Sequence[int]) -> None:
        self._expected = list(lengths)

    def join(self, joining: Caches) -> None:
        assert isinstance(joining, BatchedCaches)
        rows, longest = len(self.lengths), max(joining.lengths, default=0)
        for size, window in joining.windows.items():
            joining._move(window, window.settle(joining.lengths))
            self.windows[size].starts += window.starts
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
        for window in self.windows.values():
            window.starts = [window.starts[i] for i in rows]
        if not rows:
            self.allocation, self._even = Allocation(0, 0), False
            for layer in self._layers:
                layer.clear()
        elif moved:
            for layer in self._layers:
                layer.move(moved)

    def clear(self) -> None:
        # Layers refer to their owner: without this they would keep each other, and the weights, until the collector.
        self._model, self._layers, self._listed, self.lengths = None, [], [], []

    def extract(self, row: int, start: int, end: int) -> CachedPrefix | None:
        assert end <= self.lengths[row]
        if self.segmented:
            return copied([layer.arrays() for layer in self._layers], row, start, end)
        assert start == 0
        parts = [layer.extract(row, end) for layer in self._layers]
        held = [part for part in parts if part is not None]
        if len(held) < len(parts):
            return None
        mx.eval([part.arrays for part in held])
        return BatchedSnapshot(held, end)

    def restore(self, kept: Sequence[CachedPrefix]) -> None:
        assert self.lengths == [0]
        if not self.segmented:
            (whole,) = kept
            assert isinstance(whole, BatchedSnapshot)
            self.allocation = Allocation(1, max(self.allocation.capacity, stepped(whole.length)))
            self.lengths = [whole.length]
            for layer, part in zip(self._layers, whole.parts, strict=True):
                if isinstance(layer, WindowAttention):
                    layer.window.restore(whole.length, part.first)
                layer.restore([part.arrays], layer.sized(self.allocation).capacity)
            return
        pieces = [piece for piece in kept if isinstance(piece, KVSegment)]
        length = sum(piece.length for piece in pieces)
        self.allocation = Allocation(1, max(self.allocation.capacity, stepped(length)))
        for i, layer in enumerate(self._layers):
            layer.restore([piece.layers[i] for piece in pieces], self.allocation.capacity)
        self.lengths = [length]

    @property
    def position_bytes(self) -> int:
        whole = (one for one in self._layers if type(one) is BatchedAttention)
        return sum(a.shape[1] * a.shape[3] * a.itemsize for one in whole for a in one.arrays())

    @property
    def window_bytes(self) -> int:
        windows = [one for one in self._layers if isinstance(one, WindowAttention)]
        of_windows: int = sum(
            one.window.most * a.shape[1] * a.shape[3] * a.itemsize for one in windows for a in one.arrays()
        )
        of_states: int = sum(a.nbytes // a.shape[0] for state in self._states for a in state.arrays())
        return of_windows + of_states

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
        lagging = [one for one in self._layers if one.arrays() and one.allocation != one.sized(self.allocation)]
        for layer in lagging:
            has = layer.allocation
            short = has.slots < rows or has.capacity < layer.sized(Allocation(rows, end)).capacity
            if short or few:
                layer.resize(self.allocation)
            few -= not short and few > 0
        self._even = not lagging and not self.windows  # a window's arrays grow for a long forward alone

    def _move(self, window: Window, moves: list[int]) -> None:
        if moves:
            for layer in self._layers:
                if isinstance(layer, WindowAttention) and layer.window is window:
                    layer.shift(moves)

    def _allocate(self, rows: int, positions: int) -> None:
        """Where there is too little, exactly as much as is needed: all is copied anyway."""
        if rows > self.allocation.slots or positions > self.allocation.capacity:
            self.allocation, self._even = Allocation(slots(rows, self._most_rows), stepped(positions)), False
