"""Which draft is tried although what is known says that it does not pay: what there is to know, and what it may cost.

Where nothing is drafted, whether to draft at all; where something is, a token more or a token less. How often, and for
how much, the allowance says (trials.py)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from draftd.core import DrafterName
from draftd.engine.depth.acceptance_rates import Acceptance, emitted, key_of
from draftd.engine.depth.costs import RoundCosts
from draftd.engine.depth.estimate import WORTH, Best, Candidate, Outlook, Prospect, any_sampled, odds
from draftd.engine.drafters.base import Drafter
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import Round

SHARE = 0.01  # of the time


FIRST, _LAST = 16, 512  # rounds to wait


_SOON, _SMALL, _VAIN = 4, 0.1, 128  # rounds to wait where so little of a round is lost, and the wait is not yet so long


_SAVED, _OWED = 20.0, 5.0  # rounds' time that the allowance may grow to, and be overdrawn by


class Trials:
    """Counts in seconds and rounds. Engine thread only."""

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._allowance: float | None = None
        self._waits: dict[Hashable, tuple[int, int]] = {}  # rounds since the last time, rounds to wait for

    @property
    def allowance(self) -> float:
        """Seconds that may be lost."""
        return self._allowance or 0.0

    def passed(self, seconds: float, plain: float, idle: Iterable[Hashable] = ()) -> None:
        """A round took `seconds`, a plain one takes `plain`; `idle` were not tried in it. One round's time is given in
        advance."""
        if self._allowance is None:
            self._allowance = plain
        self._allowance = min(self._allowance + self._share * seconds, _SAVED * plain)
        for what in idle:
            since, wait = self._waits.get(what, (0, FIRST))
            self._waits[what] = (since + 1, wait)

    def due(self, what: Hashable, loss: float, plain: float) -> bool:
        """Whether it may be tried at the cost of `loss` seconds, where a plain round takes `plain`. What costs next to
        nothing need not wait, unless it was in vain again and again."""
        since, wait = self._waits.get(what, (0, FIRST))
        return since >= (_SOON if loss < _SMALL * plain and wait < _VAIN else wait) and loss <= self.allowance

    def waited(self, what: Hashable) -> int:
        """Rounds that it had to wait for."""
        return self._waits.get(what, (0, FIRST))[1]

    def tried(self, what: Iterable[Hashable], paid: bool) -> None:
        for one in what:
            _, wait = self._waits.get(one, (0, FIRST))
            self._waits[one] = (0, FIRST if paid else min(2 * wait, _LAST))

    def lose(self, seconds: float, plain: float) -> None:
        """So much was lost on a trial; less than 0 was gained."""
        self._allowance = min(max(self.allowance - seconds, -_OWED * plain), _SAVED * plain)

    def renew(self) -> None:
        """The world has changed: nothing has to wait longer than at first."""
        self._waits = {what: (since, FIRST) for what, (since, _) in self._waits.items()}


PERIOD_SECONDS = 5.0  # of drafting, without a plain round: with 3 rounds of 10 ms each, some 0.3 % of the speed


_URGENT = 10  # times as often, where it is not clear whether drafting pays


_ROUNDS = 3  # the first dispatches the second, the second the third: the second's time is that of pipelined decoding


class Exploration:
    """Counts the time spent drafting. Engine thread only."""

    def __init__(self, period_seconds: float = PERIOD_SECONDS) -> None:
        self._period = period_seconds
        self._drafting = 0.0
        self._left = 0

    def plain(self, rows: Sequence[DecodeSequence], pending: bool, urgent: bool = False) -> bool:
        """Whether the next round is to draft nothing. `pending`: its forward is under way already; `urgent`: much hangs
        on a price that is not known well."""
        if pending:
            return self._left > 0
        if self._drafting < (self._period / _URGENT if urgent else self._period) or not all(map(_indifferent, rows)):
            self._left = 0
            return False
        self._left, self._drafting = _ROUNDS, 0.0
        return True

    @property
    def ahead(self) -> bool:
        """Whether a plain round may dispatch another one."""
        return self._left > 1

    def told(self, seconds: float, drafting: bool, pipelined: bool) -> bool:
        """A round is over. `drafting`: a row of it has a drafter; `pipelined`: another was under way when it ended.
        Whether it cost what plain decoding costs."""
        if not drafting:
            self._drafting, self._left = 0.0, 0
            return True
        if not self._left:
            self._drafting += seconds
            return False
        self._left -= 1
        measured = pipelined and self._left == 1
        if not pipelined:
            self._left = 0
        return measured


def _indifferent(row: DecodeSequence) -> bool:
    """Whether it has a few tokens to go."""
    return row.remaining > _ROUNDS + 1


_PERFECT = 0.97  # no draft's tokens stand more often


_BONUS = 0.5  # what acceptance may be better than it is known to be, after a single trial


_LAST_TOKENS = 8  # a row this near to its end is no ground for trials


_OLD = 64  # rounds after which what was known counts half


@dataclass(frozen=True, slots=True)
class Trial:
    """A draft that is tried although it is not expected to pay: what it tells of, the rows and the depth it is for.

    It has paid where a depth from `paid_from` on is best after it; `expected` tokens were to stand. `pace`: seconds
    that a token takes as it is; `entry`: those that were spent on making the drafter know the rows.
    """

    keys: tuple[Hashable, ...]
    kind: DrafterName
    rows: tuple[DecodeSequence, ...]
    depth: int
    paid_from: int
    expected: float
    pace: float
    entry: float


class Trying:
    """Engine thread only."""

    def __init__(self, costs: RoundCosts, acceptance: Acceptance, outlook: Outlook, trials: Trials) -> None:
        self._costs, self._acceptance, self._outlook, self._trials = costs, acceptance, outlook, trials
        self._pending: Trial | None = None  # whose rows are being taken in
        self._done: Trial | None = None  # which is over; whether it paid shows when the next round is chosen
        self._surpassed = False  # it did better than was expected
        self._idle: list[Hashable] = []  # what might have been tried in the round that was chosen last
        self.entering: list[
            DecodeSequence
        ] = []  # rows that a trial waits for: their drafter does not know them well enough

    # before a round

    def begin(self) -> None:
        """Another round is to be chosen."""
        self._idle, self.entering = [], []

    def choose(
        self, prospect: Prospect, found: Best, rows: Sequence[DecodeSequence], drafters: Mapping[DrafterName, Drafter]
    ) -> Trial | None:
        """What to try in the next round instead of `found`, if anything."""
        self._settle(found)
        if found.depth or found.lookup:
            self._pending = None
            return None if found.lookup else self._neighbour(prospect, found, rows)
        return self._taken_in(prospect) or self._draft_at_all(prospect, found, rows, drafters)

    def wants(
        self,
        prospect: Prospect,
        found: Best,
        newcomer: Candidate,
        rows: Sequence[DecodeSequence],
        drafters: Mapping[DrafterName, Drafter],
    ) -> bool:
        """Whether a draft is to be tried soon, and this is the first row that it could be tried for: later there would
        be more of its text to take in."""
        if any(c.ready for c in prospect.candidates if c is not newcomer) or prospect.least:
            return False
        if newcomer.row.remaining <= _LAST_TOKENS or not self._might_pay(prospect, found, [newcomer], rows):
            return False
        entry, plain = self._outlook.entry_seconds([newcomer], drafters), prospect.seconds(0)
        if not self._trials.due(("draft", newcomer.key), entry + prospect.seconds(1) - plain, plain):
            return False
        self._trials.lose(entry, plain)
        return True

    def _settle(self, found: Best) -> None:
        """Whether the last trial paid: it changed what seems best."""
        trial, self._done = self._done, None
        if trial is not None:
            self._trials.tried(trial.keys, paid=found.depth >= trial.paid_from or self._surpassed)

    def _taken_in(self, prospect: Prospect) -> Trial | None:
        """The trial whose rows were being taken in, where they have been."""
        trial = self._pending
        if trial is None:
            return None
        its = [c for c in prospect.candidates if c.row in trial.rows and c.kind == trial.kind]
        if len(its) < len(trial.rows) or any(c.row.remaining <= 1 for c in its):
            self._pending = None
            return None
        if not all(c.ready for c in its):
            self.entering = list(trial.rows)
            return None
        return trial

    def _draft_at_all(
        self, prospect: Prospect, found: Best, rows: Sequence[DecodeSequence], drafters: Mapping[DrafterName, Drafter]
    ) -> Trial | None:
        """All rows are parked: whether to draft for them, or for one of them, to see what that gives."""
        able = [c for c in prospect.candidates if c.kind is not None and c.row.remaining > _LAST_TOKENS]
        if not able or prospect.least or not self._might_pay(prospect, found, able, rows):
            return None
        keys = list({c.key: None for c in able})
        self._idle = [("draft", key) for key in keys]
        ready = [c for c in able if c.ready]
        chosen = ready or [min(able, key=lambda c: len(c.row.tokens))]
        entry = 0.0 if ready else self._outlook.entry_seconds(chosen, drafters)
        depth = self._hopeful(prospect, found, chosen)
        tokens = prospect.beside + len(prospect.candidates)
        tokens += sum(c.model[min(depth, c.most)] - 1 for c in chosen)
        loss = max(0.0, prospect.seconds(depth) - tokens / found.rate) + entry
        told = tuple({("draft", c.key): None for c in chosen})
        if not any(self._trials.due(key, loss, prospect.seconds(0)) for key in told):
            return None
        assert chosen[0].kind is not None
        its = tuple(c.row for c in chosen)
        trial = Trial(told, chosen[0].kind, its, depth, 1, tokens - len(rows), 1 / found.rate, entry)
        if not ready:
            self._pending, self.entering = trial, [c.row for c in chosen]
            return None
        return trial

    def _might_pay(
        self, prospect: Prospect, found: Best, able: Sequence[Candidate], rows: Sequence[DecodeSequence]
    ) -> bool:
        """Whether drafts that nearly always stand would pay, if they cost as little as they may."""
        kind = able[0].kind
        assert kind is not None
        sampled = any_sampled(rows)
        others = prospect.beside + len(prospect.candidates) - len(able)
        tokens, reach = 1.0, 1.0
        for depth in range(1, max(c.most for c in able) + 1):
            reach *= _PERFECT
            tokens += reach
            least = prospect.seconds(depth) * math.exp(-self._costs.doubt(kind, len(rows), depth, sampled))
            if others + len(able) * tokens > found.rate * least * WORTH:
                return True
        return False

    def _hopeful(self, prospect: Prospect, found: Best, chosen: Sequence[Candidate]) -> int:
        """The least depth that would pay if acceptance were as good as it may be: the cheapest way to know; or 1."""
        others = prospect.beside + len(prospect.candidates) - len(chosen)
        hopes = []
        for c in chosen:
            assert c.key is not None
            rates = self._acceptance.rates(c.key)
            trials = [self._acceptance.trials(c.key, i + 1) for i in range(c.most)]
            better = [min(_PERFECT, r + _BONUS / math.sqrt(n + 1)) for r, n in zip(rates, trials, strict=False)]
            hopes.append(emitted(better, odds(c.row, c.key[0]), c.most))
        for depth in range(1, max(c.most for c in chosen) + 1):
            tokens = others + sum(hope[min(depth, len(hope) - 1)] for hope in hopes)
            if tokens > found.rate * prospect.seconds(depth):
                return depth
        return 1

    def _neighbour(self, prospect: Prospect, found: Best, rows: Sequence[DecodeSequence]) -> Trial | None:
        """One token more or less than what seems best, where that might be better for all that is known."""
        asked = [c for c in prospect.candidates if c.kind is not None and c.ready]
        sampled = any_sampled(rows)
        for depth in (found.depth + 1, found.depth - 1):
            if not 1 <= depth <= max(c.most for c in asked) or depth < prospect.least:
                continue
            kind, key = asked[0].kind, asked[0].key
            assert kind is not None
            assert key is not None
            what = ("depth", key, len(rows), depth)
            self._idle.append(what)
            tokens = prospect.beside + len(prospect.candidates) - len(asked)
            hope = tokens
            for c in asked:
                at = min(depth, c.most)
                tokens += c.model[at]
                hope += c.model[at]
                if at > 1 and depth > found.depth and c.key is not None:
                    reach = c.model[at - 1] - c.model[at - 2]
                    hope += reach * _BONUS / math.sqrt(self._acceptance.trials(c.key, at) + 1)
            seconds = prospect.seconds(depth)
            doubt = self._costs.doubt_of_depth(kind, len(rows), depth, sampled)
            if hope < found.rate * seconds * math.exp(-doubt):
                continue
            loss = max(0.0, seconds - tokens / found.rate)
            if self._trials.due(what, loss, prospect.seconds(0)):
                its = tuple(c.row for c in asked)
                return Trial((what,), kind, its, depth, depth, tokens - len(rows), 1 / found.rate, 0.0)
        return None

    # after a round

    def passed(self, trial: Trial | None, done: Round, seconds: float, plain: float) -> None:
        """What the round lost or gained beside a plain one, and what may be lost from here on. `trial`: what was tried
        in it."""
        self._trials.passed(seconds, plain, self._idle if trial is None else ())
        if trial is None:
            return
        tokens = sum(len(result.accepted) + 1 for result in done.rows)
        self._trials.lose(seconds - tokens * trial.pace + trial.entry, plain)
        self._pending, self._done = None, trial
        self._surpassed = sum(len(result.accepted) for result in done.rows) > trial.expected
        if self._trials.waited(trial.keys[0]) >= _OLD:
            for row in trial.rows:
                self._acceptance.fade(key_of(trial.kind, row.request), 0.5)

    def renew(self) -> None:
        """The world has changed: nothing has to wait longer than at first."""
        self._trials.renew()

    def drop(self) -> None:
        """Whatever is under way tells nothing any more."""
        self._pending = self._done = None
