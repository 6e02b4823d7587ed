"""Log-probabilities of the target's own distribution, before whatever is done to it, for the sequences that ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from draftd.core import TokenLogprobs


class Logprobs:
    """Of one step, computed together with its choice and read when that is. Natural logarithms, in float32."""

    def __init__(self, logits: mx.array, asked: Sequence[int | None]) -> None:
        """`logits`: rows × positions × vocabulary, unprocessed. `asked`: of each row, how many of the likeliest tokens
        are told besides the chosen one; None tells nothing."""
        self._asked = asked
        self._rows = mx.array([i for i, most in enumerate(asked) if most is not None])
        values = logits[self._rows].astype(mx.float32)
        self._values = values - mx.logsumexp(values, axis=-1, keepdims=True)
        self._most = min(max(most or 0 for most in asked), values.shape[-1])
        self._arrays: list[mx.array] = []

    def of(self, chosen: mx.array) -> list[mx.array]:
        """What has to be computed to tell of `chosen`, rows × positions."""
        index = chosen[self._rows][..., None]
        self._arrays = [mx.take_along_axis(self._values, index, axis=-1)[..., 0]]
        if self._most:
            top = mx.argpartition(self._values, kth=-self._most, axis=-1)[..., -self._most :]
            self._arrays += [top, mx.take_along_axis(self._values, top, axis=-1)]
        return self._arrays

    def read(self) -> list[tuple[TokenLogprobs, ...]]:
        """Of each row, in its order, one for each position; none of a row that does not ask."""
        own, *tops = [array.tolist() for array in self._arrays]
        ids, values = tops or (own, own)
        found = zip(own, ids, values, strict=True)
        return [() if most is None else _told(next(found), most) for most in self._asked]


def logprobs(logits: mx.array, asked: Sequence[int | None]) -> Logprobs | None:
    """None where no row asks."""
    return None if all(most is None for most in asked) else Logprobs(logits, asked)


def _told(row: tuple[list[float], list[Any], list[Any]], most: int) -> tuple[TokenLogprobs, ...]:
    if not most:
        return tuple(TokenLogprobs(own) for own in row[0])
    return tuple(
        TokenLogprobs(own, tuple(sorted(zip(ids, values, strict=True), key=lambda top: (-top[1], top[0]))[:most]))
        for own, ids, values in zip(*row, strict=True)
    )
