"""How a request ends without its whole answer."""

from __future__ import annotations

import time

from draftd.core import DEADLINE_SLACK_SECONDS, FinishReason
from draftd.errors import DeadlineExceeded, DraftdError, EngineFailure, NotServing, RemoteDown
from draftd.outcome import Outcome
from draftd.service.request import Request


def reason_to_leave(request: Request) -> FinishReason:
    """Returns DEADLINE for a client that leaves at its deadline, or shortly before: its own clock began to run earlier.
    Otherwise returns CANCELLED."""
    late = request.deadline is not None and time.monotonic() >= request.deadline - DEADLINE_SLACK_SECONDS
    return FinishReason.DEADLINE if late else FinishReason.CANCELLED


def error_of(outcome: Outcome) -> DraftdError | None:
    """Returns the error that follows the answer's end; None if the answer is complete."""
    if isinstance(outcome.refused, DraftdError):
        return outcome.refused
    if outcome.reason is FinishReason.ERROR and outcome.unavailable is not None:
        return RemoteDown(outcome.error or "the remote cannot be reached", retry_after=outcome.unavailable)
    if outcome.reason is FinishReason.ERROR:
        return EngineFailure(outcome.error or "decoding failed")
    emitted = outcome.stats.counts.emitted
    if outcome.reason is FinishReason.DEADLINE:
        return DeadlineExceeded(f"the deadline passed after {emitted} tokens")
    if outcome.reason is FinishReason.CANCELLED:
        # The client did not cancel, which would have ended its task. So the daemon is stopping.
        return NotServing(f"the daemon is stopping; the answer ended after {emitted} tokens", retry_after=1.0)
    return None
