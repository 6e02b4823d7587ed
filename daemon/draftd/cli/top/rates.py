"""Rates from a daemon's counters in successive snapshots, and the history that a screen is drawn from.

No clock, no terminal, no connection. An unknown value is None, never zero.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from draftd.cli.figures import ratio
from draftd.counts import DraftCounts
from draftd.protocol import draft_counts
from draftd.v1 import control_pb2 as control

WINDOW_SECONDS = 60.0
_MOST_COLUMNS = 400  # more than the widest terminal has


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """A status, and when it was read, in the client's monotonic seconds."""

    at: float
    status: control.GetStatusResponse


@dataclass(frozen=True, slots=True)
class DraftRates:
    """How well drafts did; None where nothing was counted. `acceptance`: accepted / drafted tokens; `per_position`: the
    same by position in the block, up to the longest block drafted. `depth`: mean tokens of a draft; `mean_length`: mean
    tokens that a step with a draft gives, the target's own one included. `drafting`, `parked`: shares of all steps that
    drafted, or did not because it would not pay. `speedup`: over autoregressive decoding, by the steps' measured cost.
    `tokens_per_forward`: output tokens for each forward pass of the target."""

    acceptance: float | None
    per_position: tuple[float | None, ...]
    mean_length: float | None
    depth: float | None
    drafting: float | None
    parked: float | None
    speedup: float | None
    tokens_per_forward: float | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates and counts between two snapshots that are `seconds` apart. `tokens_per_second`: of answers;
    `prompt_tokens_per_second`: computed ones. `finished`, for whatever reason, `failed`, `refused`: numbers of
    requests. `hidden`: the share of round trips to the remote that were not waited for. `collective`: the share of the
    time spent in exchange between ranks, by rank."""

    seconds: float
    tokens_per_second: float
    prompt_tokens_per_second: float
    finished: int
    failed: int
    refused: int
    drafting: DraftRates
    hidden: float | None = None
    collective: Mapping[int, float] = field(default_factory=dict)


def drafting(counts: DraftCounts) -> DraftRates:
    """Computes the rates from all counts."""
    return DraftRates(
        acceptance=counts.acceptance,
        per_position=tuple(map(ratio, counts.accepted_per_position, counts.drafted_per_position)),
        mean_length=counts.mean_accepted_length,
        depth=ratio(counts.drafted, counts.drafts),
        drafting=ratio(counts.drafts, counts.steps),
        parked=ratio(counts.parked_steps, counts.steps),
        speedup=counts.speedup,
        tokens_per_forward=ratio(counts.emitted, counts.target_forwards),
    )


def between(before: StatusSnapshot, after: StatusSnapshot) -> Rates | None:
    """Returns the rates between two snapshots; None if they are of different runs, or no time is between them. Within a
    run no counter falls, except those of a group of ranks."""
    old, new, seconds = before.status, after.status, after.at - before.at
    if seconds <= 0 or old.started != new.started:
        return None
    counts = _counts(new).combine(_counts(old), operator.sub)
    return Rates(
        seconds,
        tokens_per_second=counts.emitted / seconds,
        prompt_tokens_per_second=(new.prefilled_tokens - old.prefilled_tokens) / seconds,
        finished=sum(new.finished_requests.values()) - sum(old.finished_requests.values()),
        failed=failures(new) - failures(old),
        refused=new.refused_requests - old.refused_requests,
        drafting=drafting(counts),
        hidden=ratio(
            new.remote.counts.hidden_round_trips - old.remote.counts.hidden_round_trips,
            new.remote.counts.verdicts - old.remote.counts.verdicts,
        ),
        collective=_collective(old.group, new.group, seconds),
    )


def _collective(old: control.GroupStatus, new: control.GroupStatus, seconds: float) -> dict[int, float]:
    """Returns each rank's share of time in collectives; empty if the group was restarted, which resets its counters."""
    if (old.starts, len(old.ranks)) != (new.starts, len(new.ranks)):
        return {}
    spent = [
        after.collective.ToTimedelta() - before.collective.ToTimedelta()
        for before, after in zip(old.ranks, new.ranks, strict=True)
    ]
    return {
        rank.rank: min(1.0, max(0.0, time.total_seconds()) / seconds)
        for rank, time in zip(new.ranks, spent, strict=True)
    }


def _counts(status: control.GetStatusResponse) -> DraftCounts:
    return draft_counts(status.counts, status.output_tokens)


def failures(status: control.GetStatusResponse) -> int:
    """Counts requests that ended in an error of the daemon's."""
    return int(status.finished_requests.get("error", 0))


class StatusHistory:
    """The figures to draw. `status`: the latest, of the daemon at `target`; `minute`: rates of the last minute, or as
    much of it as was seen; `whole`: since the daemon started.

    Takes snapshots in order. One of another run of the daemon begins a new window; the curve continues.
    """

    def __init__(self, target: str, first: StatusSnapshot) -> None:
        self.target = target
        self._snapshots: deque[StatusSnapshot] = deque()
        #: The curve's values: the rates between successive snapshots, None if they are unknown.
        self.past: deque[Rates | None] = deque(maxlen=_MOST_COLUMNS)
        self._take(first)

    def add(self, snapshot: StatusSnapshot) -> None:
        last = self._snapshots[-1]
        self.past.append(between(last, snapshot))
        if last.status.started != snapshot.status.started:
            self._snapshots.clear()
        self._take(snapshot)

    def _take(self, snapshot: StatusSnapshot) -> None:
        self._snapshots.append(snapshot)
        # One snapshot from before the window stays, for comparison.
        while len(self._snapshots) > 1 and self._snapshots[1].at <= snapshot.at - WINDOW_SECONDS:
            self._snapshots.popleft()
        self.status, self.at = snapshot.status, snapshot.at
        self.minute = between(self._snapshots[0], snapshot)
        self.whole = drafting(_counts(snapshot.status))

    def gap(self) -> None:
        """Notes that the daemon did not answer: the current rates are unknown."""
        self.past.append(None)

    @property
    def now(self) -> Rates | None:
        """The rates between the last two snapshots."""
        return self.past[-1] if self.past else None
