"""The sequences that a link has open: each one's text, what the verifier has in hand of it, and until when it may take.

Follows each text by the rules of `verification.proto`, so that it can be opened anew, and a verdict that cannot be
true is seen. No clock and no lock of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from draftd.engine.remote.verifier_link import Open, Step, Verdict, left_of
from draftd.errors import DraftdError

_LEAST_PREFILL_SECONDS = 10.0  # of an opened text, until the verifier's first verdict
_PREFILL_SLACK = 3  # times what the verifier said of a token of a prompt
_EARLY = 64  # steps kept of a sequence that waits for a connection
_QUEUES = 16  # verdicts whose queue is remembered


@dataclass(slots=True)
class _Sequence:
    """`guess` and `run`: what the verifier has in hand, as far as is known. Of the connection: `sent`, it has had the
    `Open`; `told`, the verifier has `Opened` it; `answered`, with a verdict since. `early`: steps before the first
    `Opened`, which another connection would have again. `live`: steps are taken; not from a connection that was lost
    after its `Opened` until the engine has received the next one."""

    opened: Open
    text: list[int]
    guess: list[int] = field(default_factory=list)
    run: int = 0
    early: deque[Step] = field(default_factory=lambda: deque(maxlen=_EARLY))
    sent: bool = False
    told: bool = False
    answered: bool = False
    live: bool = True
    resumed: bool = False
    finished: bool = False  # a verdict has ended its text
    over: bool = False  # that, or the engine has closed it
    prefilled_by: float = 0.0
    due: float | None = None  # when the verifier must have said something

    @property
    def owed(self) -> bool:
        return bool(self.guess) or self.run > 0


class BrokenRule(DraftdError):
    """The verifier said what cannot be true."""


class Sequences:
    """`step_seconds` is the deadline of a verdict besides the verifier's queue; `prefill_seconds` what the verifier
    takes for a token of a prompt, 0 where that is not known; `vocabulary` how many ids it has."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self.prefill_seconds, self.vocabulary = 0.0, 2**32
        self._open: dict[int, _Sequence] = {}
        self._queues: deque[float] = deque(maxlen=_QUEUES)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._open

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._open))

    # what the engine sends

    def open(self, message: Open) -> None:
        self._open[message.sequence] = _Sequence(message, list(message.tokens))

    def sent(self, sequence: int, now: float) -> tuple[Open, list[Step]]:
        """The connection gets it: its `Open`, with all its text, and the steps that waited."""
        one = self._open[sequence]
        one.sent, one.told, one.answered = True, False, False
        least = self._step_seconds + self.prefill_seconds * len(one.text) * _PREFILL_SLACK
        one.due = one.prefilled_by = now + max(least, 0.0 if self.prefill_seconds else _LEAST_PREFILL_SECONDS)
        options = replace(one.opened.options, length=len(one.text))
        early = list(one.early)
        for step in early:
            self._took(one, step, now)
        return replace(one.opened, tokens=tuple(one.text), options=options), early

    def step(self, step: Step, now: float) -> bool:
        """Whether the connection is to get it."""
        one = self._open.get(step.sequence)
        if one is None or not one.live:
            return False
        if not one.told and not one.resumed:
            one.early.append(step)
        if one.sent:
            self._took(one, step, now)
        return one.sent

    def close(self, sequence: int, now: float) -> None:
        """The engine has closed it: from here on nothing is awaited but `Closed`."""
        if (one := self._open.get(sequence)) is not None:
            self._end(one, now)

    # what the verifier sends

    def opened(self, sequence: int, now: float) -> bool:
        """Whether it is one of those that are open, and was not told before."""
        one = self._open.get(sequence)
        if one is None or not one.sent or one.told:
            return False
        one.told = True
        one.early.clear()
        if not one.over:
            one.due = one.due if one.owed else None
        return True

    def verdict(self, verdict: Verdict, now: float) -> bool:
        """Whether it is of an open sequence. Raises BrokenRule where it does not go on from the text, or has tokens or
        counts that there cannot be."""
        one = self._open.get(verdict.sequence)
        if one is None or not one.sent:
            return False
        tokens = verdict.tokens
        what = f"sequence {verdict.sequence}: a verdict"
        if verdict.known != len(one.text):
            raise BrokenRule(f"{what} goes on from token {verdict.known} of a text of {len(one.text)}")
        if not verdict.possible:
            raise BrokenRule(f"{what} has {len(tokens)} tokens, {verdict.accepted} accepted of {verdict.drafted}")
        if len(one.text) >= one.opened.options.prompt + one.opened.max_tokens:
            raise BrokenRule(f"{what} follows an answer of {one.opened.max_tokens} tokens")
        if max(tokens) >= self.vocabulary:
            raise BrokenRule(f"{what} has token {max(tokens)} of a vocabulary of {self.vocabulary}")
        one.guess = left_of(one.guess, verdict)
        one.text += tokens
        if not verdict.drafted:
            one.run = max(0, one.run - len(tokens))
        one.answered = True
        self._queues.append(verdict.queue_seconds)
        if verdict.finished is not None:
            one.finished = True
            self._end(one, now)
        elif not one.over:
            one.due = self._deadline(now) if one.owed else None
        return True

    def closed(self, sequence: int) -> bool | None:
        """It is forgotten. True where it was being resumed, so that the refusal is the link's loss; None where it was
        not open."""
        one = self._open.pop(sequence, None)
        return None if one is None else one.resumed and not one.told

    # the connection

    def suspend(self) -> list[int]:
        """The connection is lost, with what the verifier had in hand; a verdict that was due is still due. Returns
        those that were over, now forgotten."""
        over = [number for number, one in self._open.items() if one.over]
        for number in over:
            del self._open[number]
        for one in self._open.values():
            one.guess.clear()
            one.run = 0
            one.sent = False
            if one.told:
                one.told, one.live, one.resumed = False, False, True
        return over

    def received(self, sequence: int) -> None:
        """The engine has received its `Opened`."""
        one = self._open.get(sequence)
        if one is not None and one.sent and one.told:
            one.live = True

    def overdue(self, now: float) -> list[int]:
        return [number for number, one in self._open.items() if one.due is not None and one.due < now]

    def finished(self, sequence: int) -> bool:
        """Whether a verdict has ended its text."""
        return sequence in self._open and self._open[sequence].finished

    def awaited(self, sequence: int) -> bool:
        """Whether a verdict is waited for, not just the end of it."""
        return not self._open[sequence].over

    def _took(self, one: _Sequence, step: Step, now: float) -> None:
        """Applies it as the verifier will, if the texts are the same by then."""
        text, guess, proposed = one.text, one.guess, list(step.proposed)
        place = step.known - len(text)  # in the guess, where the proposal begins
        if step.known < 1 or place > len(guess):
            return
        if step.last != (text[step.known - 1] if place <= 0 else guess[place - 1]):
            return
        one.run = step.run
        late = max(0, -place)  # tokens of the proposal that the text has already
        if proposed[:late] == text[step.known : step.known + len(proposed)]:
            proposed, place = proposed[late:], max(0, place)
            if guess[place : place + len(proposed)] != proposed:
                one.guess = guess[:place] + proposed
        if one.over:
            return
        if not one.owed:
            one.due = None if one.told else one.prefilled_by
        elif one.due is None:
            one.due = self._deadline(now) if one.answered else max(self._deadline(now), one.prefilled_by)

    def _deadline(self, now: float) -> float:
        return now + self._step_seconds + max(self._queues, default=0.0)

    def _end(self, one: _Sequence, now: float) -> None:
        one.over, one.due = True, self._deadline(now)
