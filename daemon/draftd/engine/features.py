"""Hidden states of the target, on their way to the drafters that need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # the daemon is put together without MLX
    import mlx.core as mx


class Features(NamedTuple):
    """Hidden states of the target at some positions of a text, from position `start` on: those of row `row` of `states`
    (rows × width × size), from column `first` on. They are not cut out yet: an operation on them could have to wait for
    the next forward."""

    start: int
    positions: int
    states: mx.array
    row: int = 0
    first: int = 0
