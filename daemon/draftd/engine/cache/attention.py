"""Attention over rows of unlike length: a call for each group of rows that lie in one array.

The layers of mlx-lm's models call a function of their own module for it. `installed` gives the layers of one model
another: it asks the cache for the groups, and calls mlx-lm's for each. And where a model counts positions itself
(GPT-BigCode, Llama 4), it counts from each row's offset. Other models of the process, and mlx-lm itself, are left as
they are.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import Any

import mlx.core as mx
import numpy as np

from draftd.engine.cache.layers import BatchedAttention, KeyPositions
from draftd.models.mlx_lm import base

_NAME = "scaled_dot_product_attention"
_THEIRS = ((_NAME, base.scaled_dot_product_attention), ("np", np), ("mx", mx))
_MARK = "_draftd_keeps_rows_apart"


def installed(model: Any) -> bool:
    """Has the model's own layers call it, for good; whether there is one that does. Models that call MLX's directly
    have none: their rows share a call."""
    found = False
    kinds: dict[type, type] = {}
    for layer in model.modules():
        kind = type(layer)
        if kind not in kinds:
            kinds[kind] = _keeping_apart(kind)
        if kinds[kind] is not kind:
            layer.__class__ = kinds[kind]
        found = found or hasattr(kinds[kind], _MARK)
    return found


def _keeping_apart(kind: type) -> type:
    """The same class with the same methods, but that those which call mlx-lm's attention call `_apart`, and `arange` of
    numpy or MLX ours; `kind` itself where none does, or where all do already."""
    if hasattr(kind, _MARK):
        return kind
    ours: dict[str, Any] = {_NAME: _apart, "np": _Numpy(), "mx": _Mlx()}
    methods = {
        name: _calling(method, ours)
        for name in dir(kind)
        if isinstance(method := inspect.getattr_static(kind, name), FunctionType)
        and any(_calls(method, name, one) for name, one in _THEIRS)
    }
    mark = {_MARK: True} if any(_NAME in method.__code__.co_names for method in methods.values()) else {}
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__, **mark}) if methods else kind


def _calls(method: FunctionType, name: str, what: Any) -> bool:
    """Whether it refers to `what` by this name; to MLX or numpy, to count positions from the cache's."""
    names = method.__code__.co_names
    counts = name == _NAME or ("arange" in names and "offset" in names)
    return counts and name in names and method.__globals__.get(name) is what


def _calling(method: FunctionType, ours: dict[str, Any]) -> FunctionType:
    there = {**method.__globals__, **{name: ours[name] for name in method.__code__.co_names if name in ours}}
    own = FunctionType(method.__code__, there, method.__name__, method.__defaults__, method.__closure__)
    own.__kwdefaults__ = method.__kwdefaults__
    return own


class _Numpy:
    """numpy, but that `arange` counts from each of several offsets: rows × positions."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def arange(self, start: Any, stop: Any = None, *more: Any) -> Any:
        if not isinstance(start, mx.array):
            return np.arange(start, stop, *more)
        offsets = np.array(start)
        return offsets[:, None] + np.arange(np.array(stop)[0] - offsets[0])


class _Mlx:
    """MLX, but that `arange` counts from each of several offsets, rows × positions × 1, so that they can be those of
    queries; and of keys as the cache says, rows × 1 × 1 × positions."""

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)

    def arange(self, start: Any, stop: Any = None, *more: Any) -> Any:
        if isinstance(start, KeyPositions):
            return start.positions[:, None, None]
        if not isinstance(start, mx.array) or start.ndim == 0:
            return mx.arange(start, stop, *more)
        count = int((stop[0] - start[0]).item())  # both are made of numbers, and no forward is waited for
        return start[:, None, None] + mx.arange(count)[:, None]


@functools.wraps(base.scaled_dot_product_attention)
def _apart(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    attend = base.scaled_dot_product_attention
    groups = cache.apart() if isinstance(cache, BatchedAttention) else ()
    if not groups:
        return attend(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    out = []
    for (rows, _, first, end, _), held_keys, held_values in groups:
        own, seen = queries if rows is None else queries[rows], mask
        if isinstance(mask, mx.array):
            seen = mask[..., first - cache.window.first : end - cache.window.first]
            if rows is not None and mask.ndim == 4 and mask.shape[0] > 1:
                seen = seen[rows]
        out.append(attend(own, held_keys, held_values, cache=cache, scale=scale, mask=seen, sinks=sinks))
    whole = mx.concatenate(out, axis=0)
    return whole if cache.order is None else whole[cache.order]
