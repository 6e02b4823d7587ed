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

from draftd.core import PROMPT_LOOKUP, DrafterName, Origin
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
from draftd.engine.depth.explorer import Exploration, Trial, Trials, Trying
from draftd.engine.depth.saved import Learnt
from draftd.engine.drafters.base import Drafter
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DraftPlan, DraftState, Round, SequenceDraft, StepMode

_log = logging.getLogger(__name__)

_LOOKUP = PROMPT_LOOKUP
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
        self._started = self._measuring = False  # of the step that was planned last
        self._trial: Trial | None = None  # likewise
        self._upheavals, self._rounds = costs.upheavals, 0

    # before a round

    def plan(
        self,
        sequences: Sequence[DecodeSequence],
        drafters: Mapping[DrafterName, Drafter],
        *,
        started: bool,
        may_run_ahead: bool,
    ) -> DraftPlan:
        """Who drafts how much in the next step. `started`: its forward is under way already, so that it drafts nothing.
        `may_run_ahead`: whether the forward of the step after it may be started early, where that drafts nothing."""
        self._started, self._trial, self._measuring = started, None, False
        ahead = may_run_ahead and any(one.remaining > 1 for one in sequences)  # or what follows would be in vain
        if started and self._plain_rounds.plain(sequences, True):
            return self._measure(sequences, ahead)
        drafts, trial, uncertain = self._wanted(sequences, drafters)
        speculative = any(one.depth for one in drafts)
        if started:
            parked, none = SequenceDraft(state=DraftState.PARKED), SequenceDraft()
            drafts = [parked if automatic(one) else none for one in sequences]
        elif speculative:
            if trial is None and self._plain_rounds.plain(sequences, False, uncertain):
                return self._measure(sequences, ahead)
            self._trial = trial
            return DraftPlan(StepMode.SPECULATIVE, drafts)
        ahead = ahead and not speculative and all(automatic(one) or one.drafter is None for one in sequences)
        return DraftPlan(StepMode.PLAIN_AHEAD if ahead else StepMode.PLAIN, drafts)

    def _measure(self, sequences: Sequence[DecodeSequence], ahead: bool) -> DraftPlan:
        """Nothing is drafted in order to see what that costs."""
        self._measuring = True
        mode = StepMode.PLAIN_AHEAD if ahead and self._plain_rounds.ahead else StepMode.PLAIN
        return DraftPlan(mode, [SequenceDraft()] * len(sequences))

    def worth_prefilling(
        self, row: DecodeSequence, rows: Sequence[DecodeSequence], drafters: Mapping[DrafterName, Drafter]
    ) -> bool:
        """Whether a newcomer is worth taking into its drafter's caches before it joins `rows`."""
        if row.wanted is None:  # asked again for each slice of it
            row.wanted = not automatic(row) or row.drafter == _LOOKUP or self._wants(row, rows, drafters)
        return row.wanted

    def _wants(
        self, row: DecodeSequence, rows: Sequence[DecodeSequence], drafters: Mapping[DrafterName, Drafter]
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

    def _wanted(
        self, rows: Sequence[DecodeSequence], drafters: Mapping[DrafterName, Drafter]
    ) -> tuple[list[SequenceDraft], Trial | None, bool]:
        """What each is to draft, what is tried with that, and whether it hangs on prices that are not known well."""
        self._entering = []
        self._trying.begin()
        prospect = self._outlook.prospect(rows, drafters)
        if prospect is None:
            return fixed(rows), None, False
        found = best(prospect)
        waiting = [c for c in prospect.candidates if c.kind is not None and not c.ready]
        if waiting:
            hoped = best(prospect, unready=True)
            if hoped.depth and self._pays(found, hoped, waiting, drafters, len(rows)):
                self._entering = [c.row for c in waiting]
        trial = self._trying.choose(prospect, found, rows, drafters)
        self._entering = self._trying.entering or self._entering
        drafts = self._drafts(rows, prospect, found, trial)
        uncertain = False
        if trial is None and any(one.depth for one in drafts):
            self._note_caps(prospect, found, drafts)
            uncertain = self._uncertain(prospect, found, rows)
        return drafts, trial, uncertain

    def _drafts(
        self, rows: Sequence[DecodeSequence], prospect: Prospect, found: Best, trial: Trial | None
    ) -> list[SequenceDraft]:
        drafts = fixed(rows)
        depth = trial.depth if trial is not None else found.depth
        for c in prospect.candidates:
            kind, drafted, state = None, 0, DraftState.DRAFTING
            tried = trial is None or c.row in trial.rows
            if c.kind is not None and c.ready and depth and tried:
                kind, drafted = c.kind, min(depth, c.most)
            looked = min(found.lookup, len(c.lookup) - 1)
            if looked and c.lookup[looked] > (c.model[drafted] if kind is not None else 1.0):
                kind, drafted = _LOOKUP, looked
            if kind is None:
                state = DraftState.PARKED if c.kind is not None or len(c.lookup) > 1 else DraftState.NONE
            drafts[c.at] = SequenceDraft(drafted, kind, state)
        return drafts

    def _uncertain(self, prospect: Prospect, found: Best, rows: Sequence[DecodeSequence]) -> bool:
        """Whether drafting would not pay if its price were what it may be."""
        width = max(found.depth, found.lookup)
        kind = next((c.kind for c in prospect.candidates if c.kind is not None), None) if found.depth else _LOOKUP
        if prospect.least or not width or kind is None:
            return False
        sampled = any_sampled(rows)
        doubt = self.costs.doubt(kind, len(rows), width, sampled)
        return found.rate * prospect.seconds(0) < len(rows) * math.exp(2 * doubt)

    def _note_caps(self, prospect: Prospect, found: Best, drafts: list[SequenceDraft]) -> None:
        """Whose plan's bound was lower than what would pay."""
        depth, bound, more = found.depth, list[Candidate](), 0.0
        for c in prospect.candidates:
            if c.kind is not None and drafts[c.at][:2] == (c.row.most, c.kind):
                bound.append(c)
                more += c.model[c.most + 1] - c.model[c.most] if len(c.model) > c.most + 1 else 0.0
        if not bound:
            return
        width = max(depth, prospect.least)
        further = prospect.seconds(min(width + 1, len(prospect.priced) - 1)) - prospect.seconds(width)
        for c in bound:
            capped = c.most < width or more > further * found.rate
            if capped:
                drafts[c.at] = drafts[c.at]._replace(state=DraftState.CAPPED)
            if capped and c.row.told_cap != c.row.most:
                c.row.told_cap = c.row.most
                why = c.row.lowered or c.row.request.plan.reason
                _log.debug("request %s: more than %d drafted tokens would pay (%s)", c.row.request.id, c.row.most, why)

    # who must be known to a drafter

    @property
    def catching_up(self) -> list[DecodeSequence]:
        """Rows that are worth taking into their drafter's caches now."""
        return self._entering

    def catch_up(self, drafters: Mapping[DrafterName, Drafter], chunk: int) -> None:
        """A slice of that, of about the time of a round."""
        kind = self._entering[0].home
        if kind is None or kind not in drafters:
            return
        round_seconds, token = self.costs.plain(1), self.costs.prices.taking_in.get(kind)
        if token:
            chunk = min(chunk, max(NEAR, int(round_seconds / token)))
        drafters[kind].follow([other for other in self._entering if other.home == kind], chunk)

    def _pays(
        self, now: Best, then: Best, entering: Sequence[Candidate], drafters: Mapping[DrafterName, Drafter], size: int
    ) -> bool:
        """Whether taking these in is worth its time."""
        if then.rate < now.rate * WORTH:
            return False
        tokens = size * max(min(_HORIZON, self._lengths.left(c.row)) for c in entering)
        return tokens / now.rate - tokens / then.rate > self._outlook.entry_seconds(entering, drafters)

    # after a round

    def learn(self, rows: Sequence[DecodeSequence], plan: DraftPlan, done: Round, seconds: float | None) -> float:
        """The planned step is over: tokens that it would have had to accept to be as fast as a plain one, 0 where
        nothing was drafted; both prices know of the machine's speed in this step by then. `seconds`: from the end of
        the step before to its own; None where something else took time between, so that they are no price."""
        size = len(rows)
        drafting = self._measuring or any(one.depth for one in plan.sequences)
        measured = self._plain_rounds.told(seconds or 0.0, drafting, plan.mode is StepMode.PLAIN_AHEAD)
        context, sampled = mean_held(rows), any_sampled(rows)
        width = max(result.drafted for result in done.rows)
        priced = _priced(plan, done, width)
        if seconds is not None:
            if priced is not None:
                self.costs.learn(priced, size, width, seconds, context, sampled)
            elif not width and measured and self._started:
                self.costs.learn(None, size, 0, seconds, context, sampled)
        for row, result, (_, kind, _) in zip(rows, done.rows, plan.sequences, strict=True):
            if result.drafted and kind is not None and row.request.origin is Origin.CLIENT:
                evidence = row.evidence.get(kind)
                if evidence is None:
                    evidence = row.evidence[kind] = RowEvidence()
                self.acceptance.learn(key_of(kind, row.request), evidence, result.drafted, len(result.accepted))
        if width:
            self.acceptance.settle()
        self._trying.passed(self._trial, done, seconds or 0.0, self.costs.plain(size, context, sampled))
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
        if seconds is None:
            seconds = done.draft_seconds + done.verify_seconds
        if priced is not None:
            seconds = self.costs.without_stall(priced, size, width, seconds, context, sampled)
        return self.costs.break_even(size, seconds, context, sampled)

    def finished(self, row: DecodeSequence) -> None:
        """A request is over."""
        self._lengths.ended(row)

    def learnt(self) -> Learnt:
        """To be kept."""
        return Learnt.of(self.costs, self.acceptance)

    def drafter_replaced(self, kind: DrafterName, rows: Sequence[DecodeSequence]) -> None:
        """Other weights draft under this name: nothing that was learnt about them holds."""
        self.acceptance.forget(kind)
        self.costs.forget(kind)
        self._trying.renew()
        self._trying.drop()
        for row in rows:
            row.evidence.pop(kind, None)


def fixed(sequences: Sequence[DecodeSequence]) -> list[SequenceDraft]:
    """Each drafts as many as its plan says."""
    return [
        SequenceDraft(one.depth, one.drafter, DraftState.DRAFTING if one.depth and one.drafter else DraftState.NONE)
        for one in sequences
    ]


def _priced(plan: DraftPlan, done: Round, width: int) -> DrafterName | None:
    """Whose price a round tells that drafted `width` tokens at the most: that of one drafter, which had not lagged
    behind. None for any other round."""
    kinds = {kind for depth, kind, _ in plan.sequences if kind and depth}
    steps = max(result.draft_forwards for result in done.rows)
    told = width and len(kinds) == 1 and not done.drafter_errors and done.lag <= _PRICED_LAG and steps in (0, width)
    return next(iter(kinds)) if told else None
