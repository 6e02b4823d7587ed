"""Counts of decode steps: of one sequence's step, and sums over steps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import reduce
from itertools import zip_longest
from typing import Any, NamedTuple

from draftd.strategies import Strategy


class StepCounts(NamedTuple):
    """Counts of one decode step for one row. The target accepted `accepted` of `drafted` tokens; fewer than all is a
    rollback. A step that the remote drafted by itself has `drafted` 0, and each token that it emitted counts as a step.

    A tuple: one is made for each row of each step, and a frozen dataclass costs five times as much."""

    drafted: int
    accepted: int  # even those beyond the end of the text
    emitted: int  # the accepted tokens and the bonus (or correction), within the text
    draft_forwards: int
    draft_seconds: float  # wall time of the whole step's drafts, shared by its rows
    verify_seconds: float  # likewise, of its verification
    #: Accepted tokens that make the step as fast as autoregressive decoding; None: unknown.
    break_even: float | None = None
    parked: bool = False  # nothing was drafted, because no available drafter pays
    capped: bool = False  # the plan's limit is below the best depth
    drafter: str | None = None  # the one that drafted, or would have
    strategy: Strategy = Strategy.LOCAL  # whose target decoded the step


@dataclass(slots=True)
class DraftCounts:
    """Sums over steps. `drafted = accepted + rolled_back`; `emitted = accepted + steps - cut`, with `cut` the tokens
    beyond the end of the text; only drafts can be cut. Forwards are those whose result the request used; of prefill
    only the last, which gives the first token and counts as a step without a draft. Seconds are of whole steps, counted
    for each row in them."""

    steps: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    cut: int = 0
    rollbacks: int = 0
    rolled_back: int = 0
    draft_forwards: int = 0
    target_forwards: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    break_even_tokens: float = 0.0
    unpriced_drafts: int = 0  # drafts whose price is unknown
    parked_steps: int = 0
    capped_steps: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)

    def add(self, r: StepCounts) -> None:
        self.steps += 1 if r.drafted else r.emitted
        self.target_forwards += 1
        self.emitted += r.emitted
        self.draft_forwards += r.draft_forwards
        self.draft_seconds += r.draft_seconds
        self.verify_seconds += r.verify_seconds
        self.parked_steps += r.parked
        self.capped_steps += r.capped
        drafted, accepted = r.drafted, r.accepted
        if not drafted:
            return
        self.drafts += 1
        self.drafted += drafted
        self.accepted += accepted
        self.cut += accepted + 1 - r.emitted
        self.rolled_back += drafted - accepted
        self.rollbacks += accepted < drafted
        if r.break_even is None:
            self.unpriced_drafts += 1
        else:
            self.break_even_tokens += r.break_even
        grow = drafted - len(self.drafted_per_position)
        if grow > 0:
            self.drafted_per_position += [0] * grow
            self.accepted_per_position += [0] * grow
        for i in range(drafted):
            self.drafted_per_position[i] += 1
        for i in range(accepted):
            self.accepted_per_position[i] += 1

    def combine(self, other: DraftCounts, operation: Callable[[Any, Any], Any]) -> DraftCounts:
        """Combines each count with the other's by `operation`, such as a sum or difference."""
        values: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            a, b = getattr(self, name), getattr(other, name)
            if isinstance(a, list):
                values[name] = [operation(x, y) for x, y in zip_longest(a, b, fillvalue=0)]
            else:
                values[name] = operation(a, b)
        return DraftCounts(**values)

    @property
    def acceptance(self) -> float | None:
        """accepted / drafted; None if nothing was drafted. Falls as depth grows at constant quality."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Accepted tokens per draft, including the bonus: 1 + accepted / drafts (vLLM's mean acceptance length)."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def draft_cost(self) -> float | None:
        """The mean time of a drafted step, divided by that of an autoregressive step; None if no drafted step's is
        known."""
        priced = self.drafts - self.unpriced_drafts
        return 1 + self.break_even_tokens / priced if priced else None

    @property
    def gained(self) -> int:
        """Tokens that the drafted steps emitted, without cut ones."""
        return self.drafts + self.accepted - self.cut

    @property
    def speedup(self) -> float | None:
        """Measured tokens per second of the drafted steps over autoregressive decoding; None if their cost is
        unknown."""
        cost = self.draft_cost
        return None if cost is None else self.gained / (self.drafts * cost)


def total(counts: Iterable[DraftCounts]) -> DraftCounts:
    return reduce(lambda sum_, item: sum_.combine(item, operator.add), counts, DraftCounts())
