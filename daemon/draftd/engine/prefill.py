"""Newcomers: rows whose prompts are being taken in, chunk by chunk, before they join the running ones."""

from __future__ import annotations

import mlx.core as mx

from draftd.engine.batch import Row
from draftd.engine.cache import Caches


class Prefill:
    """One model's caches of newcomers: rows whose first `whole` tokens are being taken in."""

    def __init__(self, running: Caches) -> None:
        self._running = running
        self._newcomers: dict[int, Caches] = {}

    def advance(self, row: Row, whole: int, chunk: int, last: int = 0) -> mx.array | None:
        """Takes in up to `chunk` more tokens; the `last` of them in a forward of their own. Once there are none left,
        the logits of the last forward, 1 × width × vocabulary, which cost nothing unless they are read; None before,
        and where there was nothing to take in."""
        caches = self._caches(row)
        start = caches.lengths[0]
        end = min(start + chunk, whole if whole - start <= last else whole - last)
        if start == end:
            return None
        logits = caches.forward(mx.array([row.tokens[start:end]], dtype=mx.uint32), [end - start])
        if end == whole:
            return logits
        mx.eval(caches.arrays())
        return None

    def settle(self, row: Row, *more: mx.array) -> None:
        """Computes what the last forward left to be computed."""
        mx.eval(self._caches(row).arrays(), *more)

    def done(self, row: Row, whole: int) -> bool:
        return self._caches(row).lengths[0] == whole

    def join(self, row: Row) -> None:
        """Makes a ready row the last of the running ones."""
        self._running.join(self._newcomers.pop(id(row)))

    def drop(self, row: Row) -> None:
        """Forgets a newcomer; a row that is none is no error."""
        caches = self._newcomers.pop(id(row), None)
        if caches is not None:
            caches.clear()

    def clear(self) -> None:
        """Forgets all newcomers."""
        for caches in self._newcomers.values():
            caches.clear()
        self._newcomers.clear()

    def _caches(self, row: Row) -> Caches:
        caches = self._newcomers.get(id(row))
        if caches is None:
            caches = self._newcomers[id(row)] = self._running.fresh()
        return caches

    @property
    def nbytes(self) -> int:
        return sum(caches.nbytes for caches in self._newcomers.values())
