"""Sampling parameters as distributions; speculative acceptance and its residual.

Greedy decoding compares arg-maxima. Everything else works on the *transformed* distributions of both models: p of the
target, q of the draft, after the same top_p, min_p, top_k and temperature (in mlx-lm's order). A drafted x stands with
probability min(1, p(x)/q(x)); the first that falls is replaced by a draw from max(0, p - q), normalised
(Leviathan et al. 2023, arXiv 2211.17192, theorem 1), so that the text has exactly the target's distribution.

Randomness comes as uniforms drawn on the host from one generator per row: a row's text does not depend on who shares
its batch. A draw is the inverse of the cumulative distribution at its uniform.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import mlx.core as mx

from draftd.core import SamplingParams

_BELOW_ONE = 1.0 - 2.0**-22  # a float32 uniform must never round up to 1


def uniforms(generators: Sequence[random.Random], counts: Sequence[int]) -> mx.array:
    """rows × max(counts) uniforms in [0, 1): `counts[i]` from row i's own generator, then zeros.

    A row draws what its own depth needs and no more, so that its text does not depend on the depths of the others.
    """
    width = max(counts)
    rows = zip(generators, counts, strict=True)
    drawn = [[min(g.random(), _BELOW_ONE) for _ in range(n)] + [0.0] * (width - n) for g, n in rows]
    return mx.array(drawn, dtype=mx.float32)


class Sampling:
    """The sampling parameters of a list of rows, as arrays that broadcast over rows × positions × vocabulary."""

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self.greedy = all(p.greedy for p in params)
        self._any_greedy = any(p.greedy for p in params)
        self._top_p = any(p.top_p < 1 for p in params)
        self._min_p = any(p.min_p > 0 for p in params)
        self._top_k = any(p.top_k > 0 for p in params)
        self._params = params
        if self.greedy:
            return
        self._inverse_temperature = _column([1.0 if p.greedy else 1.0 / p.temperature for p in params])
        self._is_greedy = _column([float(p.greedy) for p in params]) > 0
        # Neutral values keep every token: a threshold above all mass, a floor below every probability.
        self._nucleus = _column([p.top_p if p.top_p < 1 else 2.0 for p in params])
        self._floor = mx.log(_column([p.min_p if p.min_p > 0 else 0.0 for p in params]))
        self._kept = _column([float(p.top_k) for p in params])

    def select(self, rows: Sequence[int]) -> Sampling:
        """The parameters of these rows."""
        return Sampling([self._params[i] for i in rows])

    def distribution(self, logits: mx.array) -> mx.array:
        """Probabilities, shaped as `logits`: rows × positions × vocabulary. Greedy rows have all on the maximum."""
        logits = logits.astype(mx.float32)
        kept = logits
        if self._top_p or self._min_p or self._top_k:
            kept = self._filtered(logits)
        p = mx.softmax(kept * self._inverse_temperature, axis=-1)
        if self._any_greedy:
            p = mx.where(self._is_greedy, one_hot(mx.argmax(logits, axis=-1), logits.shape[-1]), p)
        return p

    def _filtered(self, logits: mx.array) -> mx.array:
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if self._top_p:
            ordered = mx.sort(logprobs, axis=-1)
            mass = mx.exp(ordered)
            above = mx.cumsum(mass, axis=-1, reverse=True, inclusive=False)
            total = above[..., :1] + mass[..., :1]
            dropped = (above >= self._nucleus * total).sum(axis=-1, keepdims=True)
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
        return logprobs


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(values, dtype=mx.float32)[:, None, None]


def one_hot(tokens: mx.array, vocabulary: int) -> mx.array:
    """float32, shape of `tokens` × vocabulary."""
    return (mx.arange(vocabulary, dtype=tokens.dtype) == tokens[..., None]).astype(mx.float32)


def draw(p: mx.array, u: mx.array) -> mx.array:
    """One token from each distribution: `p` is … × vocabulary and need not be normalised, `u` is … uniforms.

    Counts the cumulative masses not above u × total, so that a token of no mass is never drawn.
    """
    cumulative = mx.cumsum(p, axis=-1)
    below = cumulative <= u[..., None] * cumulative[..., -1:]
    return mx.minimum(below.sum(axis=-1), p.shape[-1] - 1).astype(mx.uint32)


def accept(
    p: mx.array, q: mx.array, drafted: mx.array, depths: mx.array, u_accept: mx.array, u_next: mx.array
) -> tuple[mx.array, mx.array]:
    """Judges one block for each row.

    `p`: rows × (k+1) × vocabulary, the target's transformed distributions; `q`: rows × k × vocabulary, the draft's;
    `drafted`: rows × k; `depths`: rows, how many of the k are real; `u_accept`: rows × k; `u_next`: rows.
    Returns how many drafted tokens stand, and the token that follows them: a correction or the bonus. Both have shape
    rows.
    """
    k = drafted.shape[1]
    index = drafted[..., None]
    p_x = mx.take_along_axis(p[:, :k], index, axis=-1)[..., 0]
    q_x = mx.take_along_axis(q, index, axis=-1)[..., 0]
    stands = (u_accept * q_x < p_x) & (mx.arange(k) < depths[:, None])
    accepted = mx.cumprod(stands.astype(mx.int32), axis=1).sum(axis=1)
    at = accepted[:, None, None]
    p_next = mx.take_along_axis(p, at, axis=1)[:, 0]
    q_next = mx.take_along_axis(q, mx.minimum(at, k - 1), axis=1)[:, 0]
    corrected = (accepted < depths)[:, None]
    residual = mx.maximum(p_next - mx.where(corrected, q_next, 0.0), 0.0)
    # Where p and q agree to the last bit nothing remains; rejection then has probability zero but for rounding.
    residual = mx.where(residual.sum(axis=-1, keepdims=True) > 0, residual, p_next)
    return accepted, draw(residual, u_next)
