"""The seam between what ranks execute and what carries it: records from rank 0 to all followers, in order.

A record is bytes (records.py). What is lost ends the group: nothing is sent twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftd.errors import NotServing
from draftd.group import Loss


class RanksLost(NotServing):
    """The group has ended and begins anew: no rank executes anything any more."""

    def __init__(self, loss: Loss, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.loss = loss


@dataclass(frozen=True, slots=True)
class Progress:
    """Of one rank, since the group began."""

    records: int  # executed
    memory_bytes: int
    collective_seconds: float


class RecordSender(Protocol):
    """Rank 0's end. Engine thread only."""

    def send(self, record: bytes) -> None:
        """To all followers, before rank 0 executes the same. Bounded by a deadline: raises RanksLost."""

    def executed(self, progress: Progress) -> None:
        """Rank 0 has executed so much itself, or dispatched it, as it does not wait for each forward: where one never
        ends, followers tell. After each record: must be cheap."""


class RecordReceiver(Protocol):
    """A follower's end. The thread that executes only."""

    def receive(self) -> bytes | None:
        """The next record; waits for it, without a limit of its own, as an idle group sends none: a watchdog thread of
        the channel ends the process where rank 0 is lost. None: the group ends in order."""

    def ready(self, seconds: float) -> bool:
        """Whether `receive` would return now, or within so long: a follower that has time computes what it has begun,
        and reports it, before it waits."""

    def executed(self, progress: Progress) -> None:
        """So much was computed. Told to rank 0 about once a second, by a thread of the channel."""
