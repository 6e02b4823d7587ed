"""The logits of the positions that are read, and of no others.

mlx-lm's models end in a linear layer called `lm_head`, or use their embedding as one. Of a prompt only the last
position is read there, and with a large vocabulary the others would take a quarter of its time; of a step, none that is
replayed. So that layer is given the positions that are read alone. A model that ends otherwise computes all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.base import Positions

_NOTED = "_draftd_last_positions"


class _Wanted:
    """`at`: rows × n, the positions whose logits the next forward computes; None for all positions."""

    at: mx.array | None = None
    asked = False  # whether a layer has
    skipped = False  # that layer gives its input


def logits_at(model: Any, tokens: mx.array, caches: Sequence[Any], at: Positions | None) -> mx.array:
    """Runs mlx-lm's `model` on `tokens`, rows × width. Returns the logits of positions `at`, rows × n × vocabulary; of
    all where that is None."""
    if at is None or tokens.shape[1] == len(at[0]) == 1:
        return model(tokens, cache=caches)
    wanted = _installed(model)
    positions = wanted.at = mx.array(at)
    wanted.asked = False
    try:
        logits = model(tokens, cache=caches)
    finally:
        wanted.at = None
    return logits if wanted.asked else _taken(logits, positions)


@contextlib.contextmanager
def without_head(model: Any) -> Iterator[None]:
    """Has `model` give the hidden states that its last layer makes logits of, in place of these, with zeros behind
    them: with a large vocabulary that layer takes most of a short forward. A model that ends otherwise gives its logits
    all the same."""
    wanted = _installed(model)
    wanted.skipped = True
    try:
        yield
    finally:
        wanted.skipped = False


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
        if wanted.skipped:
            return _as_wide(self, x)
        if wanted.at is None:
            return whole(self, x)
        wanted.asked = True
        return whole(self, _taken(x, wanted.at))

    return type(kind.__name__, (kind,), {method: some, "__module__": kind.__module__})


def _as_wide(layer: Any, x: mx.array) -> mx.array:
    """`x` with zeros up to as many as `layer` gives logits. Some models (Phi-3-small) write to these by their ids
    afterwards, and MLX writes beyond an array's end."""
    weight = getattr(layer, "weight", None)
    more = 0 if weight is None else weight.shape[0] - x.shape[-1]
    return mx.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, more)]) if more > 0 else x


def _taken(x: mx.array, at: mx.array) -> mx.array:
    """rows × width × features at positions of each row."""
    return mx.take_along_axis(x, at[:, :, None], axis=1)
