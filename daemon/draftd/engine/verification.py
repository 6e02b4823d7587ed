"""Verifiers: the target's verdict on a draft.

The seam is narrow on purpose, token ids in and verdicts out, so that a verifier on another machine can stand behind it.
`LocalVerifier` owns the target and its caches. Without a draft it decodes autoregressively, and pipelined as mlx-lm
does it: the next forward is dispatched before this one's tokens are read.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from draftd.engine.batch import Row
from draftd.engine.cache import Caches
from draftd.engine.drafting import Draft
from draftd.engine.layouts import make_caches
from draftd.engine.prefill import Prefill
from draftd.engine.prefix import PrefixCache
from draftd.engine.sampling import Sampling, accept, draw, uniforms

# The forward that ends a prompt computes the logits of all its positions, and one is read. A forward less is worth that
# up to about this many positions, and this many logits (32 MB of halves).
_LAST_POSITIONS, _LAST_LOGITS = 256, 1 << 24

_GAP_POSITIONS = 16  # likewise, where nobody waits for it


@dataclass(frozen=True, slots=True)
class Verdict:
    """For each row: how many drafted tokens stand, those tokens, and the one that follows them."""

    accepted: list[list[int]]
    following: list[int]


class Verifier(Protocol):
    """Holds the running rows, in the order they joined. Called on the engine thread only."""

    def prefill(self, row: Row, chunk: int) -> int | None:
        """Takes in up to `chunk` more tokens of a newcomer's text; once all are in, the token that follows them."""
        ...

    def join(self, row: Row) -> None:
        """Makes a prefilled newcomer the last of the running rows. Nothing may be under way from `advance`."""
        ...

    def verify(self, rows: Sequence[Row], draft: Draft, sampling: Sampling) -> Verdict:
        """One forward over each row's last token and its draft; rejected tokens are rolled back."""
        ...

    def advance(self, rows: Sequence[Row], sampling: Sampling, ahead: bool) -> list[int]:
        """One autoregressive token for each row. `ahead` lets it start on the next ones, which then must be asked for
        by `advance` and for the same rows, less those that left."""
        ...

    def refusal(self, row: int, width: int) -> str:
        """Why a draft of width - 1 tokens could not be rolled back for running row `row`; empty when it could."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these of the running rows, in this order."""
        ...

    def keep(self, at: int, row: Row) -> None:
        """Keeps what the cache holds of the text of running row `at`, for requests that begin alike: all of it at its
        end, and before that what can be kept by pieces."""
        ...

    def drop(self, row: Row) -> None:
        """Forgets a newcomer that has not joined."""
        ...

    def close(self) -> None:
        """Lets go of all rows, and of what was kept."""
        ...

    @property
    def pending(self) -> bool:
        """Whether the next round's forward is under way: that one can draft nothing."""
        ...

    @property
    def nbytes(self) -> int: ...


class LocalVerifier:
    """The target in this process. A row's cache holds its text but for the last token."""

    def __init__(
        self, model: Any, vocabulary: int, most_rows: int | None = None, prefix: PrefixCache | None = None
    ) -> None:
        self._last = max(1, min(_LAST_POSITIONS, _LAST_LOGITS // vocabulary))
        self._caches: Caches = make_caches(model, most_rows)
        self._prefix = prefix or PrefixCache()
        self._shelf = self._prefix.shelf(self._caches)
        self._prefill = Prefill(self._caches, self._shelf)
        self._ahead: mx.array | None = None  # rows × 1: tokens already on their way

    def prefill(self, row: Row, chunk: int) -> int | None:
        found = self._prefill.begin(row, len(row.tokens))
        if found is not None and not row.emitted:
            row.stats.looked_up, row.stats.cached_tokens = True, found
        logits = self._prefill.advance(row, len(row.tokens), chunk, last=self._last)
        if logits is None:
            return None
        token = self._choose(logits[:, -1:], [row], Sampling([row.request.sampling]))
        self._prefill.settle(row, token)
        return int(token.item())

    def join(self, row: Row) -> None:
        assert self._ahead is None, "a newcomer joins between forwards"
        self._prefill.join(row)

    def verify(self, rows: Sequence[Row], draft: Draft, sampling: Sampling) -> Verdict:
        assert self._ahead is None, "a draft continues the text that was read"
        last = mx.array([[row.tokens[-1]] for row in rows], dtype=mx.uint32)
        before = self._caches.lengths
        widths = [d + 1 for d in draft.depths]
        logits = self._caches.forward(mx.concatenate([last, draft.tokens], axis=1), widths)
        starts = [row.emitted for row in rows]
        if sampling.settled:
            best = sampling.choose(logits, starts)
            mx.eval(best, draft.tokens)
            verdict = _longest_match(draft.tokens.tolist(), best.tolist(), draft.depths)
        else:
            assert draft.q is not None
            generators = [row.generator for row in rows]
            u_accept, u_next = uniforms(generators, draft.depths), uniforms(generators, [1] * len(rows))[:, 0]
            p, depths = sampling.distribution(logits, starts), mx.array(draft.depths)
            n, following = accept(p, draft.q, draft.tokens, depths, u_accept, u_next)
            mx.eval(n, following, draft.tokens)
            pairs = zip(draft.tokens.tolist(), n.tolist(), strict=True)
            verdict = Verdict([tokens[:stand] for tokens, stand in pairs], following.tolist())
        kept = zip(before, verdict.accepted, strict=True)
        self._caches.truncate([length + 1 + len(tokens) for length, tokens in kept])
        return verdict

    def advance(self, rows: Sequence[Row], sampling: Sampling, ahead: bool) -> list[int]:
        current = self._ahead
        if current is None:
            current = self._step(mx.array([[row.tokens[-1]] for row in rows], dtype=mx.uint32), rows, sampling)
        self._ahead = self._step(current, rows, sampling, after=1) if ahead else None
        mx.eval(current)
        # No operation on `current` here: it would queue behind the forward that is under way.
        return [token for (token,) in current.tolist()]

    def refusal(self, row: int, width: int) -> str:
        return self._caches.refusal(row, width)

    def select(self, rows: Sequence[int]) -> None:
        self._caches.select(rows)
        if self._ahead is not None:
            self._ahead = self._ahead[mx.array(list(rows))] if rows else None

    def keep(self, at: int, row: Row) -> None:
        if row.finish is None and not self._caches.in_stretches:
            return
        # After the text's end the cache may hold more: tokens that stood beyond it, or one that nobody was sent.
        self._shelf.keep(row.tokens, self._caches, at, min(self._caches.lengths[at], len(row.tokens)))

    def drop(self, row: Row) -> None:
        self._prefill.drop(row)

    def close(self) -> None:
        self._prefill.clear()
        self._caches.clear()
        self._prefix.give_up(self._shelf)
        self._ahead = None

    @property
    def pending(self) -> bool:
        return self._ahead is not None

    @property
    def nbytes(self) -> int:
        return self._caches.nbytes + self._prefill.nbytes

    def _step(self, tokens: mx.array, rows: Sequence[Row], sampling: Sampling, after: int = 0) -> mx.array:
        """Dispatches one forward over `tokens`, rows × 1; returns the tokens it chooses, likewise. `after`: so many
        that precede those are not known yet."""
        chosen = self._choose(self._caches.forward(tokens, [1] * len(rows)), rows, sampling, after)
        mx.async_eval(chosen)
        return chosen

    def _choose(self, logits: mx.array, rows: Sequence[Row], sampling: Sampling, after: int = 0) -> mx.array:
        """One token for each row from `logits`, rows × 1 × vocabulary; returns rows × 1."""
        starts = [row.emitted for row in rows]
        if sampling.settled:
            return sampling.choose(logits, starts, after)
        p = sampling.distribution(logits, starts, after)
        return draw(p, uniforms([row.generator for row in rows], [1] * len(rows)))


def _longest_match(drafted: list[list[int]], best: list[list[int]], depths: list[int]) -> Verdict:
    """Settled rows' verdict: a drafted token stands where it is the target's own choice and all before it stand."""
    accepted, following = [], []
    for tokens, choice, depth in zip(drafted, best, depths, strict=True):
        n = 0
        while n < depth and tokens[n] == choice[n]:
            n += 1
        accepted.append(tokens[:n])
        following.append(choice[n])
    return Verdict(accepted, following)


def logit_gap(model: Any, tokens: Sequence[int], chosen: int, other: int, chunk: int) -> Generator[None, None, float]:
    """The logit of `chosen` less that of `other` after `tokens`, of a forward of its own, a chunk at a time."""
    caches = make_caches(model).fresh()
    try:
        end = max(0, len(tokens) - min(chunk, _GAP_POSITIONS))
        for start in range(0, end, chunk):
            piece = tokens[start : min(start + chunk, end)]
            caches.forward(mx.array([piece], dtype=mx.uint32), [len(piece)])
            mx.eval(caches.arrays())
            yield
        last = caches.forward(mx.array([tokens[end:]], dtype=mx.uint32), [len(tokens) - end])[0, -1]
        last = last.astype(mx.float32)
        return float((last[chosen] - last[other]).item())
    finally:
        caches.clear()
