"""Chooses how many tokens to draft next for each sequence, and with which drafter: expected tokens
(acceptance_rates.py) over measured cost (costs.py).

A step takes as long as its deepest sequence requires, so one depth is chosen for the batch: the one with the most
expected tokens per second over all sequences. Depth 0 is always a candidate. Sequences with a fixed depth keep it.

Unknown depths are tried within a budget (explorer.py). A sequence without drafts need not be in a draft model's caches:
the drafter takes its text in, in slices between steps, once that is expected to pay.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from draftd.core import PEER, PROMPT_LOOKUP, DepthMode, DrafterName, Origin
from draftd.engine.depth.acceptance_rates import Acceptance, AnswerLengths
from draftd.engine.depth.costs import DEEPEST, Batch, StepCosts
from draftd.engine.depth.drafter_choice import COST_NOTHING, LAG, WEIGHTLESS, DrafterChoice, DraftingModel, draft_model
from draftd.engine.depth.estimate import BestDepths, DepthCandidate, StepEstimate
from draftd.engine.depth.explorer import WORTH, ExplorationBudget, Explorer, PlainMeasurement, Trial
from draftd.engine.depth.saved import LearntCosts, to_counted
from draftd.engine.drafters.base import Drafter
from draftd.engine.limits import MOST_REPLAYED
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DecodeStep, DraftPlan, DraftState, SequenceDraft, StepMode

_log = logging.getLogger(__name__)

_COSTED_LAG = 2  # tokens that a draft's first forward takes in anyway
_FADE_STEPS, _FADE = 16, 0.85  # fading of a parked sequence's own evidence


class DepthControl:
    """Depth control for all running sequences. Engine thread only."""

    def __init__(
        self,
        costs: StepCosts,
        deepest: int,
        *,
        acceptance: Acceptance | None = None,
        measurement: PlainMeasurement | None = None,
    ) -> None:
        """`deepest`: the most tokens that any plan lets a step draft."""
        self.costs, self._deepest = costs, min(max(deepest, 1), DEEPEST - 1)
        # one more than may be drafted, to see whether a plan's limit costs speed
        self.acceptance = acceptance or Acceptance(self._deepest + 1)
        self._explorer = Explorer(costs, self.acceptance, ExplorationBudget())
        self._measurement = measurement or PlainMeasurement()
        self.lengths = AnswerLengths()
        self._choice = DrafterChoice(costs, self.acceptance, self.lengths)
        self.catching_up: list[DecodeSequence] = []  # running sequences whose text their drafter should take in now
        self._trial: Trial | None = None  # the trial in the last planned step
        self._started = self._measuring = False  # whether that step had started already; whether it measures
        self._regime_changes, self._steps = costs.regime_changes, 0
        self._replays = False  # whether the target was seen to replay tokens

    @property
    def step_seconds(self) -> float:
        """Seconds of a plain step of one sequence; 0 if unmeasured."""
        return self.costs.plain(Batch(1)) if self.costs.measured else 0.0

    def batch_seconds(self, most: int) -> list[float]:
        """Returns seconds of plain steps of 1 to `most` sequences; empty if unmeasured."""
        return [self.costs.plain(Batch(sequences)) for sequences in range(1, most + 1)] if self.costs.measured else []

    # before a step

    def plan(
        self,
        sequences: Sequence[DecodeSequence],
        drafters: Mapping[DrafterName, Drafter],
        *,
        started: bool,
        may_run_ahead: bool,
    ) -> DraftPlan:
        """Plans each sequence's drafter and depth for the next step. `started`: its forward already runs, so it drafts
        nothing. `may_run_ahead`: the following forward may start early if this step drafts nothing."""
        self._started, self._trial, self._measuring = started, None, False
        # Otherwise no step follows.
        ahead = may_run_ahead and any(sequence.remaining > 1 for sequence in sequences)
        if started and self._measurement.steps_left:
            return self._measure(sequences, ahead)
        estimate = self._estimate(sequences, drafters)
        best = None if estimate is None else estimate.best()
        trial = self._explorer.choose(estimate, best)
        self.catching_up = self._worth_catching_up(estimate, best)
        drafts = [_as_planned(sequence) for sequence in sequences]
        if estimate is not None and best is not None:
            for c in estimate.candidates:
                drafts[c.index] = _draft(c, best, trial)
        would_draft = any(draft.depth for draft in drafts)  # if not in this step, then in the next
        drafts = [
            SequenceDraft() if d.depth and sequence.replays > min(d.depth, MOST_REPLAYED) else d
            for sequence, d in zip(sequences, drafts, strict=True)
        ]
        speculative = any(draft.depth for draft in drafts)
        if started:
            parked, none = SequenceDraft(state=DraftState.PARKED), SequenceDraft()
            drafts = [parked if automatic(sequence) else none for sequence in sequences]
        elif speculative:
            self._trial = trial
            if trial is None:
                if estimate is not None and best is not None:
                    self._note_caps(estimate, best, drafts)
                proposed = any(sequence.proposed for sequence in sequences)
                urgent = self.costs.unexplained or self._uncertain(estimate, best)
                if not proposed and self._measurement.begins(sequences, urgent=urgent):
                    return self._measure(sequences, ahead)
            return DraftPlan(StepMode.SPECULATIVE, drafts)
        plain = (automatic(sequence) or sequence.drafter in (None, PEER) for sequence in sequences)
        ahead = ahead and not would_draft and all(plain)
        return DraftPlan(StepMode.PLAIN_AHEAD if ahead else StepMode.PLAIN, drafts)

    def _measure(self, sequences: Sequence[DecodeSequence], ahead: bool) -> DraftPlan:
        """Returns a plan that drafts nothing, to measure a plain step."""
        self._measuring = True
        mode = StepMode.PLAIN_AHEAD if ahead and self._measurement.steps_left > 1 else StepMode.PLAIN
        return DraftPlan(mode, [SequenceDraft()] * len(sequences))

    def _uncertain(self, estimate: StepEstimate | None, best: BestDepths | None) -> bool:
        """Whether drafting would stop paying at the upper end of its cost's 95 % interval."""
        if estimate is None or best is None or estimate.fixed_depth or not (best.depth or best.lookup):
            return False
        kinds = (c.drafter for c in estimate.candidates if c.drafter is not None)
        kind = next(kinds) if best.depth else PROMPT_LOOKUP
        uncertainty = self.costs.uncertainty(kind, estimate.batch, max(best.depth, best.lookup))
        return best.rate * estimate.seconds(0) < estimate.batch.size * math.exp(2 * uncertainty)

    def _note_caps(self, estimate: StepEstimate, best: BestDepths, drafts: list[SequenceDraft]) -> None:
        """Considers sequences that draft as many tokens as their plan allows. Marks them as capped if that is below the
        best depth. Marks all of them if one token more in each would gain more tokens than the best rate gives in the
        added time."""
        bound = [
            c for c in estimate.candidates if c.has_draft_model and drafts[c.index][:2] == (c.sequence.most, c.drafter)
        ]
        width = max(best.depth, estimate.fixed_depth)
        wider = min(width + 1, len(estimate.draft_seconds) - 1)
        more = sum(c.draft[c.most + 1] - c.draft[c.most] for c in bound if len(c.draft) > c.most + 1)
        pays = more > (estimate.seconds(wider) - estimate.seconds(width)) * best.rate
        for c in bound:
            if not pays and c.most >= width:
                continue
            drafts[c.index] = drafts[c.index]._replace(state=DraftState.CAPPED)
            sequence = c.sequence
            if sequence.told_cap != sequence.most:
                sequence.told_cap = sequence.most
                why = sequence.lowered or sequence.plan.reason
                _log.debug(
                    "request %s may draft at most %d tokens a step, though more would pay off; limited by: %s",
                    sequence.request.id,
                    sequence.most,
                    why,
                )

    # estimates

    def _estimate(
        self, sequences: Sequence[DecodeSequence], drafters: Mapping[DrafterName, Drafter]
    ) -> StepEstimate | None:
        """Returns the estimate of the next step, or None if no sequence's depth is to be chosen."""
        if not any(map(automatic, sequences)):
            return None
        candidates: list[DepthCandidate] = []
        others, fixed_depth, fixed_steps, batch = 0.0, 0, 0, _batch(sequences)
        fixed = set[DrafterName]()  # drafters with weights of sequences whose depth is fixed
        chosen = iter(self._choice.choose([*filter(automatic, sequences)], drafters, batch, self._deepest))
        for index, sequence in enumerate(sequences):
            depth, kind = sequence.depth, sequence.drafter
            if kind is not None and kind in drafters:
                depth = min(depth, drafters[kind].longest)
            if automatic(sequence):
                most = min(sequence.depth, self._deepest)
                candidate = self._candidate(index, sequence, most, drafters, next(chosen))
                candidates.append(candidate)
            elif kind is None or depth <= 0:
                others += 1
            else:
                others += self.acceptance.expected_tokens(sequence, kind, min(depth, self._deepest))[-1]
                fixed_depth = max(fixed_depth, depth)
                if kind not in COST_NOTHING:
                    fixed_steps, fixed = max(fixed_steps, depth), fixed | {kind}
        deepest = min(max(self._deepest, fixed_depth) + 1, DEEPEST)
        widest = min(2 * deepest, DEEPEST) if self._replays else deepest
        any_ready = any(c.ready for c in candidates)
        kinds = fixed | {c.drafter for c in candidates if c.drafter and (c.ready or not any_ready)}  # whose costs count
        beside = min(kinds, default=None) if self._replays else None
        lookup = self.costs.by_depth(PROMPT_LOOKUP, batch, widest, beside)
        draft = self.costs.together(kinds, batch, deepest) if kinds else lookup
        return StepEstimate(batch, candidates, others, fixed_depth, fixed_steps, draft, lookup, self._replays)

    def _candidate(
        self,
        index: int,
        sequence: DecodeSequence,
        most: int,
        drafters: Mapping[DrafterName, Drafter],
        model: DraftingModel | None,
    ) -> DepthCandidate:
        candidate = DepthCandidate(index, sequence, most)
        if model is not None:
            candidate.drafter, candidate.key = model.name, sequence.evidence_key(model.name)
            candidate.ready = model.ready
            candidate.prefill_seconds = model.prefill_seconds
            candidate.most = min(most, model.longest)
            candidate.draft = self.acceptance.expected_tokens(sequence, model.name, min(most + 1, model.longest))
        allowed = sequence.drafters
        for weightless in WEIGHTLESS:
            usable = weightless in allowed and weightless in drafters
            if usable and (reach := drafters[weightless].reach(sequence, most)):
                expected = self.acceptance.expected_tokens(sequence, weightless, reach)
                if expected[-1] > candidate.lookup[-1]:
                    candidate.weightless, candidate.lookup = weightless, expected
        return candidate

    # which texts a drafter takes in

    def worth_prefilling(
        self,
        new: DecodeSequence,
        alone: bool,
        running: Sequence[DecodeSequence],
        drafters: Mapping[DrafterName, Drafter],
    ) -> bool:
        """Whether a new sequence's drafter takes its text in before the sequence joins the running ones.

        If it does not join `alone`, the drafter's prefill is decided for all of the batch once they run; for a peer's
        sequence, once it is granted tokens."""
        if new.prefills_drafter is None:  # decided once, asked for each slice
            new.prefills_drafter = not new.of_peer and (
                not automatic(new)
                or new.drafter in WEIGHTLESS
                or (alone and self._worth_prefilling(new, running, drafters))
            )
        return new.prefills_drafter

    def _worth_prefilling(
        self, new: DecodeSequence, running: Sequence[DecodeSequence], drafters: Mapping[DrafterName, Drafter]
    ) -> bool:
        estimate = self._estimate([*running, new], drafters)
        candidate = None if estimate is None else next((c for c in estimate.candidates if c.sequence is new), None)
        if estimate is None or candidate is None or not candidate.has_draft_model:
            return False
        # The sequence's share of the gain if all drafts knew their texts. Its gain on top of the others' would be
        # zero while those stay parked, so each sequence would wait for the others.
        for other in estimate.candidates:
            other.ready = False
        return self._pays(estimate.best(), estimate.best(if_ready=True), [candidate], 1)

    def _worth_catching_up(self, estimate: StepEstimate | None, best: BestDepths | None) -> list[DecodeSequence]:
        """Returns running sequences whose text their drafter should take in, because that pays or for a trial."""
        if estimate is None or best is None:
            return []
        waiting = [c for c in estimate.candidates if c.has_draft_model and not c.ready]
        if self._explorer.prefilling or not waiting:
            return self._explorer.prefilling
        hoped = estimate.best(if_ready=True)
        return [c.sequence for c in waiting] if self._pays(best, hoped, waiting, estimate.batch.size) else []

    def _pays(self, now: BestDepths, then: BestDepths, waiting: Sequence[DepthCandidate], size: int) -> bool:
        """Whether the drafter's time for these texts is regained over the tokens that remain to them."""
        if not then.depth or then.rate < now.rate * WORTH:
            return False
        tokens = size * max(self.lengths.horizon(c.sequence) for c in waiting)
        return tokens / now.rate - tokens / then.rate > sum(c.prefill_seconds for c in waiting)

    def catch_up(self, drafters: Mapping[DrafterName, Drafter], chunk: int) -> None:
        """Takes in a slice of the texts that are catching up, for about as long as a plain step takes."""
        waiting = [sequence for sequence in self.catching_up if not sequence.ended]
        kind = draft_model(waiting[0]) if waiting else None
        if kind is None or kind not in drafters:
            return
        if kind in self.costs.prices.prefill:
            chunk = min(chunk, max(LAG, int(self.costs.plain(Batch(1)) / self._choice.prefill_seconds(kind))))
        drafters[kind].follow([sequence for sequence in waiting if draft_model(sequence) == kind], chunk)

    # after a step

    def learn(
        self, sequences: Sequence[DecodeSequence], plan: DraftPlan, done: DecodeStep, seconds: float | None
    ) -> float | None:
        """Learns from the planned step. Returns how many accepted tokens would have made it as fast as a plain step, or
        None if nothing was drafted or that is unknown.

        `seconds`: from the end of the step before to the end of this one; None if other work took time in between."""
        batch = _batch(sequences)
        width = max(result.drafted for result in done.sequences)
        costed = _costed_drafter(plan, done, width)
        self._replays = self._replays or done.replayed > 0
        drafting, pipelined = plan.mode is StepMode.SPECULATIVE or self._measuring, plan.mode is StepMode.PLAIN_AHEAD
        if seconds is not None and costed is not None:
            self.costs.learn(costed, batch, width, seconds, done.replayed)
        elif seconds is not None and self._started and pipelined:
            self.costs.learn(None, batch, 0, seconds)
        self._measurement.record_step(seconds or 0.0, drafting=drafting, pipelined=pipelined)
        for sequence, result, draft in zip(sequences, done.sequences, plan.sequences, strict=True):
            if result.drafted and draft.drafter is not None and sequence.request.origin is Origin.CLIENT:
                self.acceptance.learn(sequence, draft.drafter, result.drafted, len(result.accepted))
        if width:
            self.acceptance.refresh()
        self._explorer.record_step(self._trial, done, seconds or 0.0, self.costs.plain(batch))
        if self.costs.regime_changes != self._regime_changes:
            self._regime_changes = self.costs.regime_changes
            self._explorer.budget.reset_waits()
        self._steps += 1
        if not drafting and self._steps % _FADE_STEPS == 0:
            for sequence in sequences:
                for evidence in sequence.evidence.values():
                    evidence.fade(_FADE)
        if not width:
            return None
        took = done.draft_seconds + done.verify_seconds if seconds is None else seconds
        if costed is not None:
            took = self.costs.without_stall(costed, batch, width, took, done.replayed)
        return self.costs.break_even(batch, took)

    def learnt(self) -> LearntCosts:
        """Returns what was learnt, for saving."""
        costs, prices = self.costs, self.costs.prices
        sources = {(kind, size): costs.source(kind, size) for kind in prices.drafted for size in prices.plain}
        return LearntCosts(
            prices, to_counted(self.acceptance), None, costs.offsets(), costs.speed, sources, costs.measured
        )

    def drafter_replaced(self, kind: DrafterName, sequences: Sequence[DecodeSequence]) -> None:
        """Drops what was learnt about a drafter whose weights were replaced."""
        self.acceptance.forget(kind)
        self.costs.forget(kind)
        self._explorer.drafter_replaced()
        for sequence in sequences:
            sequence.evidence.pop(kind, None)


def automatic(sequence: DecodeSequence) -> bool:
    """Whether the sequence's depth is chosen automatically."""
    plan = sequence.plan
    return sequence.depth > 0 and sequence.drafter not in (None, PEER) and plan.depth_mode is DepthMode.AUTOMATIC


def _batch(sequences: Sequence[DecodeSequence]) -> Batch:
    """Returns the batch with the mean context of its sequences, because a step's cost depends on the sum."""
    tokens = sum(len(sequence.tokens) for sequence in sequences)
    return Batch(len(sequences), tokens // len(sequences), any(not sequence.sampling.greedy for sequence in sequences))


def _as_planned(sequence: DecodeSequence) -> SequenceDraft:
    """Returns the plan's own drafter and depth, if nothing is to be chosen."""
    drafts = sequence.depth > 0 and sequence.drafter is not None
    return SequenceDraft(sequence.depth, sequence.drafter, DraftState.DRAFTING if drafts else DraftState.NONE)


def _draft(c: DepthCandidate, best: BestDepths, trial: Trial | None) -> SequenceDraft:
    """Returns a candidate's best draft, or the trial's."""
    reach = len(c.lookup) - 1
    if trial is not None and trial.weightless:
        deeper = trial.depth if c.sequence in trial.sequences else 0
        return SequenceDraft(min(deeper, reach), c.weightless, DraftState.DRAFTING) if deeper else _park(c)
    depth, lookup = best.depth if trial is None else trial.depth, min(best.lookup, reach)
    if not c.has_draft_model or not c.ready or (trial is not None and c.sequence not in trial.sequences):
        depth = 0
    depth = min(depth, c.most)
    if lookup and c.lookup[lookup] > c.draft[depth]:
        return SequenceDraft(lookup, c.weightless, DraftState.DRAFTING)
    if depth:
        return SequenceDraft(depth, c.drafter, DraftState.DRAFTING)
    return _park(c)


def _park(c: DepthCandidate) -> SequenceDraft:
    able = c.has_draft_model or len(c.lookup) > 1
    return SequenceDraft(state=DraftState.PARKED if able else DraftState.NONE)


def _costed_drafter(plan: DraftPlan, done: DecodeStep, width: int) -> DrafterName | None:
    """Returns the drafter whose cost a step of `width` drafted tokens shows: the only one, if it did not lag. None
    otherwise."""
    kinds = {draft.drafter for draft in plan.sequences if draft.drafter and draft.depth}
    kinds = {PROMPT_LOOKUP if kind in COST_NOTHING else kind for kind in kinds}  # forced tokens cost nothing either
    steps = max(result.draft_forwards for result in done.sequences)
    at_once = steps in (0, 1, width)  # a draft of nothing, of a block or of tokens one by one
    usable = width and len(kinds) == 1 and not done.drafter_errors and done.lag <= _COSTED_LAG and at_once
    return kinds.pop() if usable else None
