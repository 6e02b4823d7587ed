"""Verifiers: the target's verdict on a draft.

The seam is narrow on purpose, token ids in and verdicts out, so that a verifier on another machine can stand behind it.
`LocalVerifier` owns the target and its caches. Without a draft it decodes autoregressively, and pipelined as mlx-lm
does it: the next forward is dispatched before this one's tokens are read."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.base import Caches
from draftd.engine.cache.layouts import make_caches
from draftd.engine.cache.prefix_store import PrefixCache, Shelf
from draftd.engine.drafters.base import Draft, DraftSequence
from draftd.engine.sampling.acceptance import accept, draw
from draftd.engine.sampling.transforms import Sampling, uniforms
from draftd.engine.sequence import DecodeSequence
from draftd.engine.targets.base import Verdict

_PIECE = 128  # tokens: what is taken in is kept in pieces of at least so many, so that none takes long


class Prefill:
    """One model's caches of newcomers: rows whose first `whole` tokens are being taken in."""

    def __init__(self, running: Caches, shelf: Shelf) -> None:
        """What `shelf` has of a newcomer's text is not taken in, and what is taken in is kept there."""
        self._running, self._shelf = running, shelf
        self._newcomers: dict[int, Caches] = {}
        self._lengths: dict[int, int] = {}  # that their caches will have
        self._kept: dict[int, int] = {}  # tokens of theirs that were found or kept

    def begin(self, row: DraftSequence, whole: int) -> int | None:
        """How many tokens of a newcomer's text were found; None where it has begun before, or none were looked for."""
        if id(row) in self._newcomers:
            return None
        caches = self._newcomers[id(row)] = self._running.fresh(whole)
        self._lengths[id(row)] = whole
        self._running.expect(list(self._lengths.values()))
        if not (row.shares and self._shelf.open):
            return None
        kept = self._shelf.find(row.tokens, len(row.tokens) - 1)  # the last one's logits are asked for
        if kept:
            caches.restore(kept)
        self._kept[id(row)] = caches.lengths[0]
        return caches.lengths[0]

    def advance(self, row: DraftSequence, whole: int, chunk: int, last: int = 0) -> mx.array | None:
        """Takes in up to `chunk` more tokens; where that is more than `last`, the last so many in a forward of their
        own. Once there are none left, the logits of the last forward, 1 × width × vocabulary, which cost nothing unless
        they are read; None before, and where there was nothing to take in."""
        caches = self._caches(row, whole)
        start = caches.lengths[0]
        end = min(start + chunk, whole if whole - start <= last or chunk <= last else whole - last)
        if start == end:
            return None
        logits = caches.forward(mx.array([row.tokens[start:end]], dtype=mx.uint32), [end - start])
        if end == whole:
            return logits
        mx.eval(caches.arrays())
        if row.shares and caches.in_stretches and end - self._kept.get(id(row), 0) >= _PIECE:
            self._keep(row, caches)
        return None

    def settle(self, row: DraftSequence, *more: mx.array) -> None:
        """Computes what the last forward left to be computed."""
        mx.eval(self._newcomers[id(row)].arrays(), *more)

    def done(self, row: DraftSequence, whole: int) -> bool:
        return self._newcomers[id(row)].lengths[0] == whole

    def join(self, row: DraftSequence) -> None:
        """Makes a ready row the last of the running ones."""
        caches = self._newcomers.pop(id(row))
        self._keep(row, caches)
        self._running.join(caches)
        self._gone(row)

    def drop(self, row: DraftSequence, keep: bool = True) -> None:
        """Forgets a newcomer; a row that is none is no error. What was taken in of it may serve whoever asks again."""
        caches = self._newcomers.pop(id(row), None)
        if caches is not None:
            if keep:
                self._keep(row, caches)
            caches.clear()
            self._gone(row)

    def clear(self) -> None:
        """Forgets all newcomers."""
        for caches in self._newcomers.values():
            caches.clear()
        self._newcomers.clear()
        self._lengths.clear()
        self._kept.clear()
        self._running.expect([])

    def _caches(self, row: DraftSequence, whole: int) -> Caches:
        self.begin(row, whole)
        return self._newcomers[id(row)]

    def _keep(self, row: DraftSequence, caches: Caches) -> None:
        if row.shares:
            length = min(caches.lengths[0], len(row.tokens))
            self._shelf.keep(row.tokens, caches, 0, length)
            self._kept[id(row)] = length

    def _gone(self, row: DraftSequence) -> None:
        self._lengths.pop(id(row), None)
        self._kept.pop(id(row), None)
        self._running.expect(list(self._lengths.values()))

    @property
    def nbytes(self) -> int:
        return sum(caches.nbytes for caches in self._newcomers.values())


# The forward that ends a prompt computes the logits of all its positions, and one is read. A forward less is worth that
# up to about this many positions, and this many logits (32 MB of halves).
_LAST_POSITIONS, _LAST_LOGITS = 256, 1 << 24


_GAP_POSITIONS = 16  # likewise, where nobody waits for it


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

    def prefill(self, row: DecodeSequence, chunk: int) -> int | None:
        found = self._prefill.begin(row, len(row.tokens))
        if found is not None and not row.emitted:
            row.stats.looked_up, row.stats.cached_tokens = True, found
        logits = self._prefill.advance(row, len(row.tokens), chunk, last=self._last)
        if logits is None:
            return None
        token = self._choose(logits[:, -1:], [row], Sampling([row.request.sampling]))
        self._prefill.settle(row, token)
        return int(token.item())

    def join(self, row: DecodeSequence) -> None:
        assert self._ahead is None, "a newcomer joins between forwards"
        self._prefill.join(row)

    def verify(self, rows: Sequence[DecodeSequence], draft: Draft, sampling: Sampling) -> Verdict:
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

    def advance(self, rows: Sequence[DecodeSequence], sampling: Sampling, ahead: bool) -> list[int]:
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

    def keep(self, at: int, row: DecodeSequence) -> None:
        if row.finish is None and not self._caches.in_stretches:
            return
        # After the text's end the cache may hold more: tokens that stood beyond it, or one that nobody was sent.
        self._shelf.keep(row.tokens, self._caches, at, min(self._caches.lengths[at], len(row.tokens)))

    def drop(self, row: DecodeSequence) -> None:
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

    def _step(self, tokens: mx.array, rows: Sequence[DecodeSequence], sampling: Sampling, after: int = 0) -> mx.array:
        """Dispatches one forward over `tokens`, rows × 1; returns the tokens it chooses, likewise. `after`: so many
        that precede those are not known yet."""
        chosen = self._choose(self._caches.forward(tokens, [1] * len(rows)), rows, sampling, after)
        mx.async_eval(chosen)
        return chosen

    def _choose(self, logits: mx.array, rows: Sequence[DecodeSequence], sampling: Sampling, after: int = 0) -> mx.array:
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
