"""Figures from a daemon's counters: what successive snapshots say of the time between, and what a screen is drawn from.

No clock, no terminal, no connection. What is not known is None, never zero.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from draftd.v1 import control_pb2 as control
from draftd.v1 import inference_pb2 as pb

WINDOW_SECONDS = 60.0
CURVE_SECONDS = 600.0
_CURVE_LOOKS = 300  # as many as the widest terminal has columns for


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A status, and when it was asked for: monotonic seconds of the asker."""

    at: float
    status: control.GetStatusResponse


@dataclass(frozen=True, slots=True)
class Drafting:
    """How drafts have fared. Shares from 0 to 1.

    `per_position` has as many entries as tokens were drafted at a time at most; the first token drafted comes first.
    """

    acceptance: float | None  # accepted over drafted
    per_position: tuple[float | None, ...]
    mean_length: float | None  # tokens a draft, the bonus counted
    depth: float | None  # tokens drafted in a step that drafted any
    drafting: float | None  # share of steps that drafted any
    parked: float | None  # share of steps that drafted nothing because it did not pay
    speedup: float | None  # over autoregressive decoding, by the steps' measured cost
    tokens_per_forward: float | None  # output tokens for each forward pass of the target


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two snapshots, `seconds` apart."""

    seconds: float
    tokens_per_second: float
    finished: int  # for whatever reason
    failed: int
    refused: int
    drafting: Drafting


def drafting(counts: pb.DraftCounts, output_tokens: int) -> Drafting:
    """Of everything that is counted in `counts`."""
    drafts, drafted = counts.drafts, counts.drafted_tokens
    # A daemon that does not measure what a step costs sends 0; measured, a draft is never for nothing.
    known = drafts > 0 and counts.break_even_tokens > 0
    return Drafting(
        acceptance=_over(counts.accepted_tokens, drafted),
        per_position=tuple(map(_over, counts.accepted_per_position, counts.drafted_per_position)),
        mean_length=1 + counts.accepted_tokens / drafts if drafts else None,
        depth=_over(drafted, drafts),
        drafting=_over(drafts, counts.steps),
        parked=_over(counts.parked_steps, counts.steps),
        speedup=(drafts + counts.accepted_tokens) / (drafts + counts.break_even_tokens) if known else None,
        tokens_per_forward=_over(output_tokens, counts.target_forwards),
    )


def same_run(before: control.GetStatusResponse, after: control.GetStatusResponse) -> bool:
    """False where the daemon was started anew in between: its counters began at zero again."""
    return bool(before.started == after.started)


def between(before: Snapshot | None, after: Snapshot) -> Rates | None:
    """None where there is nothing to compare with: no earlier snapshot, one of another run, or no time in between."""
    if before is None or after.at <= before.at or not same_run(before.status, after.status):
        return None
    old, new = before.status, after.status
    counts = _difference(old.counts, new.counts)
    tokens = new.output_tokens - old.output_tokens
    finished = sum(new.finished_requests.values()) - sum(old.finished_requests.values())
    failed = failures(new) - failures(old)
    refused = new.refused_requests - old.refused_requests
    if counts is None or min(tokens, finished, failed, refused) < 0:
        return None
    seconds = after.at - before.at
    return Rates(seconds, tokens / seconds, finished, failed, refused, drafting(counts, tokens))


def failures(status: control.GetStatusResponse) -> int:
    """Requests that ended in an error of the daemon's."""
    return int(status.finished_requests.get("error", 0))


_COUNTERS = (
    "steps", "drafts", "parked_steps", "drafted_tokens", "accepted_tokens", "target_forwards", "break_even_tokens",
)  # fmt: skip
_BY_POSITION = ("drafted_per_position", "accepted_per_position")


def _difference(before: pb.DraftCounts, after: pb.DraftCounts) -> pb.DraftCounts | None:
    """None where a counter has gone back."""
    made: dict[str, Any] = {name: getattr(after, name) - getattr(before, name) for name in _COUNTERS}
    grown = list(made.values())
    for name in _BY_POSITION:
        pairs = zip_longest(getattr(after, name), getattr(before, name), fillvalue=0)
        made[name] = [later - earlier for later, earlier in pairs]
        grown += made[name]
    return pb.DraftCounts(**made) if min(grown) >= 0 else None


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class Interval:
    """What was so between two snapshots: tokens per second, and the acceptance where anything was drafted."""

    begin: float
    end: float
    rate: float
    acceptance: float | None


class History:
    """Fed with snapshots in order. One of another run of the daemon begins a new window; the curve goes on."""

    def __init__(self, window: float = WINDOW_SECONDS, curve: float = CURVE_SECONDS) -> None:
        self._window, self._curve = window, curve
        self._snapshots: deque[Snapshot] = deque()
        self.intervals: deque[Interval] = deque()  # what the curve is drawn from
        self.now: Rates | None = None  # between the last two snapshots

    def add(self, snapshot: Snapshot) -> None:
        last = self.latest
        self.now = between(last, snapshot)
        if last is not None and (self.now is None or not same_run(last.status, snapshot.status)):
            self._snapshots.clear()
        if last is not None and self.now is not None:
            self.intervals.append(
                Interval(last.at, snapshot.at, self.now.tokens_per_second, self.now.drafting.acceptance)
            )
        self._snapshots.append(snapshot)
        # One from before the window stays, to be compared with.
        while len(self._snapshots) > 1 and self._snapshots[1].at <= snapshot.at - self._window:
            self._snapshots.popleft()
        while self.intervals and self.intervals[0].end <= snapshot.at - self._curve:
            self.intervals.popleft()

    def view(self, target: str, interval: float, at: float) -> View:
        """Of the latest snapshot, which there must be."""
        assert self.latest is not None
        status = self.latest.status
        whole = drafting(status.counts, status.output_tokens)
        return View(target, at, interval, status, self.now, self.window, whole, tuple(self.intervals))

    def gap(self) -> None:
        """The daemon did not answer: what was happening just now is not known any more."""
        self.now = None

    @property
    def latest(self) -> Snapshot | None:
        return self._snapshots[-1] if self._snapshots else None

    @property
    def window(self) -> Rates | None:
        """Over the last minute, or as much of it as was seen."""
        return between(self._snapshots[0], self._snapshots[-1]) if self._snapshots else None


def curve_seconds(interval: float) -> float:
    """How much of the past the widest terminal shows, where it is looked at every `interval` seconds."""
    return max(CURVE_SECONDS, interval * _CURVE_LOOKS)


def curve(
    intervals: Sequence[Interval],
    value: Callable[[Interval], float | None],
    *,
    columns: int,
    seconds: float,
    now: float,
) -> list[float | None]:
    """The mean of `value` in each of `columns` equal spans of the last `seconds`, oldest first; None where it was not
    seen.

    Spans begin at multiples of their length, so that what was drawn once keeps its shape as time goes on.
    """
    span = seconds / columns
    oldest = math.floor(now / span) - columns + 1
    sums, seen = [0.0] * columns, [0.0] * columns
    for interval in intervals:
        known = value(interval)
        if known is None:
            continue
        for index in range(max(math.floor(interval.begin / span), oldest), math.floor(interval.end / span) + 1):
            shared = min(interval.end, (index + 1) * span) - max(interval.begin, index * span)
            if shared > 0 and index - oldest < columns:
                sums[index - oldest] += shared * known
                seen[index - oldest] += shared
    return [total / time if time else None for total, time in zip(sums, seen, strict=True)]


@dataclass(frozen=True, slots=True)
class View:
    """What one frame of the screen is drawn from. `at` is the time of the curve's right edge, `now` is of the last two
    snapshots, `minute` of the window, `whole` of the daemon's life."""

    target: str
    at: float
    interval: float
    status: control.GetStatusResponse
    now: Rates | None
    minute: Rates | None
    whole: Drafting
    intervals: Sequence[Interval]
