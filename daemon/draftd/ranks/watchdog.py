"""Decides from times alone when a process of a group is lost: for rank 0, for followers, and for a follower's
supervisor."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftd.engine.ranks.channel import Progress
from draftd.group import Loss
from draftd.ranks.frames import ping


@dataclass(slots=True)
class Vitals:
    """A process's latest signs, in monotonic seconds. `heard`: its last sign of life. `moved`: when it last executed
    something or had nothing to execute. Infinite: not watched."""

    name: str
    heard: float = math.inf
    moved: float = math.inf


@dataclass(slots=True)
class OwnRank:
    """The progress of this process's own rank, which its pings report to other ranks. `limit_bytes`: memory that this
    rank may use. `reported`: the number of executed records in the last ping."""

    vitals: Vitals
    limit_bytes: int
    progress: Progress = field(default_factory=Progress)
    reported: int = 0

    def advance(self, progress: Progress) -> None:
        """Notes the progress, and when records were executed."""
        if progress.records > self.progress.records:
            self.vitals.moved = time.monotonic()
        self.progress = progress

    def ping(self) -> bytes:
        """Returns a ping with the present progress."""
        self.reported = self.progress.records
        return ping(self.progress._replace(limit_bytes=self.limit_bytes))


@dataclass(frozen=True, slots=True)
class Watchdog:
    """`seconds`: the longest silence, and the longest time for a step. `suspicious_seconds`: if a step does not end, a
    process silent for this long is to blame, because all others wait for it."""

    seconds: float
    suspicious_seconds: float = math.inf

    def find_loss(self, processes: Sequence[Vitals], now: float) -> tuple[Loss, str] | None:
        """Returns why the group is lost, with a description; None if it is not."""
        quietest = min(processes, key=lambda each: each.heard)
        silence = now - quietest.heard
        if silence > self.seconds:
            return Loss.SILENT, f"{quietest.name} has said nothing for {self.seconds:g} s"
        stalled = next((each for each in processes if now - each.moved > self.seconds), None)
        if stalled is None:
            return None
        if silence > self.suspicious_seconds:
            return Loss.SILENT, f"{quietest.name} has said nothing for {silence:.1f} s"
        return Loss.STALLED, f"{stalled.name} has not ended a step for {self.seconds:g} s"
