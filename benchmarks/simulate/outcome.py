"""Evaluates a simulation: how soon it fell back and recovered, its needless fallbacks, and whether it flapped."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.simulate.daemon import Step
from benchmarks.simulate.world import Run


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and the longest of several times."""

    median: float
    longest: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread | None:
        return cls(round(statistics.median(times), 1), round(max(times), 1)) if times else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a simulation. Times are in seconds unless the name says otherwise. `unanswered` faults caused no step
    down; after `unrecovered` ones the level did not return to the top in time. A fault that begins while the level is
    still down counts neither as `unanswered` nor in `fall_back_seconds` and `fall_back_requests`. `false_fallbacks` are
    steps down from the top without a fault."""

    requests: int
    faults: int
    unanswered: int
    fall_back_seconds: Spread | None
    fall_back_requests: Spread | None
    unrecovered: int
    recover_seconds: Spread | None
    false_fallbacks: int
    false_fallbacks_per_10k: float
    flaps: int
    steps: int
    simulated_hours: float

    @property
    def failed(self) -> bool:
        return bool(self.flaps or self.unanswered or self.unrecovered)

    def document(self) -> dict[str, object]:
        return asdict(self)


def outcome(run: Run, cooldown: float) -> Outcome:
    """Evaluates one simulation. `cooldown` is the ladder's, in seconds."""
    scenario = run.scenario
    seconds, requests, recoveries = [], [], []
    unanswered = unrecovered = 0
    for number, fault in enumerate(run.faults):
        following = run.faults[number + 1].start if number + 1 < len(run.faults) else run.span
        if position_at(run.steps, fault.start) == 0:
            down = next(
                (step.at for step in run.steps if step.at >= fault.start and step.current > step.previous), None
            )
            if down is not None and down < fault.end:
                seconds.append(down - fault.start)
                requests.append(float(np.searchsorted(run.arrived, down) - np.searchsorted(run.arrived, fault.start)))
            else:
                unanswered += scenario.answered
                continue
        top = next((step.at for step in run.steps if step.at >= fault.end and step.current == 0), None)
        if position_at(run.steps, fault.end) == 0:
            continue
        if top is not None and top <= following:
            recoveries.append(top - fault.end)
        elif scenario.recovers is not None and following - fault.end > scenario.recovers:
            unrecovered += 1
    if run.faults and not scenario.answered and not seconds:
        unanswered = len(run.faults)  # none at all
    false = [step for step in run.steps if step.previous == 0 and not _asked_for(run, step)]
    return Outcome(
        requests=len(run.arrived),
        faults=len(run.faults),
        unanswered=unanswered,
        fall_back_seconds=Spread.of(seconds),
        fall_back_requests=Spread.of(requests),
        unrecovered=unrecovered,
        recover_seconds=Spread.of(recoveries),
        false_fallbacks=len(false),
        false_fallbacks_per_10k=round(len(false) / len(run.arrived) * 10_000, 2),
        flaps=len(flaps(run.steps, cooldown)),
        steps=len(run.steps),
        simulated_hours=round(run.span / 3600, 1),
    )


def flaps(steps: Sequence[Step], cooldown: float) -> list[tuple[Step, Step, Step]]:
    """Returns each flap as (step down, step up, next step down), where the two steps down are less than two cooldowns
    apart. `steps` are in order of time."""
    found: list[tuple[Step, Step, Step]] = []
    down: Step | None = None
    up: Step | None = None
    for step in steps:
        if step.up:
            up = step if up is None else up  # a climb of several levels counts once, from its first step
            continue
        if down is not None and up is not None and step.at - down.at < 2 * cooldown:
            found.append((down, up, step))
        down, up = step, None
    return found


def position_at(steps: Sequence[Step], now: float) -> int:
    """Returns the ladder's position just before `now`; 0 is the top."""
    return next((step.current for step in reversed(steps) if step.at < now), 0)


def _asked_for(run: Run, step: Step) -> bool:
    return any(fault.start <= step.at < fault.end + run.scenario.settles for fault in run.faults)
