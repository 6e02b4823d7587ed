"""The verifier's side of a sequence that another daemon (the peer) drafts for: proposals in, verdicts out."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Unpack

from draftd.core import StepFigures
from draftd.engine.guess import Guess
from draftd.engine.remote.verifier_link import Proposal, SequenceOpened, Verdict

_MOST_GUESSED = 256  # tokens: enough for 16 steps of 16 on their way
_RECENT = 0.25  # weight of the latest delay between a verdict and the next step


class _StepTimes:
    """When a peer's steps arrive: how long they wait here, and how soon they follow a verdict."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._arrived = deque[tuple[int, float]]()  # pending steps: their end in the text, and their arrival
        self._told_at: float | None = None  # time of the last verdict, if no step has come since
        self._answers = 0.0  # recent seconds from a verdict to the next step

    @property
    def expected(self) -> float:
        """The likely time of the next step."""
        return math.inf if self._told_at is None else self._told_at + self._answers

    @property
    def waited(self) -> float:
        """Seconds that the oldest pending step has waited; 0 without one."""
        return self._clock() - self._arrived[0][1] if self._arrived else 0.0

    def answer(self) -> None:
        """Notes that the peer has answered the last verdict."""
        if self._told_at is not None:
            took, self._told_at = self._clock() - self._told_at, None
            self._answers += _RECENT * (took - self._answers) if self._answers else took

    def add(self, end: int) -> None:
        """Adds a step that ends at position `end` of the text."""
        self._arrived.append((end, self._clock()))

    def tell(self, decided: int) -> None:
        """Notes a verdict, and drops the steps that end within the `decided` tokens."""
        self._told_at = self._clock()
        while self._arrived and self._arrived[0][0] <= decided:
            self._arrived.popleft()


class PeerSequence:
    """The `Proposals` of a peer. It has a copy of the text, so a step is checked on arrival, on any thread."""

    def __init__(
        self,
        sequence: int,
        tokens: Sequence[int],
        tell: Callable[[SequenceOpened | Verdict], None],
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        deepest: int = _MOST_GUESSED,
        readable: Callable[[], bool] = lambda: True,
    ) -> None:
        """`sequence`: the peer's number for it; `tokens`: its text when opened. `tell`: called on the engine thread for
        each step of the target; must neither block nor raise. `wake`: called on the offering thread when an accepted
        step gives the engine work. `deepest`: the most guessed tokens in a step. `readable`: whether the peer reads its
        messages; while it does not, the sequence rests."""
        self._sequence, self._tell, self._wake, self._times = sequence, tell, wake, _StepTimes(clock)
        self._deepest, self._readable = deepest, readable
        self._lock = threading.Lock()
        self._guess = Guess(list(tokens))
        self.granted = 0  # tokens that may be decoded without a proposal
        self._last: Proposal | None = None  # the last step since the last verdict
        self._ended = False
        self._drafting = 0  # guessed tokens in the running forward
        self._queued = 0.0  # seconds that the oldest of these steps waited
        self.stale = 0  # steps that contradicted the text
        self.wasted = 0  # guessed tokens that were dropped unverified

    # any thread

    def offer(self, step: Proposal) -> bool:
        """Takes a step, whose token ids must be valid. Returns False if it is stale."""
        with self._lock:
            taken = self._take(step)
            self.stale += not taken
            due = self.granted > 0 or bool(self._guess)
        if taken and due:
            self._wake()
        return taken

    # the engine thread

    def report_opened(self, cached: int) -> None:
        self._tell(SequenceOpened(self._sequence, cached))

    def due(self, tokens: Sequence[int]) -> bool:
        return (self.granted > 0 or bool(self._guess)) and self._readable()

    @property
    def streams(self) -> bool:
        return self.granted > 1 and not self._guess

    @property
    def expected(self) -> float:
        return self._times.expected

    def guess(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """Returns the guessed tokens for the forward that starts now."""
        with self._lock:
            assert len(tokens) == self._guess.decided, "the engine has told of all its steps"
            pending = self._guess.pending[: min(most, self._deepest)]
            self._drafting = len(pending)
            self._queued = self._times.waited if pending else 0.0
        return pending

    def report_step(self, tokens: Sequence[int], accepted: int, drafted: int, **figures: Unpack[StepFigures]) -> None:
        with self._lock:
            queued, decided, before = self._queued if drafted else 0.0, self._guess.decided, len(self._guess)
            verdict = Verdict(
                self._sequence, decided, tuple(tokens), accepted, drafted, queue_seconds=queued, **figures
            )
            agreed = self._guess.decide(tokens)
            if agreed < len(tokens):
                self.wasted += max(0, before - max(drafted, agreed))
            if not drafted:
                self.granted = max(0, self.granted - len(tokens))
            self._drafting, self._last = 0, None
            self._times.tell(self._guess.decided if self._guess else sys.maxsize)
            if verdict.finished is not None:
                self._ended, self.granted = True, 0
                self.wasted += self._guess.cut()
        self._tell(verdict)

    # under the lock

    def _take(self, step: Proposal) -> bool:
        """Takes a step if it agrees with the text, and returns whether it does. A repeated step changes nothing."""
        if step == self._last:
            return not self._ended
        before = len(self._guess)
        dropped = None if self._ended else self._guess.propose(step.length, step.last, step.proposed)
        if dropped is None:
            return False
        self._last, self.granted = step, step.run
        self._times.answer()
        if dropped or len(self._guess) > before:
            self.wasted += min(dropped, max(0, before - self._drafting)) + self._guess.cut(_MOST_GUESSED)
            self._times.add(len(self._guess.tokens))
        return True
