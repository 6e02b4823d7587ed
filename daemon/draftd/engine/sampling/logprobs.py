"""Log-probabilities of the target's own distribution, before whatever is done to it, for the sequences that ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from draftd.core import TokenLogprobs
from draftd.engine.sampling.transforms import greatest

_LOGITS = 1 << 24  # of a piece of a prompt: 64 MiB in float32, of which a few copies are made


class Logprobs:
    """Log-probabilities of one step, computed together with its choice and read when that is. Natural logarithms, in
    float32."""

    def __init__(self, logits: mx.array, limits: Sequence[int | None], *, ranked: bool = False) -> None:
        """`logits`: rows × positions × vocabulary, unprocessed. `limits`: of each row, how many of the likeliest tokens
        are told besides the chosen one; None tells nothing. `ranked`: ranks are told too."""
        self._limits, self._ranked = limits, ranked
        self._rows = mx.array([i for i, most in enumerate(limits) if most is not None])
        values = logits[self._rows].astype(mx.float32)
        self._values = values - mx.logsumexp(values, axis=-1, keepdims=True)
        self._most = min(max(most or 0 for most in limits), values.shape[-1])
        self._arrays: list[mx.array] = []

    def of(self, chosen: mx.array) -> list[mx.array]:
        """What has to be computed to tell of `chosen`, rows × positions."""
        index = chosen[self._rows][..., None]
        own = mx.take_along_axis(self._values, index, axis=-1)
        ranks = (self._values > own).sum(axis=-1) + 1 if self._ranked else mx.zeros(own.shape[:-1], dtype=mx.int32)
        self._arrays = [own[..., 0], ranks]
        if self._most:
            if self._most == 1:  # far less work than to sort
                top = mx.argmax(self._values, axis=-1, keepdims=True)
            else:
                top = mx.argpartition(self._values, kth=-self._most, axis=-1)[..., -self._most :]
            self._arrays += [top, mx.take_along_axis(self._values, top, axis=-1)]
        return self._arrays

    def read(self) -> list[tuple[TokenLogprobs, ...]]:
        """Of each row, in its order, one for each position; none of a row that does not ask."""
        own, ranks, *tops = [array.tolist() for array in self._arrays]
        ids, values = tops or (own, own)
        rows = zip(own, ranks, ids, values, strict=True)
        return [() if most is None else _token_logprobs(next(rows), most) for most in self._limits]


class PromptLogprobs:
    """Of a prompt's tokens, each after those before it, as it is taken in piece by piece. The logits of one piece, and
    of the last position before it, are all that is in memory."""

    def __init__(self, most: int, vocabulary: int) -> None:
        """`most` of the likeliest tokens are told besides each of the prompt's."""
        self._most = most
        self._before: mx.array | None = None  # 1 × 1 × vocabulary: logits after the last token
        self.widest = max(1, _LOGITS // vocabulary)  # tokens of a piece
        self.logprobs: list[TokenLogprobs] = []  # of all but the first token
        self.finite = True  # all logits that they are of are numbers, and not all -inf

    def add(self, tokens: Sequence[int], logits: mx.array) -> None:
        """`logits` of these tokens, 1 × width × vocabulary, of which the last is for the next piece. Computes them."""
        targets, before = tokens[1:], logits[:, :-1]
        if self._before is not None:
            targets, before = tokens, mx.concatenate([self._before, before], axis=1)
        self._before = mx.contiguous(logits[:, -1:])  # and not a part of all of them
        if targets:
            logprobs, finite = Logprobs(before, [self._most], ranked=True), mx.isfinite(greatest(before)).all()
            mx.eval(self._before, finite, *logprobs.of(mx.array([targets])))
            self.logprobs += logprobs.read()[0]
            self.finite = self.finite and bool(finite.item())


def _token_logprobs(row: tuple[list[float], list[int], list[Any], list[Any]], most: int) -> tuple[TokenLogprobs, ...]:
    if not most:
        return tuple(TokenLogprobs(own, rank=rank) for own, rank in zip(*row[:2], strict=True))
    return tuple(
        TokenLogprobs(own, tuple(sorted(zip(ids, values, strict=True), key=lambda top: (-top[1], top[0]))[:most]), rank)
        for own, rank, ids, values in zip(*row, strict=True)
    )
