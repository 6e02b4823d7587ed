"""The seam between the operations that ranks execute and their transport: records from rank 0 to all followers, in
order.

A record is one operation on caches, as a JSON list of the operation and its arguments. Caches and cached prefixes have
numbers, given by rank 0. Token ids travel with the forward itself. The transport keeps the order and detects damage. A
lost record ends the group: nothing is sent twice.
"""

from __future__ import annotations

import enum
import json
from typing import Any, NamedTuple, Protocol

from draftd.errors import NotServing
from draftd.group import Loss

_to_json = json.JSONEncoder(separators=(",", ":")).encode  # one encoder: `json.dumps` makes one for each record


class Op(enum.StrEnum):
    """The operations, each with its arguments."""

    NEW = "new"  # new caches without rows, the fields of their layout
    FRESH = "fresh"  # caches of the same model, new caches, lengths
    FORWARD = "forward"  # caches, width, widths, positions read by row or None
    ROLLBACK = "rollback"  # caches, lengths
    SPLIT = "split"  # caches, new caches, rows, rest
    JOIN = "join"  # caches, joining caches
    SELECT = "select"  # caches, rows
    CLEAR = "clear"  # caches
    PRETEND = "pretend"  # caches, lengths
    EXTRACT = "extract"  # caches, new prefix, row, start, end
    RESTORE = "restore"  # caches, prefixes, lengths
    HALVE = "halve"  # prefix, its new first part, its new rest, length of the first part
    DROP = "drop"  # caches, prefixes
    GIVE_BACK = "give_back"  # no arguments: returns freed memory to the system


class RecordError(Exception):
    """The error for bytes that are not a record."""


def encode_record(op: Op, *arguments: Any) -> bytes:
    return _to_json([op, *arguments]).encode()


def decode_record(data: bytes) -> tuple[Op, list[Any]]:
    """Returns the operation and its arguments. Raises RecordError."""
    try:
        op, *arguments = json.loads(data)
        return Op(op), arguments
    except (ValueError, TypeError) as error:
        raise RecordError(f"{data[:80]!r} is not a record from rank 0 ({error})") from None


class RanksLost(NotServing):
    """The error for a group that has ended: no rank executes anything more, and the group starts again."""

    def __init__(self, loss: Loss, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.loss = loss


class Progress(NamedTuple):
    """One rank's progress since the group started: executed records, memory in use and allowed (0: unknown), and time
    in collectives."""

    records: int = 0
    memory_bytes: int = 0
    limit_bytes: int = 0
    collective_seconds: float = 0.0


class RecordSender(Protocol):
    """Rank 0's end of the channel. Engine thread only."""

    def send(self, record: bytes) -> None:
        """Sends a record to all followers before rank 0 executes it. Raises RanksLost after a deadline."""

    def report_progress(self, progress: Progress) -> None:
        """Reports what rank 0 has executed or dispatched. Called after each record, so it must be cheap. Rank 0 does
        not wait for each forward; a forward that never ends shows in the followers' reports."""


class RecordReceiver(Protocol):
    """A follower's end of the channel. Used only by the thread that executes records."""

    def receive(self) -> bytes | None:
        """Waits for the next record and returns it; None when the group ends normally. No time limit, because an idle
        group sends nothing: a watchdog thread of the channel ends the process if rank 0 is lost."""

    def ready(self, seconds: float) -> bool:
        """Whether a record arrives within `seconds`. A follower with time to spare completes and reports its work
        before it waits."""

    def report_progress(self, progress: Progress) -> None:
        """Reports what was computed. A thread of the channel sends it to rank 0 about once a second."""
