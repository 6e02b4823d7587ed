"""Which rows of a batch share an array, and how many positions the array has. Rows of similar length share one.

One array for all rows would be as wide as the longest, and attention would read all of it. One array per row would cost
an attention call per row. The groups also keep memory in proportion to the tokens, however unequal the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

CALL = 320  # positions that attention reads in the time of one more call, as measured
_MOST = 32  # rows in one group
_GRAIN = 8  # positions: array sizes are multiples of this
_NEAR = 8  # positions: a wider array is made when fewer than this are free, for a few layers at a time
_SPARE, _ALLOWED = 48, 64  # spare positions beyond 1.25 × tokens: in a new array, and at most in one that is kept


class Group(NamedTuple):
    """Rows of the batch that share an array, by slot. Some of the array's `slots` may be free."""

    rows: tuple[int, ...]
    slots: int
    capacity: int  # positions in each slot


Groups = tuple[Group, ...]


def room(tokens: int, spare: int = _ALLOWED) -> int:
    """Returns the positions that may be allocated for a row of `tokens` tokens."""
    return tokens + tokens // 4 + spare


class Grouping:
    """Chooses groups. `most`: the most positions that an array can use; `call_cost`: positions that attention could
    read in the time of one more call."""

    def __init__(self, call_cost: int, most: int | None = None) -> None:
        self._call, self._most = call_cost, most

    def _capacity(self, rows: int, longest: int, allowed: int) -> int:
        """Returns the positions of an array for `rows` rows that may use `allowed` positions together, or 0 if they may
        not share an array."""
        most = self._most
        capacity = min(self._room(longest, _SPARE), allowed // rows)
        if most is None or capacity < most:
            capacity -= capacity % _GRAIN
        need = longest + _NEAR + 1
        if most is not None:
            need = max(longest, min(need, most))
        if rows == 1:
            return max(capacity, longest)
        return capacity if capacity >= need else 0

    def fits(self, group: Group, longest: int) -> bool:
        """Whether the group's array has room for a row of `longest` tokens and a few more forwards."""
        if self._most is not None and group.capacity >= self._most:  # a larger array is for one long forward only
            return longest <= group.capacity and (group.capacity == self._most or longest > self._most)
        return longest + _NEAR <= group.capacity

    def wasteful(self, group: Group, ends: Sequence[int]) -> bool:
        """Whether the group's array uses more memory than its rows may. `ends`: tokens by row of the batch."""
        return group.slots * group.capacity > sum(self._room(ends[row], _ALLOWED) for row in group.rows)

    def admissible(self, group: Group, ends: Sequence[int]) -> bool:
        """Whether the group's rows fit and its array is not wasteful."""
        return self.fits(group, max(ends[row] for row in group.rows)) and not self.wasteful(group, ends)

    def cost(self, groups: Sequence[Group], ends: Sequence[int]) -> int:
        """Returns the positions that attention reads in one forward, counting each call as `call_cost` positions."""
        return sum(len(group.rows) * max(ends[row] for row in group.rows) + self._call for group in groups)

    def best(self, ends: Sequence[int], apart: Collection[int] = ()) -> Groups:
        """Returns the cheapest admissible groups for rows of these lengths, shortest rows first. Each group is a
        contiguous range of the rows sorted by length; each row in `apart` has its own group."""
        order = sorted((row for row in range(len(ends)) if row not in apart), key=ends.__getitem__)
        least, cuts, capacities = [0], [0], [0]
        for stop in range(1, len(order) + 1):
            cheapest, longest, allowed = (0, stop, 0), ends[order[stop - 1]], 0
            for start in range(stop - 1, max(stop - _MOST, 0) - 1, -1):
                allowed += self._room(ends[order[start]], _SPARE)
                capacity = self._capacity(stop - start, longest, allowed)
                if not capacity:
                    break  # shorter rows would be allowed even less
                total = least[start] + (stop - start) * longest + self._call
                if cheapest[1] == stop or total < cheapest[0]:
                    cheapest = (total, start, capacity)
            for column, value in zip((least, cuts, capacities), cheapest, strict=True):
                column.append(value)
        groups: list[Group] = []
        stop = len(order)
        while stop:
            rows = tuple(sorted(order[cuts[stop] : stop]))
            groups.append(Group(rows, len(rows), capacities[stop]))
            stop = cuts[stop]
        each = (Group((row,), 1, self._capacity(1, ends[row], self._room(ends[row], _SPARE))) for row in apart)
        return (*groups[::-1], *each)

    def _room(self, tokens: int, spare: int) -> int:
        positions = room(tokens, spare)
        return positions if self._most is None else max(tokens, min(positions, self._most))


def alone(groups: Groups, row: int) -> int | None:
    """Returns the place of the group that has only this row, or None."""
    return next((place for place, group in enumerate(groups) if group.rows == (row,)), None)


def join_groups(groups: Groups, rows: int, joining: Groups) -> Groups:
    """Returns the groups with those of a joining batch appended; its rows come after the first `rows` rows."""
    moved = (group._replace(rows=tuple(rows + row for row in group.rows)) for group in joining)
    return (*groups, *moved)


def keep_rows(groups: Groups, rows: Sequence[int]) -> list[tuple[Group | None, list[tuple[int, int]]]]:
    """Returns, for each group, what remains of it when only `rows` are kept in this order (None if nothing), and which
    slots to copy as (to, from). The last slots move into gaps."""
    place = {old: new for new, old in enumerate(rows)}
    changes: list[tuple[Group | None, list[tuple[int, int]]]] = []
    for group in groups:
        new_rows = [place.get(row, -1) for row in group.rows]
        count = sum(row >= 0 for row in new_rows)
        last = [slot for slot in range(count, len(new_rows)) if new_rows[slot] >= 0]
        moves: list[tuple[int, int]] = []
        for gap in (slot for slot in range(count) if new_rows[slot] < 0):
            moves.append((gap, last.pop()))
            new_rows[gap] = new_rows[moves[-1][1]]
        changes.append((group._replace(rows=tuple(new_rows[:count])) if count else None, moves))
    return changes


#: By group, the slots to copy as (to, from); None for a group that is gone.
Moves = list[list[tuple[int, int]] | None]


class GroupSelections:
    """The groups that remain when only some rows are kept, computed once for all layers with the same groups."""

    def __init__(self) -> None:
        self._rows: Sequence[int] = ()  # of the last selection, whose results by groups follow
        self._selections: dict[Groups, tuple[Groups, Moves | None]] = {}

    def select(self, groups: Groups, rows: Sequence[int]) -> tuple[Groups, Moves | None]:
        """Returns the remaining groups, and the slots to copy, or None if all arrays stay as they are."""
        if rows is not self._rows:
            self._rows, self._selections = rows, {}
        selection = self._selections.get(groups)
        if selection is None:
            changes = keep_rows(groups, rows)
            moves = [None if group is None else moves for group, moves in changes]
            same = all(move == [] for move in moves)
            selection = tuple(group for group, _ in changes if group is not None), None if same else moves
            self._selections[groups] = selection
        return selection


class Regrouping:
    """Decides when rows change groups: if an array is too small, or too large for its remaining rows, or if other
    groups would by now have saved twice the cost of copying rows."""

    def __init__(self, grouping: Grouping) -> None:
        self.grouping = grouping
        self.changed = False  # whether rows have joined or left since the last choice
        self._gain = self._lost = 0  # positions that better groups save in a forward; would have saved so far
        self._copied = 0  # positions that better groups would have to copy

    def choose(self, groups: Groups, stored: Sequence[int], width: int, apart: Collection[int]) -> Groups:
        """Returns the groups for a forward of `width` tokens, the same ones unless a change is due. `stored`: positions
        by row; `apart`: rows that lie alone."""
        fits = self.grouping.fits
        same = bool(groups) and not self.changed
        if same and all(fits(group, max([stored[row] for row in group.rows]) + width) for group in groups):
            self._lost += self._gain
            if not self._gain or self._lost < 2 * self._copied:
                return groups
        ends = [n + width for n in stored]
        best, by_rows = self.grouping.best(ends, apart), {frozenset(group.rows): group for group in groups}
        admissible = bool(groups) and all(self.grouping.admissible(group, ends) for group in groups)
        gain = max(0, self.grouping.cost(groups, ends) - self.grouping.cost(best, ends))
        self.changed, self._gain = False, gain
        self._copied = sum(stored[row] for group in best if frozenset(group.rows) not in by_rows for row in group.rows)
        if admissible and (not gain or self._lost + gain < 2 * self._copied):
            return groups
        self._gain = self._lost = 0
        of_these = (by_rows.get(frozenset(group.rows), group) for group in best)
        return tuple(
            old if self.grouping.admissible(old, ends) else new for old, new in zip(of_these, best, strict=True)
        )
