"""Statuses of a daemon, built from the values that matter to a test."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from draftd.cli.top.rates import StatusHistory, StatusSnapshot
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2 as inference

FIRST_RUN, SECOND_RUN = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


def counts(
    drafts: int = 0, drafted: int = 0, accepted: int = 0, *, plain: int = 0, parked: int = 0,
    break_even: float | None = None, cut: int = 0,
    per_position: Sequence[tuple[int, int]] = (),
) -> inference.DraftCounts:  # fmt: skip
    """Returns counts of steps. `per_position` has (accepted, drafted); `plain` steps drafted nothing, `parked` of them
    because drafting did not pay."""
    return inference.DraftCounts(
        steps=drafts + plain,
        drafts=drafts,
        parked_steps=parked,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        cut_tokens=cut,
        target_forwards=drafts + plain,
        break_even_tokens=break_even or 0.0,
        unpriced_drafts=drafts if break_even is None else 0,
        accepted_per_position=[accepted for accepted, _ in per_position],
        drafted_per_position=[drafted for _, drafted in per_position],
    )


def status(
    tokens: int = 0, made: inference.DraftCounts | None = None, *, run: datetime = FIRST_RUN, **fields: Any
) -> pb.GetStatusResponse:
    """Returns the status of a daemon that serves `nano`, with the flag on and at level full."""
    response = pb.GetStatusResponse(
        **{
            "version": "1.2.3",
            "state": pb.DAEMON_STATE_SERVING,
            "model": inference.GetModelResponse(model="nano", draft_model="tiny", speculation_available=True),
            "queue_capacity": 64,
            "flag_variant": "on",
            "level": "full",
            "max_draft_tokens": 4,
            "flag": pb.FlagState(provider="flagd (file)"),
            **fields,
        },
        output_tokens=tokens,
        counts=made,
    )  # fmt: skip
    response.started.FromDatetime(run)
    response.uptime.seconds = response.uptime.seconds or 90
    return response


def transition(at: datetime, subject: str, previous: str, current: str, cause: str) -> pb.Transition:
    change = pb.Transition(subject=subject, previous=previous, current=current, cause=cause)
    change.at.FromDatetime(at)
    return change


def history(*statuses: pb.GetStatusResponse, seconds: float = 10.0, begin: float = 100.0) -> StatusHistory:
    """Returns a history of these statuses, `seconds` apart."""
    first, *others = (StatusSnapshot(begin + number * seconds, found) for number, found in enumerate(statuses))
    statuses_seen = StatusHistory("127.0.0.1:50551", first)
    for snapshot in others:
        statuses_seen.add(snapshot)
    return statuses_seen
