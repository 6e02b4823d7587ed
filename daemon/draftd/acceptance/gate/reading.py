"""What was measured, and how a metric is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from draftd.acceptance.arms import Arm
from draftd.acceptance.statistics import Interval
from draftd.acceptance.ticks import Stage, Tick
from draftd.core import WorkloadClass

if TYPE_CHECKING:
    from draftd.acceptance.gate.evidence import Evidence


class Lack(Enum):
    """Why there is no value."""

    NOTHING = "nothing was measured"
    TOO_FEW = "too little was measured to tell"
    UNREADABLE = "the machine could not be asked: no longer run would have shown it"


class Moves(Enum):
    """Where a value can go to as a run goes on. What can only go up, and is too high, stays too high."""

    BOTH_WAYS = "both ways"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured. `low` and `high` are the ends of the 95 % interval, where there is one. `samples`: how many
    requests it rests on, or windows, or readings of the machine. `lack` and `reason` say why there is no value; beside
    a value `reason` is for where it does not pass."""

    value: float | None
    low: float | None = None
    high: float | None = None
    samples: int = 0
    lack: Lack | None = None
    reason: str = ""

    @classmethod
    def of(cls, found: Interval) -> Reading:
        return cls(found.estimate, found.low, found.high, found.samples)

    @classmethod
    def none(cls, reason: str, lack: Lack = Lack.NOTHING, samples: int = 0) -> Reading:
        return cls(None, samples=samples, lack=lack, reason=reason)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which requests of a sweep: those of `arm`, of the group and the workload where they are named."""

    arm: Arm | None = None
    group: str | None = None
    workload: WorkloadClass | None = None
    over_autoregressive: bool = False  # as a ratio to the autoregressive arm's

    def narrowed(self, ticks: Iterable[Tick]) -> list[Tick]:
        """Of all arms."""
        return [
            tick
            for tick in ticks
            if self.group in (None, tick.place.group) and self.workload in (None, tick.place.workload)
        ]

    def __str__(self) -> str:
        arm = "" if self.arm is None else self.arm.id
        if self.arm is not None and self.over_autoregressive:
            arm += f" and {self.arm.baseline.id}"
        return ", ".join(part for part in (arm, self.group, self.workload) if part)


@dataclass(frozen=True, slots=True)
class Metric:
    """`read` takes a run, where in it to look, and another run where the ratio to it is wanted. `moves` is of the
    value itself, not of a ratio."""

    stage: Stage
    unit: str  # s, By, tokens/s; 1 is a share, and empty a count
    counted: str  # what its samples are, in the plural
    read: Callable[[Evidence, Scope, Evidence | None], Reading]
    has_interval: bool = False
    divisible: bool = True
    autoregressive: bool = False  # it exists without drafts
    moves: Moves = Moves.BOTH_WAYS


def of_stage(
    stage: Stage, read: Callable[[Evidence], Reading]
) -> Callable[[Evidence, Scope, Evidence | None], Reading]:
    """A metric of one figure a run: `read` is called where the stage was run. Over another run's it has no interval."""

    def reading(run: Evidence, scope: Scope, baseline: Evidence | None) -> Reading:
        if not run.has(stage):
            return Reading.none(f"the run has no {stage}")
        ours = read(run)
        if baseline is None or ours.value is None:
            return ours
        if not baseline.has(stage):
            return Reading.none(f"the baseline has no {stage}")
        theirs = read(baseline)
        if theirs.value is None:
            return theirs
        if not theirs.value:
            return Reading.none("it is 0 in the baseline")
        return Reading(ours.value / theirs.value, samples=min(ours.samples, theirs.samples))

    return reading
