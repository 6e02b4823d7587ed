"""The mode of a model in which each token of a step is computed as if it were alone (alone.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

_ALONE = "_draftd_alone"


class AloneMode:
    """The mode of one model. `active`: forwards are now computed in this mode. `exact`: decoding uses it, always.
    `by_token`: the model's layers cannot be called apart, so a forward is run for each token of each sequence.
    `attention`: whether it is computed in this mode. `lengths`, `widths`: of the forward's sequences."""

    def __init__(self) -> None:
        self.active = self.by_token = self.exact = False
        self.kinds: dict[Any, type] = {}  # classes of layers that were changed
        self.attention = True  # off while attention alone is to be computed as usual
        self.lengths: Sequence[int] = ()
        self.widths: Sequence[int] = ()

    def begin(self, lengths: Sequence[int], widths: Sequence[int]) -> None:
        """Notes the sequences of the next forward: their tokens in the caches, and those that they take."""
        self.lengths, self.widths = list(lengths), list(widths)


def mode_of(model: Any) -> AloneMode | None:
    """Returns the model's mode; None for a model that was never prepared."""
    mode: AloneMode | None = getattr(model, _ALONE, None)
    return mode


def is_exact(model: Any) -> bool:
    """Returns whether decoding computes each token of this model as if it were alone."""
    mode = mode_of(model)
    return mode is not None and mode.exact


def prepare_alone(model: Any) -> AloneMode:
    """Gives the model the mode, which is then used within `tokens_alone`. Attention follows it; other layers only once
    `split_tokens` or `split_states` has changed them."""
    mode = mode_of(model)
    if mode is None:
        mode = AloneMode()
        setattr(model, _ALONE, mode)
    return mode


def forget_alone(model: Any) -> None:
    """Takes the mode from the model; its layers must have their own classes again."""
    if mode_of(model) is not None:
        delattr(model, _ALONE)


@contextlib.contextmanager
def tokens_alone(model: Any) -> Iterator[None]:
    """Computes the forwards that begin inside in the model's mode; a model without the mode computes them as usual."""
    mode = mode_of(model)
    if mode is None or mode.active:
        yield
        return
    mode.active = True
    try:
        yield
    finally:
        mode.active = False
