"""What is not known is tried, now and then, within an allowance.

A share of the time spent decoding may be lost on rounds that draft otherwise than what is known says is best. Whatever
is tried in vain waits twice as long until the next time; whatever pays, or meets a world that has changed, does not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

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
