"""What a round is to do: how many tokens each row drafts, and with whom."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from draftd.core import DrafterKind
from draftd.engine.batch import Row


@dataclass(frozen=True, slots=True)
class Trial:
    """A draft that is tried although it is not expected to pay: what it tells of, the rows and the depth it is for.

    It has paid where a depth from `paid_from` on is best after it; `expected` tokens were to stand. `pace`: seconds
    that a token takes as it is; `entry`: those that were spent on making the drafter know the rows.
    """

    keys: tuple[Hashable, ...]
    kind: DrafterKind
    rows: tuple[Row, ...]
    depth: int
    paid_from: int
    expected: float
    pace: float
    entry: float


@dataclass(slots=True)
class Choice:
    """For each row: tokens to draft, with whom, whether it drafts nothing because that does not pay (`parked`), and
    whether its plan's bound is lower than what would pay (`capped`).

    `ahead`: the round after this one will draft nothing either, so that it may be started ahead. `measuring`: nothing
    is drafted in order to see what that costs. `uncertain`: whether drafting pays hangs on prices that are not known
    well.
    """

    depths: list[int]
    drafters: list[DrafterKind | None]
    parked: list[bool]
    capped: list[bool]
    ahead: bool = False
    measuring: bool = False
    uncertain: bool = False
    trial: Trial | None = None

    @classmethod
    def plain(cls, rows: Sequence[Row], ahead: bool, *, parked: Sequence[bool] = (), measuring: bool = False) -> Choice:
        """Nobody drafts."""
        none = [False] * len(rows)
        return cls([0] * len(rows), [None] * len(rows), list(parked) or none, none, ahead, measuring)

    @classmethod
    def fixed(cls, rows: Sequence[Row]) -> Choice:
        """Each row drafts as many as its plan says."""
        none = [False] * len(rows)
        drafters = [row.drafter for row in rows]
        return cls([row.depth for row in rows], drafters, none, none, all(kind is None for kind in drafters))

    @property
    def drafts(self) -> bool:
        return any(self.depths)
