"""What a batch's next round promises: its rows' expected tokens by depth, and what such rounds cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftd.core import DepthMode, DrafterKind
from draftd.engine.acceptance import Acceptance, emitted, key_of
from draftd.engine.batch import Row
from draftd.engine.costs import DEEPEST, RoundCosts
from draftd.engine.drafting import Drafter
from draftd.engine.prospect import Candidate, Prospect

_LOOKUP = DrafterKind.PROMPT_LOOKUP
NEAR = 16  # tokens that a draft may lag behind and still catch up within a round


class Outlook:
    """From what was learnt of costs and acceptance, and what the drafters know of the rows. Engine thread only."""

    def __init__(self, costs: RoundCosts, acceptance: Acceptance, deepest: int) -> None:
        """`deepest`: the most tokens that any plan lets a round draft."""
        self._costs, self._acceptance, self._deepest = costs, acceptance, deepest

    def prospect(self, rows: Sequence[Row], drafters: Mapping[DrafterKind, Drafter]) -> Prospect | None:
        """What is expected of the batch; None where no row's depth is to be chosen."""
        if not any(map(automatic, rows)):
            return None
        candidates: list[Candidate] = []
        beside, least, least_steps, weights = 0.0, 0, 0, None
        for at, row in enumerate(rows):
            depth, kind = row.depth, row.drafter
            if kind is None or depth <= 0:
                beside += 1
            elif row.request.plan.depth_mode is DepthMode.FIXED:
                beside += emitted(self._rates(row, kind), odds(row, kind), min(depth, self._deepest))[-1]
                least = max(least, depth)
                if kind is not _LOOKUP:
                    least_steps, weights = max(least_steps, depth), weights or kind
            else:
                c = self._candidate(at, row, min(depth, self._deepest), drafters)
                weights = weights or c.kind
                candidates.append(c)
        if not candidates:
            return None
        context, sampled = mean_held(rows), any_sampled(rows)
        size, deepest = len(rows), min(max(self._deepest, least) + 1, DEEPEST)
        looked_up = self._costs.drafted(_LOOKUP, size, deepest, context, sampled)
        priced = looked_up
        if weights is not None:
            priced = self._costs.drafted(weights, size, deepest, context, sampled)
        return Prospect(candidates, beside, least, least_steps, priced, looked_up)

    def entry_seconds(self, candidates: Sequence[Candidate], drafters: Mapping[DrafterKind, Drafter]) -> float:
        """What it takes until their drafters know the texts of these."""
        total = 0.0
        for c in candidates:
            assert c.kind is not None
            behind = drafters[c.kind].behind(c.row)
            tokens = len(c.row.tokens) if behind is None else behind
            total += tokens * self._costs.prices.taking_in.get(c.kind, self._costs.plain(1) / 64)
        return total

    def _candidate(self, at: int, row: Row, most: int, drafters: Mapping[DrafterKind, Drafter]) -> Candidate:
        plan = row.request.plan
        kind: DrafterKind | None = row.home
        if kind is _LOOKUP:
            kind = next((other for other in plan.alternatives if other is not _LOOKUP), None)
        ready, model, lookup, key = False, [1.0], [1.0], None
        drafter = drafters.get(kind) if kind is not None else None
        if drafter is None or kind is None:
            kind = None
        else:
            behind = drafter.behind(row)
            ready = behind is not None and behind <= NEAR
            key = key_of(kind, row.request)
            model = emitted(self._acceptance.rates(key), odds(row, kind), most + 1)
        if row.home is _LOOKUP or _LOOKUP in plan.alternatives:
            looking = drafters.get(_LOOKUP)
            reach = 0 if looking is None else looking.reach(row, most)
            if reach:
                lookup = emitted(self._rates(row, _LOOKUP), odds(row, _LOOKUP), reach)
        return Candidate(at, row, most, kind, key, ready, model, lookup)

    def _rates(self, row: Row, kind: DrafterKind) -> list[float]:
        return self._acceptance.rates(key_of(kind, row.request))


def odds(row: Row, kind: DrafterKind) -> float:
    """By which the odds of its class are multiplied for this row."""
    found = row.evidence.get(kind)
    return 1.0 if found is None else found.odds


def automatic(row: Row) -> bool:
    """Whether the row's depth is to be chosen."""
    return row.depth > 0 and row.drafter is not None and row.request.plan.depth_mode is DepthMode.AUTOMATIC


def mean_held(rows: Sequence[Row]) -> int:
    """Tokens of context that a row has in the mean: what a round costs depends on the sum of all."""
    return sum(len(row.tokens) for row in rows) // len(rows)


def any_sampled(rows: Sequence[Row]) -> bool:
    return any(not row.request.sampling.greedy for row in rows)
