"""Exploration: trials of drafts that are not expected to pay, and plain steps taken only to measure them.

Two estimates go stale without trials: whether to draft at all when nothing drafts, and one token more or less when
something does. Exploration may cost a fixed share of the time, paid from a budget (an epsilon-greedy bandit whose
epsilon is lost time). After a trial that did not pay, the wait for the next one doubles.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from draftd.core import DrafterName
from draftd.engine.depth.acceptance_rates import PERFECT, Acceptance, bonus, expected_by_depth
from draftd.engine.depth.costs import StepCosts
from draftd.engine.depth.estimate import BestDepths, DepthCandidate, StepEstimate
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DecodeStep

WORTH = 1.01  # the least speedup for which time may be spent in advance

_SHARE = 0.01  # share of the time
_FIRST_WAIT, _LONGEST_WAIT = 16, 512  # steps
_LONGEST_SECONDS = 10.0  # steps that allow a trial may be rare: then this time decides
_SAVED, _OWED = 20.0, 5.0  # the most that the budget may save and owe, in plain steps' time


class ExplorationBudget:
    """Seconds that trials may lose, and how many steps to wait before each subject's next trial. Engine thread only."""

    def __init__(self, share: float = _SHARE) -> None:
        self._share = share
        self._seconds: float | None = None
        self._passed = 0.0  # sum of all steps' seconds
        self._waits: dict[Hashable, tuple[int, int]] = {}  # by subject: steps since its last trial, steps to wait
        self._tried: dict[Hashable, float] = {}  # by subject: the value of `_passed` at its last trial

    @property
    def seconds(self) -> float:
        return self._seconds or 0.0

    def record_step(
        self, seconds: float, plain: float, idle: Iterable[Hashable] = (), *, explorable: bool = True
    ) -> None:
        """Adds a step of `seconds` to the budget, limited by the seconds of a `plain` one, if it was `explorable`: the
        share is one of the time of texts that may be drafted for. `idle`: subjects not tried in the step. The budget
        starts with one step's time."""
        self._passed += seconds
        if explorable:
            before = plain if self._seconds is None else self._seconds
            self._seconds = min(before + self._share * seconds, _SAVED * plain)
        for what in idle:
            since, wait = self._waits.get(what, (0, _FIRST_WAIT))
            self._waits[what] = (since + 1, wait)

    def due(self, what: Hashable, loss: float) -> bool:
        """Whether a subject may be tried now at an expected loss of `loss` seconds."""
        since, wait = self._waits.get(what, (0, _FIRST_WAIT))
        long_ago = self._passed - self._tried.get(what, 0.0) >= _LONGEST_SECONDS
        return (since >= wait or long_ago) and loss <= self.seconds

    def wait(self, what: Hashable) -> int:
        """Returns the steps between two trials of a subject."""
        return self._waits.get(what, (0, _FIRST_WAIT))[1]

    def schedule_retry(self, what: Iterable[Hashable], *, paid: bool, again: bool = False) -> None:
        """Sets the wait before the subjects' next trial: none if `again` (its cost was lower than expected), the
        shortest if it `paid`, else twice as long as before."""
        for subject in what:
            wait = (
                0
                if again
                else _FIRST_WAIT
                if paid
                else min(2 * max(self.wait(subject), _FIRST_WAIT // 2), _LONGEST_WAIT)
            )
            self._waits[subject], self._tried[subject] = (0, wait), self._passed

    def lose(self, seconds: float, plain: float) -> None:
        """Subtracts a trial's loss; a negative loss is a gain."""
        self._seconds = min(max(self.seconds - seconds, -_OWED * plain), _SAVED * plain)

    def reset_waits(self) -> None:
        """Resets all waits: a trial that did not pay may pay now."""
        self._waits = {what: (since, _FIRST_WAIT) for what, (since, _) in self._waits.items()}


_PERIOD_SECONDS = 5.0  # of drafting between measurements: 3 plain steps of 10 ms cost about 0.3 % of the speed
_URGENT = 10  # times as often while it is unclear whether drafting pays
_PLAIN_STEPS = 3  # the first starts the second ahead, the second the third: the second is pipelined on both sides


class PlainMeasurement:
    """Schedules a few plain steps from time to time while everything drafts, so that their cost stays known."""

    def __init__(self, period_seconds: float = _PERIOD_SECONDS) -> None:
        self._period = period_seconds
        self._drafting = 0.0  # seconds of drafting since the last plain step
        self.steps_left = 0  # remaining steps of the current measurement

    def begins(self, sequences: Sequence[DecodeSequence], *, urgent: bool = False) -> bool:
        """Whether a measurement begins with the next step. `urgent`: a decision depends on an uncertain cost."""
        due = self._drafting >= (self._period / _URGENT if urgent else self._period)
        begins = due and all(sequence.remaining > _PLAIN_STEPS + 1 for sequence in sequences)
        self.steps_left = _PLAIN_STEPS if begins else 0
        if begins:
            self._drafting = 0.0
        return begins

    def record_step(self, seconds: float, *, drafting: bool, pipelined: bool) -> None:
        """Records a finished step. `drafting`: a sequence has something to draft; `pipelined`: the next step had
        started early. A measurement that cannot be pipelined is given up."""
        if not drafting:
            self._drafting, self.steps_left = 0.0, 0
        elif self.steps_left:
            self.steps_left = self.steps_left - 1 if pipelined else 0
        else:
            self._drafting += seconds


_LAST_TOKENS = 8  # no trials with this few tokens left
_CHEAPER = 0.8  # share of the expected cost: a trial below it shows that the price is wrong
_OLD = 64  # from this wait on, old evidence counts half


@dataclass(frozen=True, slots=True)
class Trial:
    """A draft of `depth` tokens for `sequences`, tried although it is not expected to pay.

    `keys`: the subjects that it informs. It paid if the step gave more tokens than `expected`, or if a depth of
    `paid_from` or more is best afterwards. `pace`: seconds per token without it; `seconds`: the expected cost of the
    step; `prefill_seconds`: time spent on taking in texts. `weightless`: prompt lookup or similar drafts up to
    `depth`."""

    keys: tuple[Hashable, ...]
    kind: DrafterName
    sequences: tuple[DecodeSequence, ...]
    depth: int
    paid_from: int
    expected: float
    pace: float
    seconds: float
    prefill_seconds: float = 0.0
    weightless: bool = False


class Explorer:
    """Chooses trials and records their results. Engine thread only."""

    def __init__(self, costs: StepCosts, acceptance: Acceptance, budget: ExplorationBudget) -> None:
        self._costs, self._acceptance, self.budget = costs, acceptance, budget
        self._prepared: Trial | None = None  # its drafter is taking in, or has taken in, the sequences' texts
        self._over: Trial | None = None  # finished; whether it paid shows when the next step is planned
        self._surpassed = False  # whether the finished trial gave more tokens than expected
        self._cheaper = False  # whether its step cost at least a fifth less than expected
        self._idle: list[Hashable] = []  # subjects that might have been tried in the last planned step
        self._explorable = False  # whether any sequence's depth was to be chosen in that step
        self.prefilling: list[DecodeSequence] = []  # sequences whose texts a trial's drafter should take in

    def choose(self, estimate: StepEstimate | None, best: BestDepths | None) -> Trial | None:
        """Returns a trial to run in the next step instead of the best depths, or None."""
        self._idle, self.prefilling = [], []
        self._explorable = estimate is not None
        if estimate is None or best is None:
            return None
        trial, self._over = self._over, None
        if trial is not None:
            pays = max(best.depth, best.lookup) >= trial.paid_from
            self.budget.schedule_retry(trial.keys, paid=self._surpassed or pays, again=self._cheaper and not pays)
        if best.depth or best.lookup:
            self._prepared = None
            return None if best.lookup else self._neighbour(estimate, best)
        if self._prepared is not None:
            return self._prefilled_trial(estimate, self._prepared)
        if estimate.fixed_depth:
            return None
        draft_trial = self._draft_at_all(estimate, best)
        return self._look_up_at_all(estimate, best) if draft_trial is None and not self.prefilling else draft_trial

    def _prefilled_trial(self, estimate: StepEstimate, trial: Trial) -> Trial | None:
        """Returns the prepared trial if its sequences' texts are taken in, else None."""
        its = [c for c in estimate.candidates if c.sequence in trial.sequences and c.drafter == trial.kind]
        if len(its) < len(trial.sequences) or any(c.sequence.remaining <= 1 for c in its):
            self._prepared = None
            return None
        if all(c.ready for c in its):
            return trial
        self.prefilling = list(trial.sequences)
        return None

    def _draft_at_all(self, estimate: StepEstimate, best: BestDepths) -> Trial | None:
        """Returns a trial of drafting when all sequences are parked, or None, possibly after scheduling a prefill for
        one."""
        able = [c for c in estimate.candidates if c.has_draft_model and c.sequence.remaining > _LAST_TOKENS]
        if not able or not self._might_pay(estimate, best, able):
            return None
        self._idle += list({("draft", c.key): None for c in able})
        ready = [c for c in able if c.ready]
        chosen = ready or [min(able, key=lambda c: len(c.sequence.tokens))]
        prefill = 0.0 if ready else chosen[0].prefill_seconds
        depth = self._cheapest_hope(estimate, best, chosen)
        loss = max(0.0, estimate.seconds(depth) - estimate.tokens(_drafts(chosen), depth) / best.rate) + prefill
        keys = tuple({("draft", c.key): None for c in chosen})
        if not any(self.budget.due(key, loss) for key in keys):
            return None
        trial = _trial(keys, estimate, chosen, depth, 1, best, prefill)
        if not ready:
            self._prepared, self.prefilling = trial, list(trial.sequences)
            return None
        return trial

    def _look_up_at_all(self, estimate: StepEstimate, best: BestDepths) -> Trial | None:
        """Returns a trial of a drafter without weights when all sequences are parked, if it has proposals."""
        able = [c for c in estimate.candidates if len(c.lookup) > 1 and c.sequence.remaining > _LAST_TOKENS]
        if not able:
            return None
        depth = max(len(c.lookup) for c in able) - 1
        hoped = expected_by_depth([PERFECT] * depth, 1.0, depth)
        hopes = [estimate.tokens([hoped[: len(c.lookup)] for c in able], d) for d in range(depth + 1)]
        uncertain = self._costs.uncertainty(able[0].weightless, estimate.batch, depth)
        paying = [d for d in range(1, depth + 1) if hopes[d] > best.rate * estimate.seconds(0, d) * WORTH]
        if not paying and hopes[depth] <= best.rate * estimate.seconds(0, depth) * math.exp(-2 * uncertain):
            return None
        keys = tuple({("lookup", c.sequence.evidence_key(c.weightless)): None for c in able})
        self._idle += keys
        depth = paying[0] if paying else depth
        tokens, seconds = estimate.tokens([c.lookup for c in able], depth), estimate.seconds(0, depth)
        if not any(self.budget.due(key, max(0.0, seconds - tokens / best.rate)) for key in keys):
            return None
        its = tuple(c.sequence for c in able)
        return Trial(keys, able[0].weightless, its, depth, 1, tokens, 1 / best.rate, seconds, weightless=True)

    def _might_pay(self, estimate: StepEstimate, best: BestDepths, able: Sequence[DepthCandidate]) -> bool:
        """Whether drafts that are nearly always accepted would pay at the lowest plausible cost."""
        deepest, kind = max(c.most for c in able), able[0].drafter
        assert kind is not None
        hopes = [expected_by_depth([PERFECT] * deepest, 1.0, deepest)] * len(able)
        for depth in range(1, deepest + 1):
            uncertain = self._costs.uncertainty(kind, estimate.batch, depth)
            if estimate.tokens(hopes, depth) > best.rate * estimate.seconds(depth) * math.exp(-uncertain) * WORTH:
                return True
        return False

    def _cheapest_hope(self, estimate: StepEstimate, best: BestDepths, chosen: Sequence[DepthCandidate]) -> int:
        """Returns the smallest depth that would pay at the highest plausible acceptance, or 1."""
        hopes = []
        for c in chosen:
            assert c.key is not None
            rates = [
                min(PERFECT, rate + bonus(self._acceptance.drafted_count(c.key, i)))
                for i, rate in enumerate(self._acceptance.rates(c.key)[: c.most], 1)
            ]
            own = c.sequence.evidence.get(c.key[0])
            hopes.append(expected_by_depth(rates, 1.0 if own is None else own.odds, c.most))
        for depth in range(1, max(c.most for c in chosen) + 1):
            if estimate.tokens(hopes, depth) > best.rate * estimate.seconds(depth):
                return depth
        return 1

    def _neighbour(self, estimate: StepEstimate, best: BestDepths) -> Trial | None:
        """Returns a trial of one token more or less than the best depth, if that may plausibly be better."""
        drafting = [c for c in estimate.candidates if c.has_draft_model and c.ready]
        first = drafting[0]
        assert first.drafter is not None
        for depth in (best.depth + 1, best.depth - 1):
            if not 1 <= depth <= max(c.most for c in drafting) or depth < estimate.fixed_depth:
                continue
            what = ("depth", first.key, estimate.batch.size, depth)
            self._idle.append(what)
            tokens, seconds = estimate.tokens(_drafts(drafting), depth), estimate.seconds(depth)
            hope = tokens
            for c in drafting:
                at = min(depth, c.most)
                if at > 1 and depth > best.depth and c.key is not None:
                    reach = c.draft[at - 1] - c.draft[at - 2]
                    hope += reach * bonus(self._acceptance.drafted_count(c.key, at))
            uncertainty = self._costs.depth_uncertainty(first.drafter, estimate.batch, depth)
            if hope < best.rate * seconds * math.exp(-uncertainty):
                continue
            if self.budget.due(what, max(0.0, seconds - tokens / best.rate)):
                return _trial((what,), estimate, drafting, depth, depth, best)
        return None

    def record_step(self, trial: Trial | None, done: DecodeStep, seconds: float, plain: float) -> None:
        """Records a finished step, and the gain or loss if `trial` was run in it."""
        self.budget.record_step(seconds, plain, self._idle if trial is None else (), explorable=self._explorable)
        if trial is None:
            return
        tokens = sum(len(result.accepted) + 1 for result in done.sequences)
        self.budget.lose(seconds - tokens * trial.pace + trial.prefill_seconds, plain)
        self._prepared, self._over = None, trial
        self._surpassed = tokens > trial.expected
        self._cheaper = 0.0 < seconds < _CHEAPER * trial.seconds
        if self.budget.wait(trial.keys[0]) >= _OLD:
            for sequence in trial.sequences:
                self._acceptance.fade(sequence.evidence_key(trial.kind), 0.5)

    def drafter_replaced(self) -> None:
        """Drops all trials under way."""
        self.budget.reset_waits()
        self._prepared = self._over = None


def _drafts(candidates: Sequence[DepthCandidate]) -> list[Sequence[float]]:
    """Returns the candidates' expected tokens by depth from the draft model, up to their limits."""
    return [c.draft[: c.most + 1] for c in candidates]


def _trial(
    keys: tuple[Hashable, ...],
    estimate: StepEstimate,
    its: Sequence[DepthCandidate],
    depth: int,
    paid_from: int,
    best: BestDepths,
    prefill: float = 0.0,
) -> Trial:
    kind, expected = its[0].drafter, estimate.tokens(_drafts(its), depth)
    assert kind is not None
    sequences, seconds = tuple(c.sequence for c in its), estimate.seconds(depth)
    return Trial(keys, kind, sequences, depth, paid_from, expected, 1 / best.rate, seconds, prefill)
