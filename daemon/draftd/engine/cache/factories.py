"""Which of our layers stands for which of mlx-lm's caches."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from draftd.engine.cache.base import LayerCache, LayerOwner, flat
from draftd.engine.cache.layers import BatchedAttention, ChunkedAttention
from draftd.engine.cache.state import RecurrentState
from draftd.models.mlx_lm import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

LayerFactory = Callable[[LayerOwner], LayerCache]


def _factory(made: Any) -> LayerFactory | None:
    """For a layer that mlx-lm makes this cache for; None where no batched layout is for it."""
    if type(made) is KVCache:
        return BatchedAttention
    if type(made) is RotatingKVCache and not made.keep:
        return functools.partial(BatchedAttention, size=made.max_size)
    if type(made) is ChunkedKVCache:
        return functools.partial(ChunkedAttention, size=made.chunk_size)
    if type(made) is ArraysCache and made.left_padding is None:
        return functools.partial(RecurrentState, size=len(made.cache))
    return None


def batched_layers(model: Any) -> list[LayerFactory]:
    """One for each cache of each layer. Raises KeyError, with a name, where no batched layout is for one."""
    made = flat(make_prompt_cache(model))
    found = [_factory(cache) for cache in made]
    missing = sorted({type(cache).__name__ for cache, factory in zip(made, found, strict=True) if factory is None})
    if missing:
        raise KeyError(", ".join(missing))
    return [factory for factory in found if factory is not None]


FULL = "full attention"


def layer_kinds(model: Any) -> dict[str, int]:
    """How many of its caches, of which a layer may have several, keep what of a text: in words for people."""
    return dict(Counter(map(_kind, flat(make_prompt_cache(model)))))


def _kind(made: Any) -> str:
    if type(made) is KVCache:
        return FULL
    if isinstance(made, RotatingKVCache):
        return f"window of {made.max_size}"
    if isinstance(made, ChunkedKVCache):
        return f"chunks of {made.chunk_size}"
    return "recurrent state" if isinstance(made, ArraysCache) else type(made).__name__


def listed(model: Any, layers: Sequence[LayerCache]) -> list[Any]:
    """`layers` as the model takes them: in lists where mlx-lm makes it a list of caches for one of its layers."""
    rest = iter(layers)
    return [_as_made(cache, rest) for cache in make_prompt_cache(model)]


def _as_made(cache: Any, rest: Iterator[LayerCache]) -> Any:
    return [_as_made(one, rest) for one in cache.caches] if isinstance(cache, CacheList) else next(rest)
