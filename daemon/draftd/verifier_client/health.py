"""The health of a link and its verifier: round trips, errors, and when to connect again.

The objects have no lock of their own: the link holds its lock when it uses them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from draftd.strategies import LinkFailure
from draftd.verifier_client.connection import Traffic
from draftd.verifier_client.failures import LinkError

TRIP = 3
"""Errors in a row, without a verdict between them, that take the link down."""
_PING_SECONDS, _FIRST_PINGS = 1.0, 4  # the first pings come faster, so that the round trip is soon known
_FIRST_PING_SECONDS = 0.1
_LEAST_OF = 4  # round trips, the least of which is smoothed: it waited in no queue
_SMOOTHING = 0.25


class Pings:
    """The pings on the link's connection. `round_trip`: smoothed seconds; None until the first answer."""

    def __init__(self, tick: float) -> None:
        """`tick`: the longest time between checks of pings, in seconds."""
        self.round_trip: float | None = None
        self._tick = tick
        self._sent: dict[int, float] = {}  # when each ping without an answer was sent
        self._due_at, self._nonce = 0.0, 0
        self._latest: deque[float] = deque(maxlen=_LEAST_OF)

    def restart(self, now: float) -> None:
        """Begins with a new connection."""
        self._sent.clear()
        self._latest.clear()
        self._due_at = now

    def late(self, seconds: float, now: float) -> bool:
        """Whether a ping has had no answer for longer than `seconds`."""
        return bool(self._sent) and now - min(self._sent.values()) > seconds

    def take_due(self, now: float) -> int | None:
        """Returns the number of the ping that must be sent now; None if none is due."""
        if now < self._due_at:
            return None
        self._nonce += 1
        self._sent[self._nonce] = now
        slow = len(self._latest) >= _FIRST_PINGS
        self._due_at = now + (_PING_SECONDS if slow else _FIRST_PING_SECONDS)
        return self._nonce

    def wait_seconds(self, now: float) -> float:
        """Returns the seconds until the next check of pings."""
        return max(0.0, min(self._tick, self._due_at - now))

    def answer(self, nonce: int, now: float) -> None:
        """Takes the answer to a ping. Raises LinkError for a ping that was not sent."""
        if (sent_at := self._sent.pop(nonce, None)) is None:
            raise LinkError(LinkFailure.BROKEN_RULE, "the verifier answered a ping that was not sent")
        self._latest.append(now - sent_at)
        least, before = min(self._latest), self.round_trip
        self.round_trip = least if before is None else before + _SMOOTHING * (least - before)


class LinkCounts:
    """Counts of a link: bytes, errors, and failures by kind."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.errors = 0
        self.failures: Counter[LinkFailure] = Counter(dict.fromkeys(LinkFailure, 0))  # no key is added later
        self._streak = 0  # errors since the last verdict
        self._failing = False  # no verdict has come since an error

    @property
    def tripped(self) -> bool:
        """Whether there were so many errors in a row that the link goes down."""
        return self._streak >= TRIP

    def add_error(self) -> None:
        """Counts an error. Errors count as one until a verdict comes again: readers of the count judge the verifier,
        not how often this daemon tried."""
        self.errors += not self._failing
        self._failing = True
        self._streak += 1

    def add_refusal(self, *, final: bool) -> None:
        """Counts a refused sequence. `final`: a retry does not help, so it is an error, too."""
        self.errors += final
        self.failures[LinkFailure.REFUSED] += 1

    def end_streak(self) -> None:
        """Ends a streak of errors: a verdict has come."""
        self._streak, self._failing = 0, False

    def expect_verdict(self) -> None:
        """Prepares for the next connection: its first error takes the link down, unless a verdict comes before."""
        self._streak = TRIP - 1


class ReconnectSchedule:
    """When a link that is down connects again."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._at: float | None = None  # None while no attempt is planned
        self._jitter = jitter
        self._tried_at = 0.0

    def note_attempt(self, now: float) -> None:
        self._tried_at = now

    def plan(self, period: float) -> None:
        """Plans the next attempt one period, with jitter, after the last."""
        self._at = self._tried_at + period * self._jitter()

    def hasten(self, now: float) -> bool:
        """Moves a planned attempt to now. Returns whether one was planned."""
        if self._at is None:
            return False
        self._at = now
        return True

    def cancel(self) -> None:
        self._at = None

    def seconds_left(self, now: float) -> float | None:
        """Returns the seconds until the next attempt; None if none is planned."""
        return None if self._at is None else max(0.0, self._at - now)
