"""Splits cached prefixes into arrays and a description, and rebuilds them. Engine thread only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from draftd.engine.cache.base import BatchedSnapshot, CachedPrefix, Caches, KVSegment, LayerSlice
from draftd.engine.cache.per_sequence import OwnSnapshot, PerSequenceCaches
from draftd.engine.cache.prefix_file import StoredArray

Made = Callable[[], mx.array]  # one array, computed when called


class SplitArrays(NamedTuple):
    """Arrays, their bytes, and a description in JSON of how they fit together."""

    form: Any
    nbytes: int
    arrays: list[Made]


def apart(prefixes: Sequence[CachedPrefix], start: int) -> SplitArrays | None:
    """Splits the prefixes of a text from position `start` on; `start` is 0 unless they are segments. Returns None if
    they cannot be kept."""
    pieces = [prefix for prefix in prefixes if isinstance(prefix, KVSegment)]
    if pieces:
        return _segments(pieces, start)
    (whole,) = prefixes
    assert start == 0
    arrays: list[mx.array] = []
    if isinstance(whole, BatchedSnapshot):
        form: Any = {"parts": [[len(part.arrays), part.first, part.least] for part in whole.parts]}
        arrays = [array for part in whole.parts for array in part.arrays]
    else:
        assert isinstance(whole, OwnSnapshot)
        if any(cache.empty() for cache in whole.caches):
            return None
        form = {"states": [_flatten(cache.state, arrays) for cache in whole.caches], "least": whole.least}
    return SplitArrays(form, whole.nbytes, [_join_arrays([array]) for array in arrays])


def together(form: Any, arrays: Sequence[mx.array], length: int, caches: Caches) -> CachedPrefix:
    """Rebuilds a prefix from what `apart` returned, for `caches` of the same layout. `length`: tokens of the text, or
    positions of a segment. Raises ValueError or KeyError if the description does not fit."""
    rest = iter(arrays)
    if isinstance(caches, PerSequenceCaches):
        return caches.snapshot([_unflatten(state, rest) for state in form["states"]], length)
    if caches.segmented:
        return KVSegment([[next(rest) for _ in range(n)] for n in form["layers"]], length)
    parts = [LayerSlice([next(rest) for _ in range(n)], first, least) for n, first, least in form["parts"]]
    return BatchedSnapshot(parts, length)


def store_array(make: Made) -> StoredArray:
    """Copies an array to memory that any thread may read."""
    array = make()
    bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return StoredArray(str(array.dtype).rpartition(".")[2], np.array(bits))


def load_array(source: StoredArray) -> mx.array:
    array = mx.array(source.data)
    array = array.view(mx.bfloat16) if source.numbers == "bfloat16" else array
    mx.eval(array)
    return array


def _segments(pieces: Sequence[KVSegment], start: int) -> SplitArrays:
    skipped, remaining = start, list[KVSegment]()
    for piece in pieces:
        if skipped < piece.length:
            arrays = [[a[:, :, skipped:] for a in layer] for layer in piece.layers] if skipped else piece.layers
            remaining.append(KVSegment(arrays, piece.length - skipped))
        skipped = max(0, skipped - piece.length)
    layers = range(len(remaining[0].layers))
    makers = [
        _join_arrays([piece.layers[i][j] for piece in remaining])
        for i in layers
        for j in range(len(remaining[0].layers[i]))
    ]
    return SplitArrays(
        {"layers": [len(layer) for layer in remaining[0].layers]}, sum(piece.nbytes for piece in remaining), makers
    )


def _join_arrays(arrays: list[mx.array]) -> Made:
    return lambda: mx.contiguous(arrays[0] if len(arrays) == 1 else mx.concatenate(arrays, axis=2))


def _flatten(state: Any, arrays: list[mx.array]) -> Any:
    """Returns the tree in JSON with `{"array": 1}` in place of each array, and appends the arrays to `arrays`."""
    if isinstance(state, mx.array):
        arrays.append(state)
        return {"array": 1}
    if isinstance(state, list | tuple):
        return [_flatten(item, arrays) for item in state]
    if state is None or isinstance(state, str | int | float):
        return state
    raise ValueError(f"a cache's state cannot be saved: it holds a {type(state).__name__}")


def _unflatten(tree: Any, arrays: Any) -> Any:
    if isinstance(tree, dict):
        return next(arrays)
    return [_unflatten(item, arrays) for item in tree] if isinstance(tree, list) else tree
