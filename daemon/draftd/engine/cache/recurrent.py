"""Layers that keep a state instead of keys and values: recurrences and short convolutions.

A state cannot drop tokens. But it is small, and a model replaces its arrays instead of writing to them, so keeping the
state from before a forward costs only its memory. A row goes back to where a forward began, and its accepted tokens are
fed again before the next block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from draftd.engine.cache.base import LayerCache, LayerOwner, LayerSlice, RollbackFailed
from draftd.models.mlx_lm import ArraysCache

_Arrays = list[mx.array | None]  # rows × the architecture's state; None before the first token


class _Before(NamedTuple):
    """The rows before a forward: their lengths in tokens, and the state at these."""

    lengths: list[int]
    arrays: _Arrays


class RecurrentState(ArraysCache):  # some models check the type
    """One layer's state for a batch of sequences. It stands in for mlx-lm's own cache of arrays."""

    def __init__(self, owner: LayerOwner, size: int) -> None:
        super().__init__(size)
        self.cache: _Arrays = [None] * size
        self._owner = owner
        self._before: list[_Before] = []  # one for each forward since the last rollback, the latest last
        self._settled = False  # whether there was a rollback since the last forward

    def begin(self, widths: Sequence[int], width: int) -> None:
        """Prepares a forward of `width` tokens, of which each row takes `widths[row]`."""
        rows = len(widths)
        self.cache = [a if a is None or a.shape[0] == rows else a[:rows] for a in self.cache]  # the last rows have left
        if self._settled:
            self._before, self._settled = [], False
        self._before = [*self._before, _Before(list(self._owner.lengths), list(self.cache))][-self._owner.forwards :]
        self.lengths = None if all(w == width for w in widths) else mx.array(widths)

    def rollback(self, lengths: list[int], wanted: list[int]) -> list[int]:
        self._settled = True
        reached = list(wanted)
        back: dict[int, list[int]] = {}  # by forward: the rows that go back to before it
        for row, (now, to) in enumerate(zip(lengths, wanted, strict=True)):
            if to < now:
                earlier = [k for k, before in enumerate(self._before) if before.lengths[row] <= to]
                if not earlier:
                    raise RollbackFailed(f"row {row}: a state of {now} tokens cannot be restored to {to} tokens")
                reached[row] = self._before[earlier[-1]].lengths[row]
                back.setdefault(earlier[-1], []).append(row)
        for forward, rows in back.items():
            arrays = self._before[forward].arrays
            self.cache = [_replace_rows(now, then, rows) for now, then in zip(self.cache, arrays, strict=True)]
        return reached

    def join(self, place: int, other: LayerCache) -> None:
        assert isinstance(other, RecurrentState)
        if not place:
            self.cache, self._before, self._settled = list(other.cache), [], False
            return
        lengths = other._owner.lengths
        self.cache = _beside(self.cache, place, other.cache, len(lengths))
        if self._settled:
            self._before, self._settled = [], False
        self._before = [
            _Before([*before.lengths[:place], *lengths], _beside(before.arrays, place, other.cache, len(lengths)))
            for before in self._before
        ]

    def select(self, rows: Sequence[int]) -> None:
        if not rows:
            self.clear()
        if list(rows) == list(range(len(rows))):
            return  # the last rows have left; the next forward cuts them off
        chosen = mx.array(rows)
        self.cache = [a if a is None else a[chosen] for a in self.cache]
        self._before = [
            _Before([n[row] for row in rows], [a if a is None else a[chosen] for a in arrays])
            for n, arrays in self._before
        ]

    def take(self, other: LayerCache, rows: Sequence[int]) -> None:
        assert isinstance(other, RecurrentState)
        self.cache = [a if a is None else a[mx.array(rows)] for a in other.cache]

    def move(self, other: LayerCache, row: int) -> bool:
        assert isinstance(other, RecurrentState)
        self.cache = [a if a is None else a[row : row + 1] for a in other.cache]
        return True

    def put(self, other: LayerCache, rows: Sequence[int]) -> None:
        assert isinstance(other, RecurrentState)
        count = len(self._owner.lengths)
        order = [count + rows.index(row) if row in rows else row for row in range(count)]
        both = _beside(self.cache, count, other.cache, len(rows))
        self.cache = [a if a is None else a[mx.array(order)] for a in both]

    def restore(self, arrays: Sequence[Sequence[mx.array]]) -> None:
        (self.cache,) = map(list, arrays)

    def clear(self) -> None:
        self.cache, self._before = [None] * len(self.cache), []

    def arrays(self) -> list[mx.array]:
        return [a for a in self.cache if a is not None]

    def extract(self, row: int, length: int) -> LayerSlice | None:
        states = [*self._before, _Before(self._owner.lengths, self.cache)]
        arrays = next((state.arrays for state in reversed(states) if state.lengths[row] == length), None)
        if arrays is None or any(a is None for a in arrays):
            return None
        return LayerSlice([mx.contiguous(a[row : row + 1]) for a in arrays if a is not None], least=length)


def _beside(mine: _Arrays, place: int, theirs: _Arrays, count: int) -> _Arrays:
    """Returns the first `place` rows of `mine` followed by `theirs`."""
    out: _Arrays = []
    for own, other in zip(mine, theirs, strict=True):
        like = own if own is not None else other
        if like is None:
            out.append(None)
            continue
        blank = mx.zeros((max(place, count), *like.shape[1:]), like.dtype)
        out.append(
            mx.concatenate([(blank if own is None else own)[:place], (blank if other is None else other)[:count]])
        )
    return out


def _replace_rows(now: mx.array | None, then: mx.array | None, rows: Sequence[int]) -> mx.array | None:
    """Returns `now` with these rows replaced by those of `then`."""
    if now is None:
        return None
    count = now.shape[0]
    then = mx.zeros_like(now) if then is None else then
    if len(rows) == count:
        return then
    for row in rows:  # in place if nothing else refers to `now`: only these rows are copied
        now = mx.slice_update(now, then[row : row + 1], mx.array([row]), axes=[0])
    return now
