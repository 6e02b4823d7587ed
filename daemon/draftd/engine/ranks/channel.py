"""The seam between what ranks execute and what carries it: records from rank 0 to all followers, in order.

A record is one operation on caches, as JSON: a list of the operation, and what this takes. Caches and cached prefixes
go by numbers that rank 0 gives. No tokens: they come with the forward itself. What carries records keeps their order
and detects damage. What is lost ends the group: nothing is sent twice."""

from __future__ import annotations

import enum
import json
from typing import Any, NamedTuple, Protocol

from draftd.errors import NotServing
from draftd.group import Loss

_to_json = json.JSONEncoder(separators=(",", ":")).encode  # made once: `json.dumps` would make one for each record


class Op(enum.StrEnum):
    """With what it takes."""

    NEW = "new"  # caches, the fields of their layout: of the model, with no rows
    FRESH = "fresh"  # caches of which, new caches, lengths
    FORWARD = "forward"  # caches, width, widths, the positions of each row that are read or None
    ROLLBACK = "rollback"  # caches, lengths
    SPLIT = "split"  # caches, new caches, rows, rest
    JOIN = "join"  # caches, those that join
    SELECT = "select"  # caches, rows
    CLEAR = "clear"  # caches
    PRETEND = "pretend"  # caches, lengths
    EXTRACT = "extract"  # caches, new prefix, row, start, end
    RESTORE = "restore"  # caches, prefixes, lengths
    HALVE = "halve"  # prefix, its new first part, its new rest, length of the first part
    DROP = "drop"  # caches, prefixes
    GIVE_BACK = "give_back"  # freed memory, to the system


class RecordError(Exception):
    """Bytes that are no record."""


def encode_record(op: Op, *arguments: Any) -> bytes:
    return _to_json([op, *arguments]).encode()


def decode_record(data: bytes) -> tuple[Op, list[Any]]:
    """The operation, and what it takes. Raises RecordError."""
    try:
        op, *arguments = json.loads(data)
        return Op(op), arguments
    except (ValueError, TypeError) as error:
        raise RecordError(f"{data[:80]!r} is no record ({error})") from None


class RanksLost(NotServing):
    """The group has ended and begins anew: no rank executes anything any more."""

    def __init__(self, loss: Loss, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.loss = loss


class Progress(NamedTuple):
    """One rank since the group began: the records that it has executed, the memory that it holds and may hold (0: not
    known), and its time in collectives."""

    records: int = 0
    memory_bytes: int = 0
    limit_bytes: int = 0
    collective_seconds: float = 0.0


class RecordSender(Protocol):
    """Rank 0's end. Engine thread only."""

    def send(self, record: bytes) -> None:
        """To all followers, before rank 0 executes the same. Bounded by a deadline: raises RanksLost."""

    def report_progress(self, progress: Progress) -> None:
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

    def report_progress(self, progress: Progress) -> None:
        """So much was computed. Told to rank 0 about once a second, by a thread of the channel."""
