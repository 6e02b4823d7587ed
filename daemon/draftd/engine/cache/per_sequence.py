"""mlx-lm's own caches, one list per row: works for any architecture, with one forward per row.

If a cache cannot be trimmed, the row returns to its state before the forward, and the accepted tokens are fed again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

from draftd.engine.cache.alone_mode import mode_of
from draftd.engine.cache.base import CachedPrefix, Caches, Positions, RollbackFailed, flat
from draftd.engine.cache.model_layers import logits_at, states_of
from draftd.models.mlx_lm import make_prompt_cache


@dataclass(frozen=True, slots=True)
class OwnSnapshot:
    """A `CacheSnapshot` of mlx-lm's own caches."""

    caches: list[Any]
    length: int

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    @property
    def least(self) -> int:
        return 0 if all(cache.is_trimmable() for cache in self.caches) else self.length

    def cut(self, length: int) -> OwnSnapshot | None:
        surplus = self.length - length
        if length < self.least:
            return None
        caches = copy.deepcopy(self.caches)  # arrays are shared until written to
        if surplus and not all(cache.trim(surplus) == surplus for cache in caches):
            return None
        return OwnSnapshot(caches, length)


def _forward(model: Any, tokens: mx.array, caches: list[Any], at: Positions | None) -> mx.array:
    """Runs the model on one row, 1 × width; in the mode of alone.py in a forward for each token."""
    mode = mode_of(model)
    if mode is None or not mode.active:
        return logits_at(model, tokens, caches, at)
    each = [logits_at(model, tokens[:, i : i + 1], caches, None) for i in range(tokens.shape[1])]
    return mx.concatenate(each if at is None else [each[i] for i in at[0]], axis=1)


def _rows_of(rows: Sequence[mx.array | None]) -> mx.array | None:
    """Returns the rows as one array, with zeros for those that are None; None if all are."""
    blank = next((mx.zeros_like(row) for row in rows if row is not None), None)
    return None if blank is None else mx.concatenate([blank if row is None else row for row in rows])


class PerSequenceCaches:
    """`Caches` for any model."""

    segmented = False
    position_bytes = 0
    window_bytes = 0

    def __init__(self, model: Any, forwards: int = 1) -> None:
        """`forwards`: the most that one rollback may undo."""
        self._model, self._forwards = model, forwards
        self._rows: list[list[Any]] = []
        self._before: list[list[OwnSnapshot]] = []  # by row: snapshots from before each forward since the last rollback
        self._settled = False  # the last rollback is complete
        self.lengths: list[int] = []
        self.states: mx.array | None = None
        # A rotating cache can be trimmed until its window is full.
        self._trims = all(c.is_trimmable() and not hasattr(c, "max_size") for c in flat(make_prompt_cache(model)))

    def forward(self, tokens: mx.array, widths: Sequence[int], *, at: Positions | None = None) -> mx.array:
        width = tokens.shape[1]
        if self._settled:
            self._before, self._settled = [[] for _ in self._rows], False
        if not self._trims:
            now = [OwnSnapshot(copy.deepcopy(row), n) for row, n in zip(self._rows, self.lengths, strict=True)]
            self._before = [[*b, snapshot][-self._forwards :] for b, snapshot in zip(self._before, now, strict=True)]
        out, states = list[mx.array | None](), list[mx.array | None]()
        for i, (row, real) in enumerate(zip(self._rows, widths, strict=True)):
            own, logits, state = tokens[i : i + 1, :real], None, None
            padding = [(0, 0), (0, width - real), (0, 0)]
            if real:
                read = None if at is None else [[min(n, real - 1) for n in at[i]]]
                logits, state = states_of(self._model, partial(_forward, self._model, own, row, read))
                if at is None and real < width:
                    logits = mx.pad(logits, padding)
                if state is not None and real < width:
                    state = mx.pad(state, padding)
            out.append(logits)
            states.append(state)
        self.lengths = [n + w for n, w in zip(self.lengths, widths, strict=True)]
        self.states = _rows_of(states)
        logits = _rows_of(out)
        assert logits is not None, "a forward takes at least one token"
        return logits

    def rollback(self, lengths: Sequence[int]) -> list[int]:
        reached = list(lengths)
        for i, (row, new, old) in enumerate(zip(self._rows, lengths, self.lengths, strict=True)):
            surplus, self._settled = old - new, True
            if not surplus:
                continue
            if self._trims:
                if any(cache.trim(surplus) != surplus for cache in row):
                    raise RollbackFailed(f"row {i}: its caches could not drop {surplus} tokens")
                continue
            snapshots = [before for before in self._before[i] if before.length <= new]
            if not snapshots:
                raise RollbackFailed(f"row {i}: caches of {old} tokens cannot be trimmed to {new}")
            self._rows[i], reached[i] = snapshots[-1].caches, snapshots[-1].length
        self.lengths = reached
        return list(reached)

    def fresh(self, *lengths: int) -> PerSequenceCaches:
        new, rows = PerSequenceCaches(self._model, self._forwards), max(1, len(lengths))
        new._rows = [make_prompt_cache(self._model) for _ in range(rows)]
        new._before, new.lengths = [[] for _ in range(rows)], [0] * rows
        return new

    def split(self, rows: Sequence[int], *, rest: bool = False) -> PerSequenceCaches:
        new = PerSequenceCaches(self._model, self._forwards)
        new._rows, new._before = [self._rows[i] for i in rows], [self._before[i] for i in rows]
        new.lengths = [self.lengths[i] for i in rows]
        self.select([i for i in range(len(self._rows)) if i not in rows])
        return new

    def join(self, joining: Caches) -> None:
        assert isinstance(joining, PerSequenceCaches)
        self._rows = self._rows + joining._rows
        self._before = self._before + [[] for _ in joining._rows]
        self.lengths = self.lengths + joining.lengths

    def select(self, rows: Sequence[int]) -> None:
        self._rows, self._before = [self._rows[i] for i in rows], [self._before[i] for i in rows]
        self.lengths = [self.lengths[i] for i in rows]

    def clear(self) -> None:
        self._model, self._rows, self._before, self.lengths, self.states = None, [], [], [], None

    def extract(self, row: int, start: int, end: int) -> CachedPrefix | None:
        assert start == 0
        whole = OwnSnapshot(self._rows[row], self.lengths[row]).cut(end)
        if whole is not None:
            mx.eval([cache.state for cache in whole.caches if not cache.empty()])
        return whole

    def snapshot(self, states: Sequence[Any], length: int) -> OwnSnapshot:
        """Returns a snapshot built from `states`, one for each cache of the same model."""
        caches = make_prompt_cache(self._model)
        return OwnSnapshot([type(cache).from_state(state) for cache, state in zip(caches, states, strict=True)], length)

    def restore(self, kept: Sequence[CachedPrefix]) -> None:
        (whole,) = kept
        assert self.lengths == [0]
        assert isinstance(whole, OwnSnapshot)
        self._rows, self.lengths = [whole.caches], [whole.length]

    def pretend(self, lengths: Sequence[int]) -> bool:
        return False

    def arrays(self) -> list[Any]:
        return [cache.state for row in self._rows for cache in row if not cache.empty()]

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for row in self._rows for cache in row)
