"""Layers that keep a state instead of keys and values: recurrences and short convolutions.

A state cannot drop tokens. But it is small, and a model replaces its arrays instead of writing to them, so keeping the
state from before a forward costs only its memory. If the layer has noted how it computed the forward (gated_delta.py),
the state after a row's accepted tokens is computed from that. Otherwise the row goes back to where the forward began,
and its accepted tokens are fed again before the next block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from draftd.engine.cache.base import LayerCache, LayerOwner, LayerSlice, RollbackFailed
from draftd.engine.cache.gated_delta import DeltaBlock
from draftd.models.mlx_lm import ArraysCache

_Arrays = list[mx.array | None]  # rows × the architecture's state; None before the first token

_WIDEST = 32  # tokens of a forward that may be noted: more than any draft has


class _Before(NamedTuple):
    """The rows before a forward: their lengths in tokens, and the state at these. `block`: what the layer noted of the
    forward, if these are still its rows."""

    lengths: list[int]
    arrays: _Arrays
    block: DeltaBlock | None = None


class RecurrentState(ArraysCache):  # some models check the type
    """One layer's state for a batch of sequences. It stands in for mlx-lm's own cache of arrays."""

    def __init__(self, owner: LayerOwner, size: int) -> None:
        super().__init__(size)
        self.cache: _Arrays = [None] * size
        self._owner = owner
        self._before: list[_Before] = []  # one for each forward since the last rollback, the latest last
        self._settled = False  # whether there was a rollback since the last forward
        self.takes_notes = False  # whether a rollback may need the next forward's notes

    def begin(self, widths: Sequence[int], width: int) -> None:
        """Prepares a forward of `width` tokens, of which each row takes `widths[row]`."""
        rows = len(widths)
        self.cache = [a if a is None or a.shape[0] == rows else a[:rows] for a in self.cache]  # the last rows have left
        if self._settled:
            self._before, self._settled = [], False
        self._before = [*self._before, _Before(list(self._owner.lengths), list(self.cache))][-self._owner.forwards :]
        self.lengths = None if all(w == width for w in widths) else mx.array(widths)
        self.takes_notes = 1 < width <= _WIDEST

    def note_block(self, block: DeltaBlock | None) -> None:
        """Takes what the layer noted of this forward."""
        self._before[-1] = self._before[-1]._replace(block=block)

    def rollback(self, lengths: list[int], wanted: list[int]) -> list[int]:
        self._settled = True
        reached = list(wanted)
        back: dict[int, list[int]] = {}  # by forward: the rows that go back to before it
        within: dict[int, list[int]] = {}  # by forward: the rows that keep some of its tokens
        for row, (now, to) in enumerate(zip(lengths, wanted, strict=True)):
            if to < now:
                earlier = [k for k, before in enumerate(self._before) if before.lengths[row] <= to]
                if not earlier:
                    raise RollbackFailed(f"row {row}: a state of {now} tokens cannot be restored to {to} tokens")
                before = self._before[earlier[-1]]
                if before.block is not None and before.lengths[row] < to:
                    within.setdefault(earlier[-1], []).append(row)
                else:
                    reached[row] = before.lengths[row]
                    back.setdefault(earlier[-1], []).append(row)
        for forward, rows in back.items():
            self._replace(rows, self._before[forward].arrays, rows)
        for forward, rows in within.items():
            started, _, block = self._before[forward]
            assert block is not None
            self._replace(rows, block.states_after(rows, [wanted[row] - started[row] for row in rows]))
        return reached

    def _replace(self, rows: Sequence[int], arrays: Sequence[mx.array | None], source: Sequence[int] = ()) -> None:
        """Replaces the state of these rows by rows `source` of `arrays`; by all rows of `arrays` in their order if
        there is no `source`."""
        source = source or range(len(rows))
        self.cache = [_replace_rows(now, then, rows, source) for now, then in zip(self.cache, arrays, strict=True)]

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
            _Before([before.lengths[row] for row in rows], [a if a is None else a[chosen] for a in before.arrays])
            for before in self._before
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


def _replace_rows(
    now: mx.array | None, then: mx.array | None, rows: Sequence[int], source: Sequence[int]
) -> mx.array | None:
    """Returns `now` with these rows replaced by rows `source` of `then`."""
    if now is None:
        return None
    count = now.shape[0]
    then = mx.zeros_like(now) if then is None else then
    if len(rows) == count:
        return then
    for row, other in zip(rows, source, strict=True):  # in place if nothing else refers to `now`
        now = mx.slice_update(now, then[other : other + 1], mx.array([row]), axes=[0])
    return now
