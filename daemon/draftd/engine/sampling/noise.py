"""Noise that is a function of only a seed and a place in the answer.

argmax(log p + G) with standard Gumbel noise G is a draw from p (the Gumbel-max trick). If G depends only on the seed
and on how many tokens precede this one, the draw is the same however the text is decoded and whatever shares its batch.
A draft that draws from its own q with the same G often chooses what the target will: with probability at least (1 - TV)
/ (1 + TV), where TV, half the sum of |p - q|, is the distance of p and q (Daliri, Musco, Suresh 2024, "Coupling without
communication and drafter-invariant speculative decoding", arXiv 2408.07978).

The generator is MLX's counter-based Threefry, the same on every backend; each place has its own key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import mlx.core as mx

_LEAST = 2.0**-33  # keeps noise finite, so that a token without mass stays without
_SMALL = 2.0**-7  # below it three terms of -log(1 - u) are exact to the last bit or two


class Noise:
    """The Gumbel noise of a list of rows, one seed per row."""

    def __init__(self, seeds: Sequence[int]) -> None:
        scattered = [_scatter(seed) for seed in seeds]
        self._keys = mx.array([[s >> 32, s & 0xFFFFFFFF] for s in scattered], dtype=mx.uint32)[:, None]
        self._drawn: tuple[list[int], mx.array] | None = None  # the noise for the last `starts`

    def block(self, starts: Sequence[int], first: int, width: int, vocabulary: int, more: int = 0) -> mx.array:
        """Returns rows × width × vocabulary: row i's noise for `width` tokens, the first of which follows `starts[i] +
        first` tokens.

        The noise of `more` further positions is drawn with them. All is kept for later calls with the same `starts`: a
        step's drafter and verifier share their noise."""
        rows, end = list(starts), first + width
        if self._drawn is None or self._drawn[0] != rows or self._drawn[1].shape[1] < end:
            self._drawn = rows, _gumbel(self._keys, rows, end + more, vocabulary)
        return self._drawn[1][:, first:end]


def compile_ahead() -> None:
    """Compiles the noise functions, so that no request waits for that. On a CPU, MLX runs a C++ compiler."""
    mx.eval(Noise([0]).block([0], 0, 1, 8))


def _gumbel(keys: mx.array, starts: Sequence[int], width: int, vocabulary: int) -> mx.array:
    rows = len(starts)
    places = mx.array(starts, dtype=mx.uint32)[:, None, None] + mx.arange(width, dtype=mx.uint32)[:, None]
    both = mx.concatenate([keys[..., :1] + places, mx.broadcast_to(keys[..., 1:], places.shape)], axis=-1)
    u = mx.vmap(lambda key: mx.random.uniform(shape=(vocabulary,), key=key))(both.reshape(rows * width, 2))
    # The largest noise decides, and comes from the smallest uniforms, where 1 - u is coarse. `log1p` is exact, at the
    # cost of four logarithms.
    exponential = mx.where(u < _SMALL, _small(u), -mx.log(1 - u))
    return -mx.log(exponential).reshape(rows, width, vocabulary)


@partial(mx.compile, shapeless=True)
def _small(u: mx.array) -> mx.array:
    """Returns -log(1 - u) for small u. Compiled once for all shapes, without logarithms: on a CPU MLX's own are faster
    than compiled ones."""
    u = mx.maximum(u, _LEAST)
    return u * (1 + u * (1 / 2 + u * (1 / 3)))


def _scatter(seed: int) -> int:
    """Permutes 64-bit numbers (splitmix64). Otherwise nearby seeds would share noise: a position is added to the seed's
    key."""
    x = (seed + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)
