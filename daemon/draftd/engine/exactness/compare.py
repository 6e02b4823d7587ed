"""Compares arrays bit by bit."""

from __future__ import annotations

import mlx.core as mx

_SAME_SIZE = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}


def compare(result: mx.array, alone: mx.array, spread: float) -> tuple[bool, float]:
    """Returns whether two arrays have the same bits, and their largest difference in units of `spread`."""
    if bool((_bits(result) == _bits(alone)).all().item()):
        return True, 0.0
    off = mx.abs(result.astype(mx.float32) - alone.astype(mx.float32))
    return False, float(mx.where(mx.isfinite(off), off, 0).max().item()) / spread


def _bits(x: mx.array) -> mx.array:
    return mx.view(x, _SAME_SIZE[x.itemsize])


def spread_of(x: mx.array) -> float:
    """Returns the standard deviation of the finite values; a tiny number if they are all equal."""
    values = x.astype(mx.float32)
    finite = mx.isfinite(values)
    values = mx.where(finite, values, 0)
    count = mx.maximum(finite.sum(), 1)
    mean = values.sum() / count
    variance = mx.where(finite, (values - mean) ** 2, 0).sum() / count
    return max(float(mx.sqrt(variance).item()), 1e-30)
