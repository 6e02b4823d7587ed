"""What decode steps did, counted: of one sequence's step, and summed over steps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import reduce
from itertools import zip_longest
from typing import Any, NamedTuple

from draftd.strategies import Strategy


class StepCounts(NamedTuple):
    """What one decode step did for one row. A tuple: one is made for each row of each step, and a frozen dataclass
    costs five times as much. Where another daemon drafts for what it decodes, that is counted there: here it is as many
    steps without a draft as there are tokens.

    The target accepted `accepted` of `drafted` tokens, wherever the text ends; fewer than all is a rollback. `emitted`
    counts those and the bonus (or correction), as far as they lie within the text: the rest of them was cut.
    `draft_seconds` and `verify_seconds` are the whole step's wall time, shared by its rows. `break_even` is how many
    accepted tokens would have made a drafted step just as fast as autoregressive decoding, None where that is not
    known. `parked`: nothing was
    drafted, although a drafter was to be had, because it did not pay; `capped`: the plan did not allow for more.
    `drafter`: who drafted, or would have; `strategy`: whose target decoded it.
    """

    drafted: int
    accepted: int
    emitted: int
    draft_forwards: int
    draft_seconds: float
    verify_seconds: float
    break_even: float | None = None
    parked: bool = False
    capped: bool = False
    drafter: str | None = None
    strategy: Strategy = Strategy.LOCAL


@dataclass(slots=True)
class DraftCounts:
    """Sums over steps. `drafted = accepted + rolled_back`; `emitted = accepted + steps - cut`, `cut` the tokens of a
    last step that lie beyond the end of the text. A step without a draft has one token, so that only drafts are cut.

    Forward passes are those a request took part in and whose result was used. Of prefill only the one that ends the
    prompt is among them: it gives the first token, and is a step without a draft. Seconds are those of the steps it
    took part in; with other rows in them, they are counted for each.
    """

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
    unpriced_drafts: int = 0  # drafts that have none, because they are not known
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
        """Each count by `operation` with the other's of that name, such as their sum or their difference."""
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
        """accepted / drafted; None where nothing was drafted. Falls as depth grows at constant quality."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Accepted tokens per draft, the bonus counted: 1 + accepted / drafts (vLLM's mean acceptance length)."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def draft_cost(self) -> float | None:
        """Cost of a drafted step in autoregressive ones, measured, in the mean; None where it is not known of any."""
        priced = self.drafts - self.unpriced_drafts
        return 1 + self.break_even_tokens / priced if priced else None

    @property
    def gained(self) -> int:
        """Tokens that the drafted steps emitted. What was cut is no gain."""
        return self.drafts + self.accepted - self.cut

    @property
    def speedup(self) -> float | None:
        """Tokens per second of the drafted steps over those of autoregressive decoding, measured; None where their cost
        is not known."""
        cost = self.draft_cost
        return None if cost is None else self.gained / (self.drafts * cost)


def total(counts: Iterable[DraftCounts]) -> DraftCounts:
    return reduce(lambda sum_, item: sum_.combine(item, operator.add), counts, DraftCounts())
