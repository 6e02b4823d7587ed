"""The batched layer for each of mlx-lm's caches."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from draftd.engine.cache.base import LayerCache, LayerOwner, flat
from draftd.engine.cache.layers import BatchedAttention, ChunkedAttention
from draftd.engine.cache.recurrent import RecurrentState
from draftd.models.mlx_lm import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

LayerFactory = Callable[[LayerOwner], LayerCache]


def _factory(cache: Any) -> LayerFactory | None:
    """The batched layer for one of mlx-lm's caches; None if there is none."""
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
    """A factory for each cache of each layer. Raises KeyError, with the caches' names, if some have none."""
    caches = flat(make_prompt_cache(model))
    factories = [_factory(cache) for cache in caches]
    missing = {type(cache).__name__ for cache, factory in zip(caches, factories, strict=True) if factory is None}
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    return [factory for factory in factories if factory is not None]


FULL = "full attention"


def layer_kinds(model: Any) -> dict[str, int]:
    """How many of a model's caches are of each kind, in words for people. A layer may have several caches."""
    return dict(Counter(map(_kind, flat(make_prompt_cache(model)))))


def _kind(cache: Any) -> str:
    if type(cache) is KVCache:
        return FULL
    if isinstance(cache, RotatingKVCache):
        return f"window of {cache.max_size}"
    if isinstance(cache, ChunkedKVCache):
        return f"chunks of {cache.chunk_size}"
    return "recurrent state" if isinstance(cache, ArraysCache) else type(cache).__name__


def listed(model: Any, layers: Sequence[LayerCache]) -> list[Any]:
    """`layers` as the model takes them: in lists where mlx-lm makes it a list of caches for one of its layers."""
    rest = iter(layers)
    return [_as_made(cache, rest) for cache in make_prompt_cache(model)]


def _as_made(cache: Any, rest: Iterator[LayerCache]) -> Any:
    return [_as_made(one, rest) for one in cache.caches] if isinstance(cache, CacheList) else next(rest)
