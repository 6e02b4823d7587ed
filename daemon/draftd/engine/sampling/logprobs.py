"""Log-probabilities of the target's own distribution, before any processing, for sequences that ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from draftd.core import TokenLogprobs
from draftd.engine.sampling.transforms import greatest

_LOGITS = 1 << 24  # logits of a prompt's piece: 64 MiB in float32, and a few copies


class Logprobs:
    """Log-probabilities of one step, computed together with its choice and read with it. Natural logarithms in
    float32."""

    def __init__(self, logits: mx.array, limits: Sequence[int | None], *, ranked: bool = False) -> None:
        """`logits`: rows × positions × vocabulary, unprocessed. `limits`: by row, how many of the likeliest tokens are
        reported with the chosen one; None reports nothing. `ranked`: ranks are reported too."""
        self._limits, self._ranked = limits, ranked
        self._rows = mx.array([i for i, most in enumerate(limits) if most is not None])
        values = logits[self._rows].astype(mx.float32)
        self._values = values - mx.logsumexp(values, axis=-1, keepdims=True)
        self._most = min(max(most or 0 for most in limits), values.shape[-1])
        self._arrays: list[mx.array] = []

    def of(self, chosen: mx.array) -> list[mx.array]:
        """Returns the arrays to compute for the `chosen` tokens, rows × positions."""
        index = chosen[self._rows][..., None]
        own = mx.take_along_axis(self._values, index, axis=-1)
        ranks = (self._values > own).sum(axis=-1) + 1 if self._ranked else mx.zeros(own.shape[:-1], dtype=mx.int32)
        self._arrays = [own[..., 0], ranks]
        if self._most:
            if self._most == 1:  # much cheaper than sorting
                top = mx.argmax(self._values, axis=-1, keepdims=True)
            else:
                top = mx.argpartition(self._values, kth=-self._most, axis=-1)[..., -self._most :]
            self._arrays += [top, mx.take_along_axis(self._values, top, axis=-1)]
        return self._arrays

    def read(self) -> list[tuple[TokenLogprobs, ...]]:
        """Returns log-probabilities by row, in order, one for each position; none for rows that do not ask."""
        own, ranks, *tops = [array.tolist() for array in self._arrays]
        ids, values = tops or (own, own)
        rows = zip(own, ranks, ids, values, strict=True)
        return [() if most is None else _token_logprobs(next(rows), most) for most in self._limits]


class PromptLogprobs:
    """Log-probabilities of a prompt's tokens, each given those before it, computed piece by piece. Only one piece's
    logits, and those of the position before it, are in memory."""

    def __init__(self, most: int, vocabulary: int) -> None:
        """`most`: how many of the likeliest tokens are reported with each of the prompt's."""
        self._most = most
        self._before: mx.array | None = None  # 1 × 1 × vocabulary: logits after the last token
        self.widest = max(1, _LOGITS // vocabulary)  # tokens per piece
        self.logprobs: list[TokenLogprobs] = []  # of all tokens except the first
        self.finite = True  # whether all logits were numbers, and not all -inf

    def add(self, tokens: Sequence[int], logits: mx.array) -> None:
        """Computes and adds the log-probabilities of these tokens. `logits`: 1 × width × vocabulary; the last position
        is for the next piece."""
        targets, before = tokens[1:], logits[:, :-1]
        if self._before is not None:
            targets, before = tokens, mx.concatenate([self._before, before], axis=1)
        self._before = mx.contiguous(logits[:, -1:])  # a copy: a view would keep all logits in memory
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
