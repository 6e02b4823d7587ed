"""The logits of the positions that are read, and of no others.

mlx-lm's models end in a linear layer called `lm_head`, or use their embedding as one. Of a prompt only the last
position is read there, and with a large vocabulary the others would take a quarter of its time. So that layer is given
the last positions alone. A model that ends otherwise computes all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

_NOTED = "_draftd_last_positions"


class _Wanted:
    """`at`: by row, the position whose logits the next forward computes; None for all positions."""

    at: mx.array | None = None


def last_logits(model: Any, tokens: mx.array, caches: Sequence[Any], widths: Sequence[int]) -> mx.array:
    """Runs mlx-lm's `model` on `tokens`, rows × width, of which each row's first `widths` are real. Returns the logits
    of each row's last real one, rows × 1 × vocabulary."""
    if tokens.shape[1] == 1:
        return model(tokens, cache=caches)
    wanted = _installed(model)
    at = wanted.at = mx.array([max(width, 1) - 1 for width in widths])
    try:
        logits = model(tokens, cache=caches)
    finally:
        wanted.at = None
    return logits if logits.shape[1] == 1 else _taken(logits, at)


def _installed(model: Any) -> _Wanted:
    """Has the model's last layer ask for the positions, for good."""
    known: _Wanted | None = getattr(model, _NOTED, None)
    if known is None:
        known = _Wanted()
        for path, layer in model.named_modules():
            for method in ("as_linear", *(["__call__"] if path.rpartition(".")[2] == "lm_head" else [])):
                if hasattr(type(layer), method):
                    layer.__class__ = _asking(type(layer), method, known)
        setattr(model, _NOTED, known)
    return known


def _asking(kind: type, method: str, wanted: _Wanted) -> type:
    """The same class, but that `method` computes what is wanted only."""
    whole = getattr(kind, method)

    def some(self: Any, x: mx.array) -> Any:
        return whole(self, x if wanted.at is None else _taken(x, wanted.at))

    return type(kind.__name__, (kind,), {method: some, "__module__": kind.__module__})


def _taken(x: mx.array, at: mx.array) -> mx.array:
    """rows × width × n at one position each: rows × 1 × n."""
    return mx.take_along_axis(x, at[:, None, None], axis=1)
