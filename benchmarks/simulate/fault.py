"""Something that goes wrong for a time, and what then becomes of drafts, machine and alerts."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulate.traffic import Floats
from draftd.core import FallbackLevel


class Cause(enum.StrEnum):
    DRAFT = "draft"  # the draft fits worse
    ALERT = "alert"  # an alert fires
    STORM = "storm"  # forty alerts come and go
    MEMORY = "memory"  # critical pressure


@dataclass(frozen=True, slots=True)
class Fault:
    """From `start` to `end`, in simulated seconds. `factor` is what acceptance is multiplied by, reached in a straight
    line over `ramp` seconds; `level` and `hard` are what an alert asks for."""

    cause: Cause
    start: float
    end: float
    factor: float = 1.0
    ramp: float = 0.0
    level: FallbackLevel = FallbackLevel.AUTOREGRESSIVE
    hard: bool = False


def quality(faults: Sequence[Fault], times: Floats) -> Floats:
    """What acceptance is multiplied by at each time: 1 where nothing is wrong with the draft."""
    found = np.ones_like(times)
    for fault in faults:
        if fault.cause is not Cause.DRAFT:
            continue
        inside = (times >= fault.start) & (times < fault.end)
        share = np.clip((times[inside] - fault.start) / fault.ramp, 0, 1) if fault.ramp else 1.0
        found[inside] = 1 - (1 - fault.factor) * share
    return found


def every(
    span: float, good: float, bad: float, cause: Cause, *, first: float = 3000.0, factor: float = 1.0,
    ramp: float = 0.0, level: FallbackLevel = FallbackLevel.AUTOREGRESSIVE, hard: bool = False,
) -> list[Fault]:  # fmt: skip
    """The same fault again and again: from `first`, `bad` seconds long, then `good` seconds of none. The last third of
    `span` is left for the way back."""
    faults: list[Fault] = []
    start = first
    while not faults or start + bad <= span * 2 / 3:
        faults.append(Fault(cause, start, start + bad, factor, ramp, level, hard))
        start += bad + good
    return faults


def erratic(rng: np.random.Generator, span: float, mean: float, cause: Cause, factor: float = 1.0) -> list[Fault]:
    """A cause that comes and goes as it likes: each time for a third of `mean` seconds at least, and for `mean` in the
    middle."""
    faults, now = [], 3000.0
    while now < span:
        bad, good = (mean / 3 + rng.exponential(mean * 2 / 3, 2)).tolist()
        faults.append(Fault(cause, now, min(now + bad, span), factor))
        now += bad + good
    return faults
