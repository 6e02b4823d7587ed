"""What a batch's next round promises: its rows' expected tokens by depth, and what such rounds cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftd.core import PROMPT_LOOKUP, DepthMode, DrafterName, FinishReason, Origin, WorkloadClass
from draftd.engine.depth.acceptance_rates import Acceptance, Key, emitted, key_of
from draftd.engine.depth.costs import DEEPEST, RoundCosts
from draftd.engine.drafters.base import Drafter
from draftd.engine.sequence import DecodeSequence

WORTH = 1.01  # by how much more a second something has to be better, at least, that takes time to come by


@dataclass(slots=True)
class Candidate:
    """A row whose depth is to be chosen; `most` it may draft. `model` and `lookup`: expected tokens by depth, from 0 on
    (1.0), of a drafter with weights, one deeper than it may, and of prompt lookup as far as that has something to
    propose. `ready`: the drafter with weights, `kind`, knows the row's text."""

    at: int
    row: DecodeSequence
    most: int
    kind: DrafterName | None
    key: Key | None
    ready: bool
    model: list[float]
    lookup: list[float]


@dataclass(slots=True)
class Prospect:
    """A batch before its round. `beside`: expected tokens of the rows that are no candidates, `least`: how deep these
    draft, `least_steps` of it with weights; `priced` and `looked_up`: seconds of a round by depth, 0 the plain one's,
    where a drafter with weights drafts, and where prompt lookup does."""

    candidates: list[Candidate]
    beside: float
    least: int
    least_steps: int
    priced: list[float]
    looked_up: list[float]

    def seconds(self, depth: int, lookup: int = 0) -> float:
        """Of a round with `depth` steps of a draft model, verified at the deeper of the two."""
        steps = max(depth, self.least_steps)
        width = max(steps, lookup, self.least)
        alone = self.looked_up[width]
        if not steps:
            return alone
        return alone + (self.priced[width] - alone) * steps / width


@dataclass(slots=True)
class Best:
    """Depths for drafters with weights and for prompt lookup; expected tokens and seconds of such a round."""

    depth: int
    lookup: int
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def best(prospect: Prospect, unready: bool = False) -> Best:
    """The depths with the most expected tokens a second. `unready`: as if all rows could draft."""
    models = [c for c in prospect.candidates if c.kind is not None and (unready or c.ready)]
    lookups = [c for c in prospect.candidates if len(c.lookup) > 1]
    if lookups:
        return _best_of_both(prospect, models, lookups)
    others = prospect.beside + len(prospect.candidates) - len(models)
    found = Best(0, 0, others + len(models), prospect.seconds(0))
    for depth in range(1, max((c.most for c in models), default=0) + 1):
        tokens = others
        for c in models:
            tokens += c.model[depth if depth < c.most else c.most]
        seconds = prospect.seconds(depth)
        if tokens * found.seconds > found.tokens * seconds:
            found = Best(depth, 0, tokens, seconds)
    return found


def _best_of_both(prospect: Prospect, models: Sequence[Candidate], lookups: Sequence[Candidate]) -> Best:
    found: Best | None = None
    asked = {id(c) for c in models}
    for depth in range(max((c.most for c in models), default=0) + 1):
        for lookup in range(max(len(c.lookup) for c in lookups)):
            tokens = prospect.beside
            for c in prospect.candidates:
                model = c.model[min(depth, c.most)] if id(c) in asked else 1.0
                tokens += max(model, c.lookup[min(lookup, len(c.lookup) - 1)])
            seconds = prospect.seconds(depth, lookup)
            if found is None or tokens * found.seconds > found.tokens * seconds:
                found = Best(depth, lookup, tokens, seconds)
    assert found is not None
    return found


_GUESS, _WEIGHT = 128.0, 4.0  # tokens, and for how many answers the guess stands


_MEMORY = 64.0  # answers


class AnswerLengths:
    """Mean lengths by kind of text. Engine thread only."""

    def __init__(self) -> None:
        self._sums: dict[WorkloadClass, tuple[float, float]] = {}  # answers, and their tokens

    def ended(self, row: DecodeSequence) -> None:
        """One is over. It tells only where nobody broke it off."""
        if row.request.origin is not Origin.CLIENT or row.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        answers, tokens = self._seen(row)
        keep = 1 - 1 / _MEMORY
        self._sums[row.request.workload] = (answers * keep + 1, tokens * keep + row.emitted)

    def left(self, row: DecodeSequence) -> float:
        """Tokens that it is expected to write yet: as many as its kind has in the mean, however many it has, since
        lengths scatter as widely as that; never more than it may."""
        answers, tokens = self._seen(row)
        return min(float(row.remaining), tokens / answers)

    def _seen(self, row: DecodeSequence) -> tuple[float, float]:
        return self._sums.get(row.request.workload, (_WEIGHT, _WEIGHT * _GUESS))


_LOOKUP = PROMPT_LOOKUP


NEAR = 16  # tokens that a draft may lag behind and still catch up within a round


class Outlook:
    """From what was learnt of costs and acceptance, and what the drafters know of the rows. Engine thread only."""

    def __init__(self, costs: RoundCosts, acceptance: Acceptance, deepest: int) -> None:
        """`deepest`: the most tokens that any plan lets a round draft."""
        self._costs, self._acceptance, self._deepest = costs, acceptance, deepest

    def prospect(self, rows: Sequence[DecodeSequence], drafters: Mapping[DrafterName, Drafter]) -> Prospect | None:
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
                if kind != _LOOKUP:
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

    def entry_seconds(self, candidates: Sequence[Candidate], drafters: Mapping[DrafterName, Drafter]) -> float:
        """What it takes until their drafters know the texts of these."""
        total = 0.0
        for c in candidates:
            assert c.kind is not None
            behind = drafters[c.kind].behind(c.row)
            tokens = len(c.row.tokens) if behind is None else behind
            total += tokens * self._costs.prices.taking_in.get(c.kind, self._costs.plain(1) / 64)
        return total

    def _candidate(self, at: int, row: DecodeSequence, most: int, drafters: Mapping[DrafterName, Drafter]) -> Candidate:
        plan = row.request.plan
        kind: DrafterName | None = row.home
        if kind == _LOOKUP:
            kind = next((other for other in plan.alternatives if other != _LOOKUP), None)
        ready, model, lookup, key = False, [1.0], [1.0], None
        drafter = drafters.get(kind) if kind is not None else None
        if drafter is None or kind is None:
            kind = None
        else:
            behind = drafter.behind(row)
            ready = behind is not None and behind <= NEAR
            key = key_of(kind, row.request)
            model = emitted(self._acceptance.rates(key), odds(row, kind), most + 1)
        if row.home == _LOOKUP or _LOOKUP in plan.alternatives:
            looking = drafters.get(_LOOKUP)
            reach = 0 if looking is None else looking.reach(row, most)
            if reach:
                lookup = emitted(self._rates(row, _LOOKUP), odds(row, _LOOKUP), reach)
        return Candidate(at, row, most, kind, key, ready, model, lookup)

    def _rates(self, row: DecodeSequence, kind: DrafterName) -> list[float]:
        return self._acceptance.rates(key_of(kind, row.request))


def odds(row: DecodeSequence, kind: DrafterName) -> float:
    """By which the odds of its class are multiplied for this row."""
    found = row.evidence.get(kind)
    return 1.0 if found is None else found.odds


def automatic(row: DecodeSequence) -> bool:
    """Whether the row's depth is to be chosen."""
    return row.depth > 0 and row.drafter is not None and row.request.plan.depth_mode is DepthMode.AUTOMATIC


def mean_held(rows: Sequence[DecodeSequence]) -> int:
    """Tokens of context that a row has in the mean: what a round costs depends on the sum of all."""
    return sum(len(row.tokens) for row in rows) // len(rows)


def any_sampled(rows: Sequence[DecodeSequence]) -> bool:
    return any(not row.request.sampling.greedy for row in rows)
