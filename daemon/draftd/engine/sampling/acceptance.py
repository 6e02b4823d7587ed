from __future__ import annotations

import mlx.core as mx


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
    rows = mx.arange(drafted.shape[0])
    p_next, q_next = p[rows, accepted], q[rows, mx.minimum(accepted, k - 1)]
    corrected = (accepted < depths)[:, None]
    residual = mx.maximum(p_next - mx.where(corrected, q_next, 0.0), 0.0)
    # Where p and q agree to the last bit nothing remains; rejection then has probability zero but for rounding.
    residual = mx.where(residual.sum(axis=-1, keepdims=True) > 0, residual, p_next)
    return accepted, draw(residual, u_next)
