"""The depths that promise the most tokens a second, from expected tokens and prices: arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftd.core import DrafterKind
from draftd.engine.acceptance import Key
from draftd.engine.batch import Row

WORTH = 1.01  # by how much more a second something has to be better, at least, that takes time to come by


@dataclass(slots=True)
class Candidate:
    """A row whose depth is to be chosen; `most` it may draft. `model` and `lookup`: expected tokens by depth, from 0 on
    (1.0), of a drafter with weights, one deeper than it may, and of prompt lookup as far as that has something to
    propose. `ready`: the drafter with weights, `kind`, knows the row's text."""

    at: int
    row: Row
    most: int
    kind: DrafterKind | None
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
