"""Which layout a model's caches have, and what they can do."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from draftd.engine.cache.attention import installed
from draftd.engine.cache.base import STEP, Caches
from draftd.engine.cache.batched import RaggedCaches
from draftd.engine.cache.per_sequence import SeparateCaches, flat


def make_caches(model: Any, most_rows: int | None = None) -> Caches:
    """The best layout that the model allows, holding no rows, of which there will be at most `most_rows`."""
    layers = make_prompt_cache(model)
    if all(type(layer) is KVCache for layer in layers):
        return RaggedCaches(model, len(layers), most_rows, apart=installed(model))
    return SeparateCaches(model)


def rollback_limit(model: Any) -> int | None:
    """Tokens after which a rotating cache of the model can no longer be rolled back; None where there is no limit."""
    sizes = [s for c in flat(make_prompt_cache(model)) if (s := getattr(c, "max_size", None)) is not None]
    return min(sizes) if sizes else None


def cannot_trim(model: Any) -> str:
    """Names the cache types of the model that can never be rolled back; empty when all can."""
    return ", ".join(sorted({type(c).__name__ for c in make_prompt_cache(model) if not c.is_trimmable()}))


def position_bytes(model: Any) -> int:
    """Bytes that a cache of the model takes for one position of one row, measured: one forward, on this thread. An
    estimate where layers differ in what they keep."""
    caches = make_caches(model)
    row = caches.fresh()
    mx.eval(row.forward(mx.array([[0]], dtype=mx.uint32), [1]), row.arrays())
    found = row.position_bytes or -(-row.nbytes // STEP)
    row.clear()
    caches.clear()  # or it would keep the weights until the collector
    return found
