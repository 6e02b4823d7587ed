"""How many tokens to draft next, for each row and with which drafter: expected tokens over measured cost.

A row that drafts k tokens emits 1 + Σ_{j≤k} Π_{i≤j} a_i in expectation, a_i the probability that its i-th token stands
where all before it do (acceptance.py). The round takes what its deepest row makes it take (costs.py). So one depth is
chosen for the batch, the one with the most expected tokens of all rows a second, 0 included (prospect.py); a row drafts
less only where its plan or its end says so. Rows whose depth is fixed take part as they are.

What is not known is tried, within an allowance (trying.py). A row that nobody would draft for need not be in a draft
model's caches: it is taken in when it becomes worth that, in slices between rounds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from draftd.core import DrafterKind, Origin
from draftd.engine.depth.acceptance_rates import Acceptance, RowEvidence, key_of
from draftd.engine.depth.costs import DEEPEST, RoundCosts
from draftd.engine.depth.estimate import (
    NEAR,
    WORTH,
    AnswerLengths,
    Best,
    Candidate,
    Outlook,
    Prospect,
    any_sampled,
    automatic,
    best,
    mean_held,
)
from draftd.engine.depth.explorer import Exploration, Trials, Trying
from draftd.engine.depth.saved import Learnt
from draftd.engine.drafters.base import Drafter
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import Choice, Round, Trial

_log = logging.getLogger(__name__)

_LOOKUP = DrafterKind.PROMPT_LOOKUP
_HORIZON = 128  # tokens over which taking a row in has to pay
_PRICED_LAG = 2  # tokens that a draft takes in at the first step anyway
_FADE_ROUNDS, _FADE = 16, 0.85  # a parked row's own evidence


class DepthControl:
    """Engine thread only."""

    def __init__(
        self,
        costs: RoundCosts,
        deepest: int,
        *,
        acceptance: Acceptance | None = None,
        exploration: Exploration | None = None,
        trials: Trials | None = None,
    ) -> None:
        """`deepest`: the most tokens that any plan lets a round draft."""
        self.costs = costs
        deepest = min(max(deepest, 1), DEEPEST - 1)
        self.acceptance = acceptance or Acceptance(deepest + 1)  # one more: would more pay than a plan allows?
        self._outlook = Outlook(costs, self.acceptance, deepest)
        self._trying = Trying(costs, self.acceptance, self._outlook, trials or Trials())
        self._plain_rounds = exploration or Exploration()
        self._lengths = AnswerLengths()
        self._entering: list[
            DecodeSequence
        ] = []  # rows worth drafting for, that their drafter does not know well enough
        self._upheavals, self._rounds = costs.upheavals, 0

    # before a round

    def choose(self, rows: Sequence[DecodeSequence], drafters: Mapping[DrafterKind, Drafter], pending: bool) -> Choice:
        """Who drafts how much next. `pending`: the next round's forward is under way, so that it drafts nothing; then
        the choice is whether the one after it may be started ahead as well."""
        if pending and self._plain_rounds.plain(rows, True):
            return Choice.plain(rows, self._plain_rounds.ahead, measuring=True)
        wanted = self._wanted(rows, drafters)
        if pending:
            parked = [automatic(row) for row in rows]
            return Choice.plain(rows, wanted.ahead, parked=parked)
        if wanted.drafts and wanted.trial is None and self._plain_rounds.plain(rows, False, wanted.uncertain):
            return Choice.plain(rows, self._plain_rounds.ahead, measuring=True)
        return wanted

    def wants(
        self, row: DecodeSequence, rows: Sequence[DecodeSequence], drafters: Mapping[DrafterKind, Drafter]
    ) -> bool:
        """Whether a newcomer is worth taking into its drafter's caches before it joins `rows`."""
        if row.wanted is None:  # asked again for each slice of it
            row.wanted = not automatic(row) or row.drafter is _LOOKUP or self._wants(row, rows, drafters)
        return row.wanted

    def _wants(
        self, row: DecodeSequence, rows: Sequence[DecodeSequence], drafters: Mapping[DrafterKind, Drafter]
    ) -> bool:
        prospect = self._outlook.prospect([*rows, row], drafters)
        newcomer = None if prospect is None else next((c for c in prospect.candidates if c.row is row), None)
        if prospect is None or newcomer is None or newcomer.kind is None:
            return False
        without = best(prospect)
        newcomer.ready = True
        found = best(prospect)
        if found.depth > 0:
            return self._pays(without, found, [newcomer], drafters, len(rows) + 1)
        return self._trying.wants(prospect, found, newcomer, [*rows, row], drafters)

    def _wanted(self, rows: Sequence[DecodeSequence], drafters: Mapping[DrafterKind, Drafter]) -> Choice:
        self._entering = []
        self._trying.begin()
        prospect = self._outlook.prospect(rows, drafters)
        if prospect is None:
            return Choice.fixed(rows)
        found = best(prospect)
        waiting = [c for c in prospect.candidates if c.kind is not None and not c.ready]
        if waiting:
            hoped = best(prospect, unready=True)
            if hoped.depth and self._pays(found, hoped, waiting, drafters, len(rows)):
                self._entering = [c.row for c in waiting]
        trial = self._trying.choose(prospect, found, rows, drafters)
        self._entering = self._trying.entering or self._entering
        return self._chosen(rows, prospect, found, trial)

    def _chosen(self, rows: Sequence[DecodeSequence], prospect: Prospect, found: Best, trial: Trial | None) -> Choice:
        choice = Choice.fixed(rows)
        choice.parked, choice.capped = [False] * len(rows), [False] * len(rows)
        depth = trial.depth if trial is not None else found.depth
        for c in prospect.candidates:
            kind, drafted, parked = None, 0, False
            tried = trial is None or c.row in trial.rows
            if c.kind is not None and c.ready and depth and tried:
                kind, drafted = c.kind, min(depth, c.most)
            looked = min(found.lookup, len(c.lookup) - 1)
            if looked and c.lookup[looked] > (c.model[drafted] if kind is not None else 1.0):
                kind, drafted = _LOOKUP, looked
            if kind is None:
                parked = c.kind is not None or len(c.lookup) > 1
            choice.depths[c.at], choice.drafters[c.at], choice.parked[c.at] = drafted, kind, parked
        choice.trial = trial
        choice.ahead = not choice.drafts and all(automatic(row) or row.drafter is None for row in rows)
        if choice.drafts and trial is None:
            self._note_caps(prospect, found, choice)
            choice.uncertain = self._uncertain(prospect, found, rows)
        return choice

    def _uncertain(self, prospect: Prospect, found: Best, rows: Sequence[DecodeSequence]) -> bool:
        """Whether drafting would not pay if its price were what it may be."""
        width = max(found.depth, found.lookup)
        kind = next((c.kind for c in prospect.candidates if c.kind is not None), None) if found.depth else _LOOKUP
        if prospect.least or not width or kind is None:
            return False
        sampled = any_sampled(rows)
        doubt = self.costs.doubt(kind, len(rows), width, sampled)
        return found.rate * prospect.seconds(0) < len(rows) * math.exp(2 * doubt)

    def _note_caps(self, prospect: Prospect, found: Best, choice: Choice) -> None:
        """Whose plan's bound was lower than what would pay."""
        depth, bound, more = found.depth, list[Candidate](), 0.0
        for c in prospect.candidates:
            if choice.drafters[c.at] is c.kind and c.kind is not None and choice.depths[c.at] == c.row.most:
                bound.append(c)
                more += c.model[c.most + 1] - c.model[c.most] if len(c.model) > c.most + 1 else 0.0
        if not bound:
            return
        width = max(depth, prospect.least)
        further = prospect.seconds(min(width + 1, len(prospect.priced) - 1)) - prospect.seconds(width)
        for c in bound:
            capped = c.most < width or more > further * found.rate
            choice.capped[c.at] = capped
            if capped and c.row.told_cap != c.row.most:
                c.row.told_cap = c.row.most
                why = c.row.lowered or c.row.request.plan.reason
                _log.debug("request %s: more than %d drafted tokens would pay (%s)", c.row.request.id, c.row.most, why)

    # who must be known to a drafter

    @property
    def entering(self) -> list[DecodeSequence]:
        """Rows that are worth taking into their drafter's caches now."""
        return self._entering

    def take_in(self, drafters: Mapping[DrafterKind, Drafter], chunk: int) -> None:
        """A slice of that, of about the time of a round."""
        kind = self._entering[0].home
        if kind is None or kind not in drafters:
            return
        round_seconds, token = self.costs.plain(1), self.costs.prices.taking_in.get(kind)
        if token:
            chunk = min(chunk, max(NEAR, int(round_seconds / token)))
        drafters[kind].follow([other for other in self._entering if other.home is kind], chunk)

    def _pays(
        self, now: Best, then: Best, entering: Sequence[Candidate], drafters: Mapping[DrafterKind, Drafter], size: int
    ) -> bool:
        """Whether taking these in is worth its time."""
        if then.rate < now.rate * WORTH:
            return False
        tokens = size * max(min(_HORIZON, self._lengths.left(c.row)) for c in entering)
        return tokens / now.rate - tokens / then.rate > self._outlook.entry_seconds(entering, drafters)

    # after a round

    def learn(
        self,
        rows: Sequence[DecodeSequence],
        choice: Choice,
        done: Round,
        seconds: float,
        *,
        timed: bool,
        began: bool,
        pipelined: bool,
    ) -> float:
        """A round is over: tokens that it would have had to accept to be as fast as a plain one, 0 where nobody
        drafted; both prices know of the machine's speed in this round by then. `seconds`: from the last one's end to
        its own; not `timed`: something else took time between, and it is no price. `began`: it was under way at the
        last one's end; `pipelined`: the next one is at its own."""
        size = len(rows)
        drafting = choice.drafts or choice.measuring
        counted = seconds if timed else 0.0
        measured = self._plain_rounds.told(counted, drafting, pipelined)
        context, sampled = mean_held(rows), any_sampled(rows)
        width = max(result.drafted for result in done.rows)
        priced = _priced(choice, done, width)
        if timed:
            if priced is not None:
                self.costs.learn(priced, size, width, seconds, context, sampled)
            elif not width and measured and began:
                self.costs.learn(None, size, 0, seconds, context, sampled)
        for row, result, kind in zip(rows, done.rows, choice.drafters, strict=True):
            if result.drafted and kind is not None and row.request.origin is Origin.CLIENT:
                evidence = row.evidence.get(kind)
                if evidence is None:
                    evidence = row.evidence[kind] = RowEvidence()
                self.acceptance.learn(key_of(kind, row.request), evidence, result.drafted, len(result.accepted))
        if width:
            self.acceptance.settle()
        self._trying.passed(choice.trial, done, counted, self.costs.plain(size, context, sampled))
        if self.costs.upheavals != self._upheavals:
            self._upheavals = self.costs.upheavals
            self._trying.renew()
        self._rounds += 1
        if not drafting and self._rounds % _FADE_ROUNDS == 0:
            for row in rows:
                for evidence in row.evidence.values():
                    evidence.fade(_FADE)
        if not width:
            return 0.0
        if priced is not None:
            seconds = self.costs.without_stall(priced, size, width, seconds, context, sampled)
        return self.costs.break_even(size, seconds, context, sampled)

    def ended(self, row: DecodeSequence) -> None:
        """A request is over."""
        self._lengths.ended(row)

    def learnt(self) -> Learnt:
        """To be kept."""
        return Learnt.of(self.costs, self.acceptance)

    def renewed(self, kind: DrafterKind, rows: Sequence[DecodeSequence]) -> None:
        """Other weights draft under this name: nothing that was learnt about them holds."""
        self.acceptance.forget(kind)
        self.costs.forget(kind)
        self._trying.renew()
        self._trying.drop()
        for row in rows:
            row.evidence.pop(kind, None)


def _priced(choice: Choice, done: Round, width: int) -> DrafterKind | None:
    """Whose price a round tells that drafted `width` tokens at the most: that of one drafter, which had not lagged
    behind. None for any other round."""
    kinds = {kind for kind, depth in zip(choice.drafters, choice.depths, strict=True) if kind and depth}
    steps = max(result.draft_forwards for result in done.rows)
    told = width and len(kinds) == 1 and not done.drafter_errors and done.lag <= _PRICED_LAG and steps in (0, width)
    return next(iter(kinds)) if told else None
