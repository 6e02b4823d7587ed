"""The batched layout: rows of unequal length in shared arrays, served by one forward.

A rollback only lowers a length: positions beyond it are masked and overwritten later. Rows start at position 0 and are
padded on the right, so there is no left padding to reclaim.

Rows of similar length share an array (`groups.py`). A row that joins brings its own array, and one that leaves leaves a
free slot. Arrays have spare positions so that a step writes in place. MLX writes in place only if nothing else refers
to the array, so nothing here may keep a view of one.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from draftd.engine.cache.alone_mode import AloneMode, mode_of
from draftd.engine.cache.base import (
    BatchedSnapshot,
    CachedPrefix,
    Caches,
    KVSegment,
    LayerCache,
    LayerOwner,
    Positions,
    flat,
)
from draftd.engine.cache.groups import CALL
from draftd.engine.cache.layers import BatchedAttention, ChunkedAttention
from draftd.engine.cache.model_layers import logits_at, states_of
from draftd.engine.cache.recurrent import RecurrentState
from draftd.engine.cache.window import AttentionWindow
from draftd.models.mlx_lm import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

_FORWARDS = 8  # a change of groups is spread over this many: all layers at once would delay the rows
_ONLY_ONE = 1 << 24  # positions: the price of one more group if attention needs a copy to read several

LayerFactory = Callable[[LayerOwner], LayerCache]
FULL = "full attention"


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The layout of a model's caches: batched, or mlx-lm's own caches for each sequence.

    `apart`: the model's attention reads groups of rows one by one. `level`: only rows of equal width share a forward.
    `axes`: extra axes of a mask between rows and queries. `call_cost`: positions that attention could read in the time
    of one more call; None for the measured default. `forwards`: the most forwards that one rollback may undo."""

    batched: bool = False
    apart: bool = False
    level: bool = False
    axes: int = 1
    call_cost: int | None = None
    forwards: int = 1


_PLAIN = CacheLayout(True)


class BatchedCaches:
    """`Caches` for models whose layers can all be batched."""

    def __init__(
        self,
        model: Any,
        layout: CacheLayout = _PLAIN,
        *,
        segmented: bool = True,
        make: Sequence[LayerFactory] | None = None,
    ) -> None:
        """`segmented` off: rows are kept only as a whole. `make` replaces the layers that `batched_layers` chooses for
        the model."""
        self._model, self._layout = model, layout
        self.apart, self.forwards = layout.apart, layout.forwards
        self._make = make or batched_layers(model)
        self.windows: dict[int | None, AttentionWindow] = {}  # by size; None: the whole text
        self._layers: list[LayerCache] = [factory(self) for factory in self._make]
        self._attention = [layer for layer in self._layers if isinstance(layer, BatchedAttention)]
        self._states = [layer for layer in self._layers if isinstance(layer, RecurrentState)]
        self.segmented = segmented and not self._states and not any(self.windows)
        self._listed: list[Any] = []  # in the form that the model expects, from the first forward on
        self._even = False  # every layer has its window's groups
        self.offset: int | mx.array = 0
        self.lengths: list[int] = []
        self.states: mx.array | None = None

    @property
    def layers(self) -> Sequence[LayerCache]:
        """The caches of all layers."""
        return self._layers

    @property
    def alone_mode(self) -> AloneMode | None:
        mode = mode_of(self._model)
        return mode if mode is not None and mode.active else None

    def window(self, size: int | None) -> AttentionWindow:
        """Returns the window shared by all layers of this size."""
        if size not in self.windows:
            cost = (CALL if self.apart else _ONLY_ONE) if self._layout.call_cost is None else self._layout.call_cost
            self.windows[size] = AttentionWindow(size, cost, self._layout.axes)
        return self.windows[size]

    def forward(self, tokens: mx.array, widths: Sequence[int], *, at: Positions | None = None) -> mx.array:
        first, width = self.lengths[0], tokens.shape[1]
        self.offset = first if all(n == first for n in self.lengths) else mx.array(self.lengths)
        if (alone := self.alone_mode) is not None:
            alone.begin(self.lengths, widths)
        for window in self.windows.values():
            groups = window.groups
            self._shift(window, window.begin(self.lengths, width))
            self._even = self._even and window.groups is groups
        for state in self._states:
            state.begin(widths, width)
        if not self._even:
            self._regroup()
        self._listed = self._listed or list_caches(self._model, self._layers)
        if self._layout.level and any(w != tokens.shape[1] for w in widths):
            logits = self._by_width(tokens, widths, at)
        else:
            logits, self.states = states_of(self._model, lambda: logits_at(self._model, tokens, self._listed, at))
        self.lengths = [n + w for n, w in zip(self.lengths, widths, strict=True)]
        return logits

    def _by_width(self, tokens: mx.array, widths: Sequence[int], at: Positions | None) -> mx.array:
        """Runs one forward for each width, on copies of the rows that have it."""
        order: list[int] = []
        out: list[mx.array] = []
        states: list[mx.array] = []
        for width in sorted(set(widths) - {0}):
            rows = [row for row, w in enumerate(widths) if w == width]
            some = self._copy_rows(rows, width)
            read = None if at is None else [[min(n, width - 1) for n in at[row]] for row in rows]
            logits = some.forward(tokens[mx.array(rows), :width], [width] * len(rows), at=read)
            for mine, theirs in zip(self._layers, some._layers, strict=True):
                mine.put(theirs, rows)
            padding = [(0, 0), (0, tokens.shape[1] - width), (0, 0)]
            if some.states is not None:
                states.append(mx.pad(some.states, padding))
            some.clear()
            out.append(logits if read else mx.pad(logits, padding))
            order += rows
        order += [row for row, w in enumerate(widths) if not w]
        self.states = _in_order(states, order) if states else None
        return _in_order(out, order)

    def rollback(self, lengths: Sequence[int]) -> list[int]:
        before, wanted = self.lengths, list(lengths)
        assert all(new <= old for new, old in zip(wanted, before, strict=True)), (wanted, before)
        least = wanted
        for layer in self._layers:
            reached = layer.rollback(before, wanted)
            if reached != least:
                least = [min(pair) for pair in zip(least, reached, strict=True)]
        if least != wanted:
            least = self._roll_all_back(before, least)
        self.lengths = list(least)
        return self.lengths

    def _roll_all_back(self, before: list[int], least: list[int]) -> list[int]:
        """Rolls all layers back to the lowest length that any of them reached, until all agree."""
        while True:
            reached = [layer.rollback(before, least) for layer in self._layers]
            further = [min(lengths) for lengths in zip(*reached, strict=True)]
            if further == least:
                return least
            least = further

    def _copy_rows(self, rows: Sequence[int], width: int) -> BatchedCaches:
        """Returns copies of these rows with room for `width` more tokens."""
        some = self._another()
        some.lengths = [self.lengths[row] for row in rows]
        for size, window in some.windows.items():
            starts = self.windows[size].starts
            window.hold([n + width for n in some.lengths], [starts[row] for row in rows])
        for mine, theirs in zip(self._layers, some._layers, strict=True):
            theirs.take(mine, rows)
        return some

    def fresh(self, *lengths: int) -> BatchedCaches:
        new = self._another()
        new.lengths = [0] * max(1, len(lengths))
        for window in new.windows.values():
            window.hold(lengths or [0])  # arrays do not grow beyond this before they join
        return new

    def split(self, rows: Sequence[int], *, rest: bool = False) -> BatchedCaches:
        some, copied = (
            self._move_row(rows[0], rest and self.apart) if len(rows) == 1 else (self._copy_rows(rows, 1), True)
        )
        if copied:
            mx.eval(some.arrays())  # otherwise they would refer to arrays that are written next
        self.select([row for row in range(len(self.lengths)) if row not in rows])
        return some

    def _move_row(self, row: int, rests: bool) -> tuple[BatchedCaches, bool]:
        """Moves one row to new caches. Returns these, and whether arrays were copied."""
        new = self._another()
        new.lengths = [self.lengths[row]]
        for size, window in new.windows.items():
            window.move(self.windows[size], row, self.lengths[row], rests)
        copied = [theirs.move(mine, row) for mine, theirs in zip(self._layers, new._layers, strict=True)]
        return new, any(copied)

    def join(self, joining: Caches) -> None:
        assert isinstance(joining, BatchedCaches)
        for window in joining.windows.values():
            joining._shift(window, window.settle(joining.lengths) if window.too_long(joining.lengths) else [])
        for mine, theirs in zip(self._layers, joining._layers, strict=True):
            mine.join(len(self.lengths), theirs)
        for size, window in joining.windows.items():
            self.windows[size].join(window)
        self.lengths, self._even = self.lengths + joining.lengths, False
        joining.clear()

    def select(self, rows: Sequence[int]) -> None:
        self.lengths, self._even = [self.lengths[i] for i in rows], False
        for layer in self._layers:
            layer.select(rows)
        for window in self.windows.values():
            window.select(rows, self.lengths)
        for layer in self._attention:
            lags = layer.parts and layer.groups != layer.window.groups
            if lags and layer.window.wasteful(layer.groups):
                layer.regroup()

    def clear(self) -> None:
        # Layers and owner refer to each other; without this the weights would stay in memory until garbage collection.
        self._model, self._layers, self._attention, self._listed, self.lengths = None, [], [], [], []
        self.states = None

    def extract(self, row: int, start: int, end: int) -> CachedPrefix | None:
        assert end <= self.lengths[row]
        if self.segmented:
            arrays = [layer.positions(row, start, end) for layer in self._attention]
            mx.eval(arrays)
            return KVSegment(arrays, end - start)
        assert start == 0
        parts = [layer.extract(row, end) for layer in self._layers]
        copies = [part for part in parts if part is not None]
        if len(copies) < len(parts):
            return None
        mx.eval([part.arrays for part in copies])
        return BatchedSnapshot(copies, end)

    def restore(self, kept: Sequence[CachedPrefix]) -> None:
        assert self.lengths == [0]
        if not self.segmented:
            (whole,) = kept
            assert isinstance(whole, BatchedSnapshot)
            self.lengths = [whole.length]
            for layer, part in zip(self._layers, whole.parts, strict=True):
                if isinstance(layer, BatchedAttention):
                    layer.window.restore(whole.length, part.first)
                layer.restore([part.arrays])
            return
        pieces = [piece for piece in kept if isinstance(piece, KVSegment)]
        self.lengths = [sum(piece.length for piece in pieces)]
        for window in self.windows.values():
            window.restore(*self.lengths)
        for i, layer in enumerate(self._attention):
            layer.restore([piece.layers[i] for piece in pieces])

    def pretend(self, lengths: Sequence[int]) -> bool:
        self.lengths = list(lengths)
        return True

    @property
    def position_bytes(self) -> int:
        whole = (layer for layer in self._attention if layer.window.size is None)
        return sum(a.shape[1] * a.shape[3] * a.itemsize for layer in whole for a in layer.arrays()[:2])

    @property
    def window_bytes(self) -> int:
        windows = [layer for layer in self._attention if layer.window.most is not None]
        of_windows: int = sum(
            (layer.window.most or 0) * a.shape[1] * a.shape[3] * a.itemsize
            for layer in windows
            for a in layer.arrays()[:2]
        )
        of_states: int = sum(a.nbytes // a.shape[0] for state in self._states for a in state.arrays())
        return of_windows + of_states

    def arrays(self) -> list[Any]:
        return [a for layer in self._layers for a in layer.arrays()]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays())

    def _another(self) -> BatchedCaches:
        """Returns caches of the same model without rows."""
        return BatchedCaches(self._model, replace(self._layout, forwards=1), segmented=self.segmented, make=self._make)

    def _regroup(self) -> None:
        """Rearranges layers' arrays into the groups that their window has chosen, before a forward. Layers whose arrays
        are too small for the forward must follow now; of the others, an eighth of all layers, to spread the delay."""
        few = -(-len(self._layers) // _FORWARDS)
        lagging = [layer for layer in self._attention if layer.parts and layer.groups != layer.window.groups]
        for layer in lagging:
            fits = layer.window.fits(layer.groups)
            if few or not fits:
                layer.regroup()
            few -= fits and few > 0
        self._even = not lagging

    def _shift(self, window: AttentionWindow, moves: list[int]) -> None:
        if moves:
            for layer in self._attention:
                if layer.window is window:
                    layer.shift(moves)


def _in_order(parts: Sequence[mx.array], order: Sequence[int]) -> mx.array:
    """Returns the rows of `parts` in ascending order; `order` has the number of each, and then of rows of zeros that
    the parts lack."""
    lacking = len(order) - sum(part.shape[0] for part in parts)
    blank = [mx.zeros((lacking, *parts[0].shape[1:]), parts[0].dtype)] if lacking else []
    return mx.concatenate([*parts, *blank])[mx.array([order.index(row) for row in range(len(order))])]


def _factory(cache: Any) -> LayerFactory | None:
    """Returns the batched layer for one of mlx-lm's caches, or None if there is none."""
    if type(cache) is KVCache:
        return BatchedAttention
    if type(cache) is RotatingKVCache and not cache.keep:
        return functools.partial(BatchedAttention, size=cache.max_size)
    if type(cache) is ChunkedKVCache:
        return functools.partial(ChunkedAttention, size=cache.chunk_size)
    if type(cache) is ArraysCache and cache.left_padding is None:
        return functools.partial(RecurrentState, size=len(cache.cache))
    return None


def batched_layers(model: Any) -> list[LayerFactory]:
    """Returns a factory for each cache of each layer. Raises KeyError with the names of caches that cannot be
    batched."""
    caches = flat(make_prompt_cache(model))
    factories = [_factory(cache) for cache in caches]
    missing = {type(cache).__name__ for cache, factory in zip(caches, factories, strict=True) if factory is None}
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    return [factory for factory in factories if factory is not None]


def layer_kinds(model: Any) -> dict[str, int]:
    """Counts a model's caches by kind, in words for people. A layer may have several caches."""
    return dict(Counter(map(_kind, flat(make_prompt_cache(model)))))


def _kind(cache: Any) -> str:
    if type(cache) is KVCache:
        return FULL
    if isinstance(cache, RotatingKVCache):
        return f"window of {cache.max_size}"
    if isinstance(cache, ChunkedKVCache):
        return f"chunks of {cache.chunk_size}"
    return "recurrent state" if isinstance(cache, ArraysCache) else type(cache).__name__


def list_caches(model: Any, layers: Sequence[LayerCache]) -> list[Any]:
    """Returns `layers` in the form that the model expects: nested lists where mlx-lm gives a layer several caches."""
    rest = iter(layers)
    return [_as_made(cache, rest) for cache in make_prompt_cache(model)]


def _as_made(cache: Any, rest: Iterator[LayerCache]) -> Any:
    return [_as_made(one, rest) for one in cache.caches] if isinstance(cache, CacheList) else next(rest)
