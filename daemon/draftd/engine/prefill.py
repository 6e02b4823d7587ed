"""Newcomers: rows whose prompts are being taken in, chunk by chunk, before they join the running ones."""

from __future__ import annotations

import mlx.core as mx

from draftd.engine.batch import Row
from draftd.engine.cache import Caches
from draftd.engine.shelves import Shelf

_PIECE = 128  # tokens: what is taken in is kept in pieces of at least so many, so that none takes long


class Prefill:
    """One model's caches of newcomers: rows whose first `whole` tokens are being taken in."""

    def __init__(self, running: Caches, shelf: Shelf) -> None:
        """What `shelf` has of a newcomer's text is not taken in, and what is taken in is kept there."""
        self._running, self._shelf = running, shelf
        self._newcomers: dict[int, Caches] = {}
        self._lengths: dict[int, int] = {}  # that their caches will have
        self._kept: dict[int, int] = {}  # tokens of theirs that were found or kept

    def begin(self, row: Row, whole: int) -> int | None:
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

    def advance(self, row: Row, whole: int, chunk: int, last: int = 0) -> mx.array | None:
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

    def settle(self, row: Row, *more: mx.array) -> None:
        """Computes what the last forward left to be computed."""
        mx.eval(self._newcomers[id(row)].arrays(), *more)

    def done(self, row: Row, whole: int) -> bool:
        return self._newcomers[id(row)].lengths[0] == whole

    def join(self, row: Row) -> None:
        """Makes a ready row the last of the running ones."""
        caches = self._newcomers.pop(id(row))
        self._keep(row, caches)
        self._running.join(caches)
        self._gone(row)

    def drop(self, row: Row, keep: bool = True) -> None:
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

    def _caches(self, row: Row, whole: int) -> Caches:
        self.begin(row, whole)
        return self._newcomers[id(row)]

    def _keep(self, row: Row, caches: Caches) -> None:
        if row.shares:
            length = min(caches.lengths[0], len(row.tokens))
            self._shelf.keep(row.tokens, caches, 0, length)
            self._kept[id(row)] = length

    def _gone(self, row: Row) -> None:
        self._lengths.pop(id(row), None)
        self._kept.pop(id(row), None)
        self._running.expect(list(self._lengths.values()))

    @property
    def nbytes(self) -> int:
        return sum(caches.nbytes for caches in self._newcomers.values())
