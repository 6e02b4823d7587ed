"""Which rows of a batch share an array, and how many positions it has: rows about as long as each other lie together.

One array for all rows would be as wide as the longest of them, and attention would read all of it. One for each would
cost a call of attention for each. And what is held stays in proportion to the tokens, however unlike the rows are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

CALL = 320  # positions that attention reads in the time that a call of its own takes, measured
_MOST = 32  # rows in one group
_GRAIN = 8  # arrays have a multiple of so many positions
_NEAR = 8  # positions before an array is used up when a wider one is made, for a few layers at a time
_SPARE, _ALLOWED = 48, 64  # positions beyond a quarter more than the tokens: of a new array, and of one that is kept


class Group(NamedTuple):
    """`rows` of the batch, by slot. There may be more `slots`, of rows that have left."""

    rows: tuple[int, ...]
    slots: int
    capacity: int  # positions in each slot


Groups = tuple[Group, ...]


def room(tokens: int, spare: int = _ALLOWED) -> int:
    """Positions that may be held for a row of so many tokens."""
    return tokens + tokens // 4 + spare


class Grouping:
    """Decides. `most`: positions that an array has use for, whatever the text; `call_cost`: positions that could be
    read in the time of one more call."""

    def __init__(self, call_cost: int, most: int | None = None) -> None:
        self._call, self._most = call_cost, most

    def _capacity(self, rows: int, longest: int, allowed: int) -> int:
        """Positions of an array for so many rows, which may take `allowed` together; 0 where they may not lie
        together."""
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
        """Whether its array has room for a row of so many tokens, and for some forwards more."""
        if self._most is not None and group.capacity >= self._most:  # more is for one long forward alone
            return longest <= group.capacity and (group.capacity == self._most or longest > self._most)
        return longest + _NEAR <= group.capacity

    def wasteful(self, group: Group, ends: Sequence[int]) -> bool:
        """Whether it takes more memory than its rows may. `ends`: tokens by row of the batch."""
        return group.slots * group.capacity > sum(self._room(ends[row], _ALLOWED) for row in group.rows)

    def admissible(self, group: Group, ends: Sequence[int]) -> bool:
        """Whether its rows fit, in no more memory than they may take."""
        return self.fits(group, max(ends[row] for row in group.rows)) and not self.wasteful(group, ends)

    def cost(self, groups: Sequence[Group], ends: Sequence[int]) -> int:
        """Positions that attention reads in one forward; each call counts as `call_cost` positions."""
        return sum(len(group.rows) * max(ends[row] for row in group.rows) + self._call for group in groups)

    def best(self, ends: Sequence[int], apart: Collection[int] = ()) -> Groups:
        """The admissible groups of least cost for rows of so many tokens, shortest rows first: what is contiguous
        once they are sorted. Those `apart` have one each."""
        order = sorted((row for row in range(len(ends)) if row not in apart), key=ends.__getitem__)
        least, cuts, capacities = [0], [0], [0]
        for stop in range(1, len(order) + 1):
            cheapest, longest, allowed = (0, stop, 0), ends[order[stop - 1]], 0
            for start in range(stop - 1, max(stop - _MOST, 0) - 1, -1):
                allowed += self._room(ends[order[start]], _SPARE)
                capacity = self._capacity(stop - start, longest, allowed)
                if not capacity:
                    break  # with shorter rows still less is allowed
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
    """Which of them has this row and no other; None where none has."""
    return next((place for place, group in enumerate(groups) if group.rows == (row,)), None)


def join_groups(groups: Groups, rows: int, joining: Groups) -> Groups:
    """Appends the groups of a joining batch, whose rows come after `rows` others."""
    moved = (group._replace(rows=tuple(rows + row for row in group.rows)) for group in joining)
    return (*groups, *moved)


def keep_rows(groups: Groups, rows: Sequence[int]) -> list[tuple[Group | None, list[tuple[int, int]]]]:
    """For each group, what it is once only these rows are left, in this order, None where nothing is; and which slots
    are to be copied: (to, from). The last slots move into gaps."""
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
