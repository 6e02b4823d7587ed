"""What a screen remembers of the snapshots so far: enough for the last minute's figures and a curve of throughput."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftd.cli.top.rates import Rates, Snapshot, between, same_run

WINDOW_SECONDS = 60.0
CURVE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Stretch:
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
        self._stretches: deque[Stretch] = deque()
        self.now: Rates | None = None  # between the last two snapshots

    def add(self, snapshot: Snapshot) -> None:
        last = self.latest
        self.now = between(last, snapshot)
        if last is not None and (self.now is None or not same_run(last.status, snapshot.status)):
            self._snapshots.clear()
        if last is not None and self.now is not None:
            self._stretches.append(
                Stretch(last.at, snapshot.at, self.now.tokens_per_second, self.now.drafting.acceptance)
            )
        self._snapshots.append(snapshot)
        # One from before the window stays, to be compared with.
        while len(self._snapshots) > 1 and self._snapshots[1].at <= snapshot.at - self._window:
            self._snapshots.popleft()
        while self._stretches and self._stretches[0].end <= snapshot.at - self._curve:
            self._stretches.popleft()

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

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        return tuple(self._stretches)


def curve(
    stretches: Sequence[Stretch],
    value: Callable[[Stretch], float | None],
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
    for stretch in stretches:
        known = value(stretch)
        if known is None:
            continue
        for index in range(max(math.floor(stretch.begin / span), oldest), math.floor(stretch.end / span) + 1):
            shared = min(stretch.end, (index + 1) * span) - max(stretch.begin, index * span)
            if shared > 0 and index - oldest < columns:
                sums[index - oldest] += shared * known
                seen[index - oldest] += shared
    return [total / time if time else None for total, time in zip(sums, seen, strict=True)]
