"""Sampling parameters as distributions, and how they change a row of logits.

A row without a seed uses the *transformed* distributions of both models: p of the target and q of the draft, after the
same top_p, min_p, top_k and temperature (in mlx-lm's order); acceptance.py has the rule. Each row's generator on the
host supplies uniforms. A draw is the inverse of the cumulative distribution at its uniform.

All other rows are *deterministic*: the token at a place in the text is always the same. A greedy row takes the maximum;
a seeded row takes the maximum of log p + noise (noise.py), which is a draw from p. A drafted token is accepted if it is
the target's own choice: less often than by the rule for p and q, but the text does not depend on the draft. In a batch
with unseeded rows, deterministic ones have all their mass on their choice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import mlx.core as mx

from draftd.core import SamplingParams
from draftd.engine.sampling.noise import Noise

_LOG2_E = math.log2(math.e)
_MANY, _ROWS = 1 << 14, 32  # logits from which reshaping is worth one more operation; rows to reshape them into

_BELOW_ONE = 1.0 - 2.0**-22  # a float32 uniform must never step up to 1


def uniforms(generators: Sequence[random.Random], counts: Sequence[int]) -> mx.array:
    """Returns rows × max(counts) uniforms in [0, 1): `counts[i]` from row i's own generator, then zeros.

    A row draws only what its own depth needs, so its text does not depend on the depths of others."""
    width = max(counts)
    rows = zip(generators, counts, strict=True)
    drawn = [[min(g.random(), _BELOW_ONE) for _ in range(n)] + [0.0] * (width - n) for g, n in rows]
    return mx.array(drawn, dtype=mx.float32)


class Sampling:
    """The sampling parameters of a list of rows, as arrays that broadcast over rows × positions × vocabulary.

    In the methods, `starts` and `first` locate the positions in the answers: in row i, `starts[i] + first` tokens of
    the answer precede the first position. `more`: how many further positions will be asked for next with the same
    `starts`."""

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self.deterministic = all(p.greedy or p.seed is not None for p in params)
        self._greedy = all(p.greedy for p in params)
        self._top_p = any(p.top_p < 1 for p in params if not p.greedy)
        self._min_p = any(p.min_p > 0 for p in params if not p.greedy)
        self._top_k = any(p.top_k > 0 for p in params if not p.greedy)
        self._params = params
        self._selected: tuple[list[int], Sampling] | None = None
        if self._greedy:
            return
        self._inverse_temperature = column([1.0 if p.greedy else 1.0 / p.temperature for p in params])
        # Neutral values keep every token: a threshold above all mass, a floor below every probability.
        self._nucleus = column([p.top_p if p.top_p < 1 else 2.0 for p in params])
        self._floor = mx.log(column([p.min_p if p.min_p > 0 else 0.0 for p in params]))
        self._kept = column([float(p.top_k) for p in params])
        deterministic = [p.greedy or p.seed is not None for p in params]
        self._any_deterministic, self._deterministic_rows = any(deterministic), _rows(deterministic)
        seeds = {i: p.seed for i, p in enumerate(params) if not p.greedy and p.seed is not None}
        self._seeded = list(seeds)
        self._noise = Noise(list(seeds.values())) if seeds else None
        # Rows without a seed get a seeded row's noise, which is not used.
        place = {row: n for n, row in enumerate(seeds)}
        self._spread = mx.array([place.get(i, 0) for i in range(len(params))]) if len(seeds) < len(params) else None
        self._noisy_rows = _rows([i in seeds for i in range(len(params))])

    def select(self, rows: Sequence[int]) -> Sampling:
        """Returns the parameters of these rows. The last result is kept, because the same rows draft for many steps."""
        selection = list(rows)
        if self._selected is None or self._selected[0] != selection:
            self._selected = selection, Sampling([self._params[i] for i in selection])
        return self._selected[1]

    def choose(self, logits: mx.array, starts: Sequence[int], first: int = 0, more: int = 0) -> mx.array:
        """Returns the choices of deterministic (greedy or seeded) rows, rows × positions, from `logits`, rows ×
        positions × vocabulary. Those of other rows are meaningless."""
        if self._greedy:
            return mx.argmax(logits, axis=-1)
        logits = logits.astype(mx.float32)
        return self._choose(logits, self._scale(logits), starts, first, more)

    def distribution(self, logits: mx.array, starts: Sequence[int], first: int = 0, more: int = 0) -> mx.array:
        """Returns probabilities with the shape of `logits`: rows × positions × vocabulary. Deterministic rows have all
        mass on their choice."""
        vocabulary = logits.shape[-1]
        if self.deterministic:
            return one_hot(self.choose(logits, starts, first, more), vocabulary)
        logits = logits.astype(mx.float32)
        scaled = self._scale(logits)
        p = _softmax(scaled)
        if self._any_deterministic:
            p = mx.where(
                self._deterministic_rows, one_hot(self._choose(logits, scaled, starts, first, more), vocabulary), p
            )
        return p

    def _choose(self, logits: mx.array, scaled: mx.array, starts: Sequence[int], first: int, more: int) -> mx.array:
        if self._noise is None:
            return mx.argmax(logits, axis=-1)
        noise = self._noise.block([starts[i] for i in self._seeded], first, logits.shape[1], logits.shape[2], more)
        if self._spread is None:
            return mx.argmax(scaled + noise, axis=-1)
        return mx.argmax(mx.where(self._noisy_rows, scaled + noise[self._spread], logits), axis=-1)

    def _scale(self, logits: mx.array) -> mx.array:
        """Returns the input of the softmax. A row's values are the same to the last bit whatever the other rows ask
        for."""
        kept = self._filter(logits) if self._top_p or self._min_p or self._top_k else logits
        return kept * self._inverse_temperature

    def _filter(self, logits: mx.array) -> mx.array:
        """Returns `logits`, with -inf for tokens that top_p, min_p or top_k drop."""
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if self._top_p:
            ordered = mx.sort(logprobs, axis=-1)
            mass = mx.exp(ordered)
            above = mx.cumsum(mass, axis=-1, reverse=True, inclusive=False)
            total = above[..., :1] + mass[..., :1]
            dropped = (above >= self._nucleus * total).sum(axis=-1, keepdims=True)
            # The likeliest token is kept even if the nucleus is 0 in float32.
            dropped = mx.minimum(dropped, logprobs.shape[-1] - 1)
            logprobs = mx.where(logprobs < mx.take_along_axis(ordered, dropped, axis=-1), -mx.inf, logprobs)
        if self._min_p:
            floor = mx.max(logprobs, axis=-1, keepdims=True) + self._floor
            logprobs = mx.where(logprobs < floor, -mx.inf, logprobs)
        if self._top_k:
            vocabulary = logprobs.shape[-1]
            rank = mx.where(self._kept > 0, vocabulary - mx.minimum(self._kept, vocabulary), 0).astype(mx.int32)
            rank = mx.broadcast_to(rank, (*logprobs.shape[:-1], 1))
            threshold = mx.take_along_axis(mx.sort(logprobs, axis=-1), rank, axis=-1)
            logprobs = mx.where(logprobs < threshold, -mx.inf, logprobs)
        return mx.where(logprobs > -mx.inf, logits, -mx.inf)


def _softmax(x: mx.array) -> mx.array:
    """Softmax over the vocabulary. MLX's `exp` on an x86 CPU takes three times as long as its `power`."""
    if mx.default_device() != mx.cpu:
        return mx.softmax(x, axis=-1)
    mass = mx.power(2.0, (x - mx.max(x, axis=-1, keepdims=True)) * _LOG2_E)
    return mass / mx.sum(mass, axis=-1, keepdims=True)


def greatest(logits: mx.array) -> mx.array:
    """Returns the largest logit of each position of … × vocabulary: finite if all logits are finite or -inf and not all
    -inf; NaN if one is NaN. On a CPU MLX reduces over an axis other than the last in less than half the time."""
    if logits.size >= _MANY and logits.shape[-1] % _ROWS == 0 and mx.default_device() == mx.cpu:
        logits = mx.max(mx.unflatten(logits, -1, (_ROWS, -1)), axis=-2)
    return mx.max(logits, axis=-1)


def column(values: Sequence[float]) -> mx.array:
    """Returns one value for each row, which broadcasts over positions and vocabulary."""
    return mx.array(values, dtype=mx.float32)[:, None, None]


def _rows(values: Sequence[bool]) -> mx.array:
    return mx.array(values)[:, None, None]


def one_hot(tokens: mx.array, vocabulary: int) -> mx.array:
    """Returns float32 one-hot vectors, shape of `tokens` × vocabulary."""
    return (mx.arange(vocabulary, dtype=tokens.dtype) == tokens[..., None]).astype(mx.float32)
