"""What a prefix store keeps, as a flat list of arrays and a description, and back. Engine thread only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from draftd.engine.cache.base import BatchedSnapshot, CachedPrefix, Caches, KVSegment, LayerSlice
from draftd.engine.cache.per_sequence import OwnSnapshot, PerSequenceCaches
from draftd.engine.cache.prefix_file import Kind, Stored

_NUMBERS = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.int64: "I64",
    mx.int32: "I32",
    mx.int16: "I16",
    mx.int8: "I8",
    mx.uint64: "U64",
    mx.uint32: "U32",
    mx.uint16: "U16",
    mx.uint8: "U8",
    mx.bool_: "BOOL",
}

Made = Callable[[], mx.array]  # one array, computed when it is asked for
Apart = tuple[Any, list[tuple[Kind, Made]]]  # how they go together, and the arrays


def apart(found: Sequence[CachedPrefix], start: int) -> Apart | None:
    """What was found of a text, from position `start` on, which is 0 but of segments. None for what cannot be kept."""
    pieces = [one for one in found if isinstance(one, KVSegment)]
    if pieces:
        return _segments(pieces, start)
    (whole,) = found
    assert start == 0
    if isinstance(whole, BatchedSnapshot):
        parts = [[len(part.arrays), part.first, part.least] for part in whole.parts]
        arrays = [array for part in whole.parts for array in part.arrays]
        return {"parts": parts}, [_as_it_is(array) for array in arrays]
    assert isinstance(whole, OwnSnapshot)
    own: list[mx.array] = []
    if any(cache.empty() for cache in whole.caches):
        return None
    states = [_flattened(cache.state, own) for cache in whole.caches]
    return {"states": states, "least": whole.least}, [_as_it_is(array) for array in own]


def together(form: Any, arrays: Sequence[mx.array], length: int, caches: Caches) -> CachedPrefix:
    """What `apart` took apart, for such caches. `length`: tokens of the text, or of a segment its positions. Raises
    ValueError or KeyError where it is of other ones."""
    rest = iter(arrays)
    if isinstance(caches, PerSequenceCaches):
        return caches.snapshot([_unflattened(state, rest) for state in form["states"]], length)
    if caches.segmented:
        return KVSegment([[next(rest) for _ in range(n)] for n in form["layers"]], length)
    parts = [LayerSlice([next(rest) for _ in range(n)], first, least) for n, first, least in form["parts"]]
    return BatchedSnapshot(parts, length)


def stored(kind: Kind, made: Made) -> Stored:
    """A copy that any thread may read."""
    found = made()
    bits = found.view(mx.uint16) if found.dtype == mx.bfloat16 else found
    return Stored(kind, np.array(bits))


def loaded(one: Stored) -> mx.array:
    found = mx.array(one.data)
    found = found.view(mx.bfloat16) if one.kind.numbers == "BF16" else found
    mx.eval(found)
    return found


def _segments(pieces: Sequence[KVSegment], start: int) -> Apart:
    skipped, left = start, list[KVSegment]()
    for piece in pieces:
        if skipped < piece.length:
            arrays = [[a[:, :, skipped:] for a in layer] for layer in piece.layers] if skipped else piece.layers
            left.append(KVSegment(arrays, piece.length - skipped))
        skipped = max(0, skipped - piece.length)
    length = sum(piece.length for piece in left)
    made = []
    for i, layer in enumerate(left[0].layers):
        for j, one in enumerate(layer):
            kind = Kind(_NUMBERS[one.dtype], (*one.shape[:2], length, *one.shape[3:]))
            made.append((kind, _joined([piece.layers[i][j] for piece in left])))
    return {"layers": [len(layer) for layer in left[0].layers]}, made


def _joined(arrays: list[mx.array]) -> Made:
    return lambda: mx.contiguous(arrays[0] if len(arrays) == 1 else mx.concatenate(arrays, axis=2))


def _as_it_is(array: mx.array) -> tuple[Kind, Made]:
    return Kind(_NUMBERS[array.dtype], tuple(array.shape)), lambda: mx.contiguous(array)


def _flattened(state: Any, arrays: list[mx.array]) -> Any:
    """A tree of what JSON can hold, with `{"array": 1}` for each array, which goes to `arrays`."""
    if isinstance(state, mx.array):
        arrays.append(state)
        return {"array": 1}
    if isinstance(state, list | tuple):
        return [_flattened(one, arrays) for one in state]
    if state is None or isinstance(state, str | int | float):
        return state
    raise ValueError(f"a cache's state has a {type(state).__name__}")


def _unflattened(tree: Any, arrays: Any) -> Any:
    if isinstance(tree, dict):
        return next(arrays)
    return [_unflattened(one, arrays) for one in tree] if isinstance(tree, list) else tree
