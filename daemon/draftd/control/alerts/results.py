"""What becomes of a notification, and of a poll: the reasons that are counted."""

from __future__ import annotations

import enum


class Result(enum.StrEnum):
    """What became of one notification, or of what came instead of one."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # all of it was known
    OUT_OF_ORDER = "out_of_order"  # all of it is older than what is known
    FULL = "full"  # as many alerts hold as may
    NO_LEVEL = "no_level"  # none of it asks for a level: for people
    OTHER_INSTANCE = "other_instance"  # none of it is about this daemon

    NO_CREDENTIALS = "no_credentials"
    BAD_TOKEN = "bad_token"
    BAD_SIGNATURE = "bad_signature"
    NO_TIMESTAMP = "no_timestamp"
    BAD_TIMESTAMP = "bad_timestamp"
    STALE = "stale"
    REPLAYED = "replayed"

    BAD_HTTP = "bad_http"
    BAD_PATH = "bad_path"
    BAD_METHOD = "bad_method"
    BAD_ENCODING = "bad_encoding"
    TOO_LARGE = "too_large"
    SLOW = "slow"
    CUT_SHORT = "cut_short"  # its sender hung up
    CROWDED_OUT = "crowded_out"  # it was the oldest of too many connections

    MALFORMED = "malformed"  # no JSON
    INVALID = "invalid"  # JSON, but no notification
    BAD_LEVEL = "bad_level"
    UNKNOWN_ALERT = "unknown_alert"

    RATE_LIMITED = "rate_limited"
    BUSY = "busy"  # 503: the sender tries again
    FAILED = "failed"  # 500: a bug


class PollResult(enum.StrEnum):
    """What became of one poll."""

    OK = "ok"
    UNREACHABLE = "unreachable"
    SLOW = "slow"
    REFUSED = "refused"  # a status that is not 200
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    BUSY = "busy"  # what was found could not be taken
    FAILED = "failed"  # a bug


class Refused(Exception):
    """A notification that is not taken: HTTP status, what is counted, what its sender is told."""

    def __init__(self, status: int, result: Result, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.result = result
        self.message = message
        self.retry_after = retry_after
