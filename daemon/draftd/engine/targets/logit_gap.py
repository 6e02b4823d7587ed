"""The difference of two tokens' logits, to tell whether they nearly tie."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.base import last
from draftd.engine.cache.layouts import make_caches


def logit_gap(model: Any, tokens: Sequence[int], chosen: int, other: int, chunk: int) -> Generator[None, None, float]:
    """Computes the logit of `chosen` minus that of `other` after `tokens`, in its own forward, one chunk per step of
    the generator."""
    caches = make_caches(model).fresh()
    try:
        for start in range(0, len(tokens), chunk):
            piece = tokens[start : start + chunk]
            logits = caches.forward(mx.array([piece], dtype=mx.uint32), [len(piece)], at=last([len(piece)]))
            mx.eval(caches.arrays())
            yield
        end = logits[0, -1].astype(mx.float32)
        return float((end[chosen] - end[other]).item())
    finally:
        caches.clear()
