"""Faults of a simulation, and their effect on drafts, machine and alerts."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulate.traffic import Floats
from draftd.core import FallbackLevel


class Cause(enum.StrEnum):
    DRAFT = "draft"  # the draft's acceptance falls
    ALERT = "alert"  # an alert fires
    STORM = "storm"  # forty alerts fire and resolve again and again
    MEMORY = "memory"  # critical memory pressure


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault from `start` to `end`, in simulated seconds. `factor` multiplies acceptance and is reached linearly over
    `ramp` seconds. `level` is the fallback level that an alert asks for; a `hard` alert is obeyed at once."""

    cause: Cause
    start: float
    end: float
    factor: float = 1.0
    ramp: float = 0.0
    level: FallbackLevel = FallbackLevel.AUTOREGRESSIVE
    hard: bool = False


def quality(faults: Sequence[Fault], times: Floats) -> Floats:
    """Returns the factor on acceptance at each of `times`: 1 without a fault of the draft."""
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
    """Returns the same fault again and again from `first`: `bad` seconds with it, then `good` seconds without. The last
    third of `span` has none, for the recovery."""
    faults: list[Fault] = []
    start = first
    while not faults or start + bad <= span * 2 / 3:
        faults.append(Fault(cause, start, start + bad, factor, ramp, level, hard))
        start += bad + good
    return faults


def erratic(rng: np.random.Generator, span: float, mean: float, cause: Cause, factor: float = 1.0) -> list[Fault]:
    """Returns faults of random length and distance, all of at least a third of `mean` seconds, and of `mean` on
    average."""
    faults, now = [], 3000.0
    while now < span:
        bad, good = (mean / 3 + rng.exponential(mean * 2 / 3, 2)).tolist()
        faults.append(Fault(cause, now, min(now + bad, span), factor))
        now += bad + good
    return faults
