"""The edge's side of one sequence decoded by another daemon's target: its text, the guess after it, proposals on their
way, and tokens granted without a proposal.

The sequence's tokens are the text followed by the guess, so drafters continue from the guess.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from draftd.core import DrafterName
from draftd.engine.cache.trie import alike
from draftd.engine.guess import Guess
from draftd.engine.remote.mode_control import DraftOutcome
from draftd.engine.remote.verifier_link import Proposal, Verdict
from draftd.engine.sequence import DecodeSequence
from draftd.strategies import RemoteCounts, RemoteMode


@dataclass(slots=True)
class _Draft:
    """Tokens that a drafter proposed, from position `start` of the text."""

    kind: DrafterName
    start: int
    tokens: list[int]


@dataclass(slots=True)
class _Sent:
    """A proposal on its way, sent at `at`. `grant`: the value of `RemoteSequence._undrafted` (all tokens decided
    without a draft) at which the grant sent with the proposal is used up."""

    draft: _Draft
    at: float
    grant: int
    alone: bool  # no other verdict was owed when it was sent
    timed: bool = False  # whether its round trip was counted


@dataclass(slots=True, eq=False)
class RemoteSequence:
    """The edge's state of a sequence. `number`: the edge's number for it. `mode`, `depth`, `ahead`: how it is decoded
    now (see `RemoteEstimate`); `decided`: verdicts since that choice. `parked`: while the mode is STREAM, no proposal
    will follow soon. `opened`, `answered`: on this connection, the verifier has opened it, has sent a verdict. `due`:
    deadline of the verifier's next message, None if none is awaited; `prefilled_by`: deadline of this connection's
    first verdict."""

    number: int
    sequence: DecodeSequence
    counts: RemoteCounts
    mode: RemoteMode = RemoteMode.STREAM
    depth: int = 0
    ahead: int = 0
    decided: int = 0
    parked: bool = False
    opened: bool = False
    answered: bool = False
    finished: bool = False  # whether a verdict has ended its text
    prefilled_by: float = 0.0
    due: float | None = None
    draft_forwards: int = 0  # since the last verdict
    draft_seconds: float = 0.0  # since the last verdict
    try_at: int = 0  # answer length from which an unsent draft is tried
    empty_at: int = -1  # length of text and guess at which drafters had nothing to propose
    # Consecutive tokens of a grant, those drafted by the verifier, and the start time.
    streak: tuple[int, int, float] | None = None
    last_verdict: float | None = None
    trip: float | None = None  # round trip ended by the latest verdict, without the verifier's own time
    guess: Guess = field(init=False)
    _sent: deque[_Sent] = field(default_factory=deque)
    trial: _Draft | None = None  # a draft kept unsent, to measure its acceptance
    _proposed: dict[int, set[int]] = field(default_factory=dict)  # by position in the text: all tokens ever proposed
    _undrafted: int = 0  # tokens decided without a draft
    _granted: int = 0  # the value of `_undrafted` up to which tokens may come without a proposal

    def __post_init__(self) -> None:
        self.guess = self.sequence.guess = Guess(self.sequence.tokens)

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return self.guess.decided

    @property
    def end(self) -> int:
        """The most tokens that the text may have."""
        return len(self.sequence.request.prompt) + self.sequence.max_tokens

    @property
    def in_flight(self) -> int:
        """Proposals on their way."""
        return len(self._sent)

    @property
    def grant(self) -> int:
        """Tokens that the verifier may certainly still decode without a proposal."""
        return self._granted - self._undrafted

    @property
    def owed(self) -> bool:
        """Whether a verdict will come."""
        return bool(self.guess) or self.grant > 0

    # sending

    def propose(self, kind: DrafterName, tokens: Sequence[int], run: int, now: float) -> Proposal:
        """Extends the guess by these tokens, replaces the grant by `run`, and returns the proposal to send."""
        start, last = len(self.guess.tokens), self.guess.tokens[-1]
        for place, token in enumerate(tokens, start):
            self._proposed.setdefault(place, set()).add(token)
        draft = _Draft(kind, start, list(tokens))
        self._sent.append(_Sent(draft, now, self._undrafted + run, alone=not self.owed))
        self.guess.propose(start, last, tokens)
        if not run:  # withdraws earlier grants
            self._granted = self._undrafted
            for sent in self._sent:
                sent.grant = self._undrafted
        self.counts.steps += 1
        self.counts.proposed += len(tokens)
        return Proposal(self.number, start, last, tuple(tokens), run)

    def allow(self, run: int) -> Proposal:
        """Returns a proposal of no tokens that grants `run` tokens. It is never stale (contradicted by the verifier's
        text), because it follows only decided tokens."""
        assert not self.guess, "a step without a proposal would end the guess"
        self._granted = self._undrafted + run
        self.counts.steps += 1
        return Proposal(self.number, self.length, self.sequence.tokens[-1], (), run)

    def keep_trial(self, kind: DrafterName, tokens: Sequence[int]) -> None:
        """Keeps a draft unsent, to measure its acceptance."""
        self.trial = _Draft(kind, self.length, list(tokens))

    # receiving

    def implausible(self, verdict: Verdict, vocabulary: int) -> str:
        """Returns why a verdict cannot be true; empty if it can."""
        tokens, accepted, drafted, own = verdict.tokens, verdict.accepted, verdict.drafted, verdict.own_drafted
        if verdict.length != self.length:
            return f"a verdict goes on from token {verdict.length} of a text of {self.length}"
        if drafted:
            possible = 0 <= accepted <= drafted and len(tokens) == accepted + 1 and not own
        else:
            possible = accepted == 0 and 1 <= len(tokens) <= own + 1
        if not possible:
            return f"a verdict has {len(tokens)} tokens, {accepted} accepted of {drafted}"
        bad = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if bad is not None:
            return f"a verdict has token {bad} of a vocabulary of {vocabulary}"
        for place, token in enumerate(tokens[:accepted], verdict.length):
            if token not in self._proposed.get(place, ()):
                return f"a verdict has accepted token {token}, which was not proposed"
        if drafted and verdict.length + drafted > max(self._proposed, default=-1) + 1:
            return f"a verdict has drafted {drafted} tokens, more than were proposed"
        if self.sequence.request.logprobs is not None and len(verdict.logprobs) != len(tokens):
            return f"a verdict of {len(tokens)} tokens has {len(verdict.logprobs)} log-probabilities"
        return ""

    def take(self, verdict: Verdict, now: float) -> tuple[list[DraftOutcome], float | None]:
        """Applies a verdict. Returns the outcomes of drafts, and the round trip of a step sent when nothing else was
        owed."""
        tokens, counts, guessed = verdict.tokens, self.counts, len(self.guess)
        agreed = self.guess.decide(tokens)
        wrong = agreed < min(len(tokens), guessed)
        waited, self.trip = None, None
        if verdict.drafted:
            waited = self._measure_trip(verdict, now)
        if not verdict.drafted:
            self._undrafted += len(tokens)
        elif self._sent:
            self._granted = max(self._granted, self._sent[0].grant)  # its grant counts from now on
        judged = list(self._draft_outcomes())
        if wrong:
            counts.wasted += max(0, guessed - verdict.drafted)
        for place in range(verdict.length, verdict.length + len(tokens)):
            self._proposed.pop(place, None)
        counts.verdicts += 1
        counts.hidden += bool(self.guess)
        counts.queue_seconds += verdict.queue_seconds
        counts.target_seconds += verdict.share_seconds
        self.decided += 1
        self.answered, self.finished = True, verdict.finished is not None
        return judged, waited

    def void(self) -> None:
        """Drops everything that was sent."""
        self.counts.wasted += self.guess.cut()
        self.trial, self.empty_at, self.streak = None, -1, None
        self._sent.clear()
        self._proposed.clear()
        self._granted = self._undrafted

    def leave(self) -> None:
        """Ends the sequence's part at the verifier, and drops tokens beyond the end of its text."""
        self.void()
        sequence, self.sequence.guess = self.sequence, None
        self.guess.decided = len(sequence.request.prompt) + sequence.emitted
        del sequence.tokens[self.guess.decided :]

    # deadlines and times

    def reopen(self, by: float) -> None:
        """Starts again on another connection, where the first verdict must come before `by`."""
        self.counts.reopened += self.opened
        self.void()
        self.opened = self.answered = False
        self.due = self.prefilled_by = by

    def expect(self, deadline: float) -> None:
        """Updates `due` after a step was sent: its verdict must come before `deadline`, unless a verdict was awaited
        already, whose deadline stays."""
        if not self.owed:
            self.due = None if self.opened else self.prefilled_by
        elif self.due is None:
            self.due = deadline if self.answered else max(deadline, self.prefilled_by)

    def _measure_trip(self, verdict: Verdict, now: float) -> float | None:
        """Counts the round trip of the oldest unmeasured proposal, if this is its first verdict."""
        if not self._sent or self._sent[0].timed:
            return None
        self._sent[0].timed = True
        seconds = max(0.0, now - self._sent[0].at - verdict.queue_seconds - verdict.verify_seconds)
        self.counts.round_trips += 1
        self.counts.round_trip_seconds += seconds
        self.trip = seconds
        return seconds if self._sent[0].alone else None

    def _draft_outcomes(self) -> Iterator[DraftOutcome]:
        """Yields the outcome of each draft once the text covers or contradicts it. After a correct draft, the grant
        that was sent with it takes effect."""
        while self._sent and (outcome := self._outcome(self._sent[0].draft)) is not None:
            yield outcome
            if outcome.accepted < outcome.drafted:  # proposals after it are void
                self._sent.clear()
                break
            self._granted = max(self._granted, self._sent.popleft().grant)
        if self.trial is not None and (outcome := self._outcome(self.trial)) is not None:
            self.trial = None
            yield outcome

    def _outcome(self, draft: _Draft) -> DraftOutcome | None:
        """Returns a draft's outcome; None if the text agrees but does not reach the draft's end."""
        decided = self.guess.tokens[draft.start : self.guess.decided]
        agreed, drafted = alike(decided, draft.tokens), len(draft.tokens)
        if agreed == drafted:
            return DraftOutcome(draft.kind, drafted, drafted)
        return DraftOutcome(draft.kind, agreed + 1, agreed) if agreed < len(decided) else None
