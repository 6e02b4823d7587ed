"""The positions that attention layers of one window size keep, for a batch of sequences of unequal length.

That is the whole text, or the positions that the next query sees plus some spare: for rolling back a rejected block,
and for writing. When the spare is used up, the oldest positions are dropped and the rest moves to the front of the
arrays. Memory and attention are thus bounded by the window, and a block can always be rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from draftd.engine.cache.groups import Grouping, Groups, GroupSelections, Regrouping, alone, join_groups
from draftd.models.mlx_lm import create_attention_mask

_LEAST_ROOM = 64  # positions between two moves; a quarter of the window if that is more
_APART = 32  # forwards for which a row lies alone after it has rested
_SPARE = 16  # positions kept beyond the window, for rolling back drafts


class GroupRead(NamedTuple):
    """The rows and positions that a forward reads and writes in one group's array."""

    rows: slice | mx.array | None  # rows of the batch, by slot; None: all, in order
    used: int  # slots that have a row
    first: int  # the first position that is read
    end: int  # the position after the last that is read
    written: mx.array | None  # slots × 1 × width × 1: positions to write; None: the last ones


class ForwardReads(NamedTuple):
    groups: list[GroupRead]
    order: mx.array | None  # by row: its place among the rows of all groups; None if the order is the same
    whole: GroupRead | None  # the only group, if it has all rows in order


class AttentionWindow:
    """The place of each sequence in the arrays of all layers with this window, and the ranges that a forward reads and
    writes.

    A query sees `size` positions, itself included; None: all."""

    def __init__(self, size: int | None, call_cost: int, axes: int = 1) -> None:
        """`axes`: axes of a mask between rows and queries: 1 for heads, or 2 for key-value heads and the query heads
        that share each."""
        self.size, self._axes = size, axes
        self._kept = 0 if size is None else size - 1 + _SPARE
        #: The most positions kept while forwards are short.
        self.most = None if size is None else self._kept + max(_LEAST_ROOM, size // 4)
        self.starts: list[int] = []  # by row: the first position that is kept
        self._apart: dict[int, int] = {}  # by row that has rested: forwards for which it still lies alone
        self.groups: Groups = ()  # the groups that layers should have; some may still have older ones
        self.stored: list[int] = []  # by row: positions kept when this forward began
        self.first = self.end = 0  # this forward reads from `first` to before `end`
        self._regrouping = Regrouping(Grouping(call_cost, self.most))
        self._width = 0
        self._reads: list[tuple[Groups, ForwardReads]] = []  # the groups and reads of this forward
        self.selections = GroupSelections()
        self._queries: mx.array | None = None

    def begin(self, lengths: Sequence[int], width: int) -> list[int]:
        """Prepares a forward of `width` tokens after `lengths`. Returns how many positions each sequence must move to
        the front; empty if none must."""
        moves: list[int] = []
        if self.size is None:
            self.stored, self.first = list(lengths), 0
        else:
            moves = self.settle(lengths) if self._short(lengths, width) else []
            self.stored = [length - start for length, start in zip(lengths, self.starts, strict=True)]
            self.first = max(0, min(self.stored) - self.size + 1)
        self.end, self._width = max(self.stored) + width, width
        if self._apart:
            self._apart = {row: forwards - 1 for row, forwards in self._apart.items() if forwards > 1}
        self._reads, self._queries = [], None
        self.groups = self._regrouping.choose(self.groups, self.stored, width, self._apart)
        return moves

    def settle(self, lengths: Sequence[int]) -> list[int]:
        """Drops positions that no later query sees. Returns how many positions each sequence must move to the front."""
        if self.size is None:
            return []
        before = self.starts
        self.starts = [
            start if 0 <= length - start <= self._kept else max(0, length - self._kept)
            for length, start in zip(lengths, before, strict=True)
        ]
        moves = [now - then for now, then in zip(self.starts, before, strict=True)]
        return moves if any(moves) else []

    def too_long(self, lengths: Sequence[int]) -> bool:
        """Whether a sequence keeps more than `most` positions, as it may after a long slice of a prompt."""
        most = self.most
        return most is not None and any(n - start > most for n, start in zip(lengths, self.starts, strict=True))

    def _short(self, lengths: Sequence[int], width: int) -> bool:
        most = self.most or 0
        return any(
            length < start or (length - start + width > most and length - start > self._kept)
            for length, start in zip(lengths, self.starts, strict=True)
        )

    # groups

    def hold(self, lengths: Sequence[int], starts: Sequence[int] | None = None) -> None:
        """Replaces the sequences: `lengths` are the tokens that each has or will have, kept from positions `starts`
        on."""
        self.starts = [0] * len(lengths) if starts is None else list(starts)
        most = max(lengths) if self.most is None or starts is not None else self.most
        positions = [min(most, length - start) for length, start in zip(lengths, self.starts, strict=True)]
        self.groups = self._regrouping.grouping.best(positions)

    def move(self, other: AttentionWindow, row: int, length: int, rests: bool) -> None:
        """Takes over another window's row of `length` tokens, with its array if the row lies alone. `rests`: the row
        will come back and leave again, so it lies alone for some forwards."""
        place = alone(other.groups, row)
        self._apart = {0: _APART} if rests else {}
        if place is None:
            self.hold([length + 1], [other.starts[row]])
        else:
            self.starts, self.groups = [other.starts[row]], (other.groups[place]._replace(rows=(0,)),)

    def restore(self, length: int, first: int = 0) -> None:
        """Sets a single sequence of `length` tokens, kept from position `first` on."""
        self.starts = [first]
        if not self.groups or self.groups[0].capacity < length - first:
            self.groups = self._regrouping.grouping.best([length - first])

    def join(self, joining: AttentionWindow) -> None:
        self.groups = join_groups(self.groups, len(self.starts), joining.groups)
        self._apart |= {len(self.starts) + row: forwards for row, forwards in joining._apart.items()}
        self.starts, self._regrouping.changed = self.starts + joining.starts, True

    def select(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Keeps these rows, whose lengths in tokens are `lengths`."""
        self.starts = [self.starts[i] for i in rows]
        if self._apart:
            self._apart = {new: self._apart[old] for new, old in enumerate(rows) if old in self._apart}
        self.groups, _ = self.selections.select(self.groups, rows)
        self.stored = [length - start for length, start in zip(lengths, self.starts, strict=True)]
        self._regrouping.changed = True
        if self.wasteful(self.groups):
            self.groups = self._regrouping.choose(self.groups, self.stored, 1, self._apart)

    def wasteful(self, groups: Groups) -> bool:
        """Whether the groups' arrays use more memory than their sequences may."""
        return any(self._regrouping.grouping.wasteful(group, self.stored) for group in groups)

    def fits(self, groups: Groups) -> bool:
        """Whether this forward can write to arrays of these groups."""
        return all(max([self.stored[row] for row in group.rows]) + self._width <= group.capacity for group in groups)

    # called by layers during a forward

    def reads(self, groups: Groups) -> ForwardReads:
        for earlier, reads in self._reads:
            if earlier is groups:
                return reads
        reads = self._read(groups)
        self._reads.append((groups, reads))
        return reads

    def _read(self, groups: Groups) -> ForwardReads:
        group_reads = []
        for own, slots, _ in groups:
            stored = [self.stored[row] for row in own]
            first = 0 if self.size is None else max(0, min(stored) - self.size + 1)
            at = None
            if min(stored) < max(stored):
                starts = mx.array([*stored, *[0] * (slots - len(stored))])
                at = starts[:, None, None, None] + mx.arange(self._width)[:, None]
            group_reads.append(GroupRead(_rows(own, len(self.stored)), len(own), first, max(stored) + self._width, at))
        order, rows = [row for group in groups for row in group.rows], list(range(len(self.stored)))
        places = None if order == rows else mx.array(sorted(rows, key=order.__getitem__))
        return ForwardReads(group_reads, places, group_reads[0] if len(group_reads) == 1 and places is None else None)

    def mask(self, width: int, return_array: bool, seen: int | None) -> Any:
        """Returns the mask for this forward's queries in the form that mlx-lm's models expect. `seen`: they see fewer
        positions than the window."""
        size = min((limit for limit in (self.size, seen) if limit), default=None)
        if self._queries is None and min(self.stored) < max(self.stored):
            self._queries = mx.array(self.stored)[:, None, None] + mx.arange(width)[:, None]
        if self._queries is None:
            offset = self.end - width - self.first
            return create_attention_mask(width, offset, return_array, size if size and offset + width > size else None)
        keys = mx.arange(self.first, self.end)
        mask = keys <= self._queries
        mask = mask if size is None else mask & (keys > self._queries - size)
        return mx.expand_dims(mask, list(range(1, 1 + self._axes)))


def _rows(rows: tuple[int, ...], count: int) -> slice | mx.array | None:
    if rows != tuple(range(rows[0], rows[0] + len(rows))):
        return mx.array(rows)
    return None if len(rows) == count else slice(rows[0], rows[0] + len(rows))
