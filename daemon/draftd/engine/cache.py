"""Key-value caches of the running rows, and the rollback that speculation needs.

Two layouts behind one interface. `RaggedCaches` holds all rows of a plain-KV-cache model in one set of arrays, each
row at its own length: one forward serves every row, and a rollback only lowers a number, since what lies beyond a row's
length is masked and later overwritten. `SeparateCaches` holds mlx-lm's own caches, one list per row: any architecture
works, each row is a forward of its own, and what cannot be rolled back says so.

After a forward of width w a row is w longer; `truncate` takes back what the target turned down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import KVCache, create_attention_mask, make_prompt_cache

_STEP = 256  # capacity grows by this many positions, as mlx-lm's caches do


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

    def fresh(self) -> Caches:
        """New caches of the same model, holding one empty row."""
        ...

    def join(self, newcomer: Caches) -> None:
        """Appends the rows of another of the same layout; that one is used up."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order."""
        ...

    def clear(self) -> None:
        """Lets go of rows and model, whoever still refers to this."""
        ...

    def arrays(self) -> list[Any]:
        """What must be evaluated for the caches to be up to date."""
        ...

    @property
    def nbytes(self) -> int: ...


def make_caches(model: Any) -> Caches:
    """The best layout that the model allows, holding no rows."""
    layers = make_prompt_cache(model)
    if all(type(layer) is KVCache for layer in layers):
        return RaggedCaches(model, len(layers))
    return SeparateCaches(model)


def rollback_limit(model: Any) -> int | None:
    """Tokens after which a rotating cache of the model can no longer be rolled back; None where there is no limit."""
    sizes = [s for c in _flat(make_prompt_cache(model)) if (s := getattr(c, "max_size", None)) is not None]
    return min(sizes) if sizes else None


def cannot_trim(model: Any) -> str:
    """Names the cache types of the model that can never be rolled back; empty when all can."""
    return ", ".join(sorted({type(c).__name__ for c in make_prompt_cache(model) if not c.is_trimmable()}))


def _flat(caches: Sequence[Any]) -> list[Any]:
    """Opens mlx-lm's CacheList, which bundles several caches of one layer."""
    return [leaf for c in caches for leaf in (_flat(c.caches) if hasattr(c, "caches") else [c])]


class RaggedCaches:
    """All rows of a plain-KV-cache model, right-padded, each at its own length."""

    def __init__(self, model: Any, layers: int) -> None:
        self._model = model
        self._layers = [_RaggedLayer(self) for _ in range(layers)]
        self._positions: mx.array | None = None  # rows × width, where this forward writes; None when rows are level
        self.offset: int | mx.array = 0
        self.lengths: list[int] = []

    def forward(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        first = self.lengths[0]
        if all(n == first for n in self.lengths):
            self.offset, self._positions = first, None
        else:
            self.offset = mx.array(self.lengths)
            self._positions = self.offset[:, None] + mx.arange(tokens.shape[1])
        logits: mx.array = self._model(tokens, cache=self._layers)
        self.lengths = [n + w for n, w in zip(self.lengths, widths, strict=True)]
        return logits

    def truncate(self, lengths: Sequence[int]) -> None:
        assert all(new <= old for new, old in zip(lengths, self.lengths, strict=True)), (
            lengths,
            self.lengths,
        )
        self.lengths = list(lengths)

    def refusal(self, row: int, width: int) -> str:
        return ""

    def fresh(self) -> RaggedCaches:
        new = RaggedCaches(self._model, len(self._layers))
        new.lengths = [0]
        return new

    def join(self, newcomer: Caches) -> None:
        assert isinstance(newcomer, RaggedCaches)
        if self.lengths:
            for mine, theirs in zip(self._layers, newcomer._layers, strict=True):
                mine.join(theirs)
        else:
            for mine, theirs in zip(self._layers, newcomer._layers, strict=True):
                mine.keys, mine.values = theirs.keys, theirs.values
        self.lengths = self.lengths + newcomer.lengths
        newcomer.clear()

    def select(self, rows: Sequence[int]) -> None:
        if list(rows) == list(range(len(self.lengths))):
            return
        self.lengths = [self.lengths[i] for i in rows]
        for layer in self._layers:
            layer.select(rows)

    def clear(self) -> None:
        # Layers refer to their owner: without this they would keep each other, and the weights, until the collector.
        self._model, self._layers, self.lengths = None, [], []

    def arrays(self) -> list[Any]:
        return [a for layer in self._layers for a in (layer.keys, layer.values) if a is not None]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays())


class _RaggedLayer:
    """One layer's keys and values, batch × heads × capacity × dim. To mlx-lm's models it is a KV cache."""

    def __init__(self, owner: RaggedCaches) -> None:
        self._owner = owner
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        return self._owner.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        end = max(self._owner.lengths) + keys.shape[2]
        held_keys, held_values = self._grown(self.keys, keys, end), self._grown(self.values, values, end)
        positions = self._owner._positions
        if positions is None:
            start = end - keys.shape[2]
            held_keys[..., start:end, :] = keys
            held_values[..., start:end, :] = values
        else:
            at = positions[:, None, :, None]
            held_keys = mx.put_along_axis(held_keys, mx.broadcast_to(at, keys.shape), keys, axis=2)
            held_values = mx.put_along_axis(held_values, mx.broadcast_to(at, values.shape), values, axis=2)
        self.keys, self.values = held_keys, held_values
        if end == held_keys.shape[2]:
            return held_keys, held_values
        return held_keys[..., :end, :], held_values[..., :end, :]

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> Any:
        positions = self._owner._positions
        if positions is None:
            return create_attention_mask(n, self._owner.offset, return_array, window_size)
        keys = mx.arange(max(self._owner.lengths) + n)
        mask = keys <= positions[:, :, None]
        if window_size is not None:
            mask = mask & (keys > positions[:, :, None] - window_size)
        return mask[:, None]

    def _grown(self, held: mx.array | None, new: mx.array, end: int) -> mx.array:
        capacity = 0 if held is None else held.shape[2]
        if held is not None and end <= capacity:
            return held
        rows, heads, _, dim = new.shape
        more = mx.zeros((rows, heads, -(-end // _STEP) * _STEP - capacity, dim), new.dtype)
        return more if held is None else mx.concatenate([held, more], axis=2)

    def join(self, other: _RaggedLayer) -> None:
        self.keys = _stack(self.keys, other.keys, self._owner, other._owner)
        self.values = _stack(self.values, other.values, self._owner, other._owner)

    def select(self, rows: Sequence[int]) -> None:
        if not rows:
            self.keys = self.values = None
        elif self.keys is not None and self.values is not None:
            index = mx.array(list(rows))
            self.keys, self.values = self.keys[index], self.values[index]

    # mlx-lm's models ask no more of a cache than the above; some check these.
    def is_trimmable(self) -> bool:
        return True

    def empty(self) -> bool:
        return self.keys is None


def _stack(a: mx.array | None, b: mx.array | None, mine: RaggedCaches, theirs: RaggedCaches) -> mx.array | None:
    """Batches two arrays of unlike capacity. A side without arrays (nothing prefilled yet) becomes zeros."""
    like = a if a is not None else b
    if like is None:
        return None
    _, heads, _, dim = like.shape
    capacity = max(x.shape[2] for x in (a, b) if x is not None)

    def padded(x: mx.array | None, rows: int) -> mx.array:
        if x is None:
            return mx.zeros((rows, heads, capacity, dim), like.dtype)
        short = capacity - x.shape[2]
        return mx.pad(x, [(0, 0), (0, 0), (0, short), (0, 0)]) if short else x

    return mx.concatenate([padded(a, len(mine.lengths)), padded(b, len(theirs.lengths))], axis=0)


class SeparateCaches:
    """mlx-lm's own caches, one list per row: for every architecture that the ragged layout does not cover."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._rows: list[list[Any]] = []
        self.lengths: list[int] = []

    def forward(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        width = tokens.shape[1]
        out: list[mx.array | None] = []
        for i, (row, real) in enumerate(zip(self._rows, widths, strict=True)):
            logits = self._model(tokens[i : i + 1, :real], cache=row) if real else None
            if logits is not None and real < width:
                logits = mx.pad(logits, [(0, 0), (0, width - real), (0, 0)])
            out.append(logits)
        self.lengths = [n + w for n, w in zip(self.lengths, widths, strict=True)]
        blank = next(mx.zeros_like(logits) for logits in out if logits is not None)
        return mx.concatenate([blank if logits is None else logits for logits in out], axis=0)

    def truncate(self, lengths: Sequence[int]) -> None:
        for i, (row, new, old) in enumerate(zip(self._rows, lengths, self.lengths, strict=True)):
            surplus = old - new
            if not surplus:
                continue
            for cache in row:
                if not cache.is_trimmable() or cache.trim(surplus) != surplus:
                    raise RollbackFailed(f"row {i}: {type(cache).__name__} did not give back {surplus} tokens")
        self.lengths = list(lengths)

    def refusal(self, row: int, width: int) -> str:
        for cache in self._rows[row]:
            if not cache.is_trimmable():
                return f"the cache cannot be rolled back ({type(cache).__name__})"
        for cache in _flat(self._rows[row]):
            size = getattr(cache, "max_size", None)
            if size is not None and self.lengths[row] + width >= size:  # a ring is trimmable only while it is not full
                return f"the rotating cache of {size} tokens is full ({type(cache).__name__})"
        return ""

    def fresh(self) -> SeparateCaches:
        new = SeparateCaches(self._model)
        new._rows, new.lengths = [make_prompt_cache(self._model)], [0]
        return new

    def join(self, newcomer: Caches) -> None:
        assert isinstance(newcomer, SeparateCaches)
        self._rows = self._rows + newcomer._rows
        self.lengths = self.lengths + newcomer.lengths

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[i] for i in rows]
        self.lengths = [self.lengths[i] for i in rows]

    def clear(self) -> None:
        self._model, self._rows, self.lengths = None, [], []

    def arrays(self) -> list[Any]:
        return [cache.state for row in self._rows for cache in row if not cache.empty()]

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for row in self._rows for cache in row)
