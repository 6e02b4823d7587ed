"""Newcomers: rows whose prompts are being taken in, chunk by chunk, before they join the running ones."""

from __future__ import annotations

import mlx.core as mx

from draftd.engine.batch import Row
from draftd.engine.cache import Caches


class Prefill:
    """One model's caches of newcomers. A row is ready when all of its text but the last token is in its cache."""

    def __init__(self, running: Caches) -> None:
        self._running = running
        self._newcomers: dict[int, Caches] = {}

    def advance(self, row: Row, chunk: int) -> bool:
        """Takes in up to `chunk` more tokens; True once the row is ready."""
        caches = self._newcomers.get(id(row))
        if caches is None:
            caches = self._newcomers[id(row)] = self._running.fresh()
        start, whole = caches.lengths[0], len(row.tokens) - 1
        end = min(start + chunk, whole)
        if start < end:
            caches.forward(mx.array([row.tokens[start:end]], dtype=mx.uint32), [end - start])
            mx.eval(caches.arrays())
        return end == whole

    def join(self, row: Row) -> None:
        """Makes a ready row the last of the running ones."""
        self._running.join(self._newcomers.pop(id(row)))

    def drop(self, row: Row) -> None:
        """Forgets a newcomer; a row that is none is no error."""
        self._newcomers.pop(id(row), None)

    @property
    def nbytes(self) -> int:
        return sum(caches.nbytes for caches in self._newcomers.values())
