"""The acceptance rule: how many of the drafted tokens become text, and which token follows them.

Where the target's choice is deterministic (greedy, or drawn with noise that a seed fixes) a drafted token is accepted
if it is that choice. Otherwise it is accepted with probability min(1, p/q), and the first that is rejected is replaced
by a draw from max(0, p - q), normalised (Leviathan et al. 2023, arXiv 2211.17192, theorem 1). In both cases all before
it must be accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import mlx.core as mx


class Distributions(NamedTuple):
    """The inputs of the rule for random choices. `p`: rows × (k+1) × vocabulary, the target's transformed
    distributions; `q`: rows × k × vocabulary, the draft's; uniforms `u_accept`: rows × k; `u_next`: rows."""

    p: mx.array
    q: mx.array
    u_accept: mx.array
    u_next: mx.array


def accept(
    drafted: mx.array,
    depths: Sequence[int],
    target: mx.array | Distributions,
    also: Callable[[mx.array], Sequence[mx.array]] | None = None,
    instead: Mapping[int, Callable[[int, int], int]] = MappingProxyType({}),
    beside: Sequence[mx.array] = (),
) -> list[tuple[list[int], int]]:
    """Returns each row's accepted tokens and the token after them, a correction or the bonus. Waits only once.

    `drafted`: rows × k ids; the first `depths[i]` of row i are real. `target`: rows × (k+1) ids, the target's choices,
    or the distributions to draw from. `also` maps the chosen ids, rows × (k+1), to arrays to compute; a row's ids after
    its last are meaningless. `beside`: more arrays. `instead[row](place, choice)` replaces the choice at a place, in
    order."""
    if isinstance(target, Distributions):
        lengths, following = accept_by_ratio(*target, drafted, mx.array(depths))
        mx.eval(lengths, following, drafted, *beside, *(also(_chosen(drafted, lengths, following)) if also else ()))
        ended = zip(drafted.tolist(), lengths.tolist(), following.tolist(), strict=True)
        return [(tokens[:n], token) for tokens, n, token in ended]
    mx.eval(target, drafted, *beside, *(also(target) if also else ()))
    results = []
    for row, (tokens, chosen, depth) in enumerate(zip(drafted.tolist(), target.tolist(), depths, strict=True)):
        n, following = 0, instead.get(row)
        choice = following(0, chosen[0]) if following else chosen[0]
        while n < depth and tokens[n] == choice:
            n += 1
            choice = following(n, chosen[n]) if following else chosen[n]
        results.append((tokens[:n], choice))
    return results


def _chosen(drafted: mx.array, lengths: mx.array, following: mx.array) -> mx.array:
    chosen = mx.pad(drafted, [(0, 0), (0, 1)])
    return mx.where(mx.arange(chosen.shape[1]) == lengths[:, None], following[:, None], chosen)


def accept_by_ratio(
    p: mx.array, q: mx.array, u_accept: mx.array, u_next: mx.array, drafted: mx.array, depths: mx.array
) -> tuple[mx.array, mx.array]:
    """Returns how many of each row's `drafted` tokens are accepted, and the token after them. Both have shape rows."""
    k = drafted.shape[1]
    index = drafted[..., None]
    p_x = mx.take_along_axis(p[:, :k], index, axis=-1)[..., 0]
    q_x = mx.take_along_axis(q, index, axis=-1)[..., 0]
    accepts = (u_accept * q_x < p_x) & (mx.arange(k) < depths[:, None])
    accepted = mx.cumprod(accepts.astype(mx.int32), axis=1).sum(axis=1)
    rows = mx.arange(drafted.shape[0])
    p_next, q_next = p[rows, accepted], q[rows, mx.minimum(accepted, k - 1)]
    corrected = (accepted < depths)[:, None]
    residual = mx.maximum(p_next - mx.where(corrected, q_next, 0.0), 0.0)
    # If p equals q to the last bit nothing remains; rejection then has probability zero, except for rounding.
    residual = mx.where(residual.sum(axis=-1, keepdims=True) > 0, residual, p_next)
    return accepted, draw(residual, u_next)


def draw(p: mx.array, u: mx.array) -> mx.array:
    """Draws one token from each distribution: `p` is … × vocabulary and need not be normalised, `u` is … uniforms.

    Counts the cumulative masses that are at most u × total, so a token without mass is never drawn."""
    cumulative = mx.cumsum(p, axis=-1)
    below = cumulative <= u[..., None] * cumulative[..., -1:]
    return mx.minimum(below.sum(axis=-1), p.shape[-1] - 1).astype(mx.uint32)
