"""Simulates one scenario: requests, notifications, machine readings, kills and clock jumps, in order of simulated
time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulate.cost import break_even
from benchmarks.simulate.daemon import LADDER, Daemon, Finished, ProbeResult, Settings, Step
from benchmarks.simulate.fault import Cause, Fault, quality
from benchmarks.simulate.prompts import Prompts
from benchmarks.simulate.scenario import Mix, Scenario
from benchmarks.simulate.sender import Sender
from benchmarks.simulate.traffic import LOOKUP_MEANS, MEANS, STEPS, Floats, Ints, Seen, arrivals, drafted
from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName, LadderLevel, WorkloadClass
from draftd.counts import DraftCounts
from draftd.fallback.leases import Notice
from draftd.fallback.probes import ProbedPrompt
from draftd.fallback.signals import MachineReading

SERVICE_SECONDS = 3.0  # from a request's plan to its end
READING_SECONDS = 5.0
LIGHT = 0.96  # the light draft's acceptance divided by the draft model's

Event = tuple[float, Callable[[float], None]]


@dataclass(frozen=True, slots=True)
class Run:
    """Record of one simulation. `arrived` has the requests' times, `span` is the simulated seconds and `seconds` the
    real ones; `final` is the last position in the ladder."""

    scenario: Scenario
    faults: Sequence[Fault]
    steps: Sequence[Step]
    arrived: Floats
    span: float
    final: int
    seconds: float


class World:
    """One scenario, simulated with one seed."""

    def __init__(self, scenario: Scenario, requests: int, seed: int, settings: Settings | None = None) -> None:
        self._scenario = scenario
        self._settings = settings or Settings()
        traffic, trouble, self._rng = np.random.default_rng(seed).spawn(3)
        self._times = arrivals(traffic, requests, scenario.per_second)
        self.span = float(self._times[-1])
        self.faults = scenario.faults(trouble, self.span)
        self._kinds, self._of = _kinds(traffic, self._times, scenario)
        self._seen = self._shown(traffic)
        self._break_even = [
            break_even(level.max_draft_tokens, level.drafter) if level.drafter else 0.0 for level in LADDER
        ]
        self._sender = Sender(trouble, self.faults, scenario.post)
        self._prompts = Prompts(self._rng, MEANS[WorkloadClass.CHAT])
        self.daemon = Daemon(self._settings, self._prober)

    def run(self) -> Run:
        began = time.perf_counter()
        events = self._events()
        flight: deque[tuple[float, int, int]] = deque()
        arrived: list[float] = self._times.tolist()
        daemon, i, j, count = self.daemon, 0, 0, len(arrived)
        tick = self._scenario.tick
        while i < count or flight:
            now = min(
                arrived[i] if i < count else np.inf,
                flight[0][0] if flight else np.inf,
                events[j][0] if j < len(events) else np.inf,
                tick,
            )
            if i < count and now == arrived[i]:
                flight.append((now + SERVICE_SECONDS, i, daemon.position))
                i += 1
                continue
            if flight and now == flight[0][0]:
                _, number, position = flight.popleft()
                self._finish(number, position, now)
            elif j < len(events) and now == events[j][0]:
                events[j][1](now)
                j += 1
            else:
                tick += self._scenario.tick
            before = daemon.on_disk
            step = daemon.tick(now)
            if step is not None and self._scenario.restart_at_steps:
                self._kill(step, before, now)
        return Run(
            self._scenario, self.faults, tuple(daemon.steps), self._times, self.span, daemon.position,
            time.perf_counter() - began,
        )  # fmt: skip

    def _finish(self, number: int, position: int, now: float) -> None:
        drafter = LADDER[position].drafter
        if drafter is None:
            return
        accepted, rollbacks = self._seen[position]
        counts = _counts(accepted[number], rollbacks[number], self._break_even[position])
        kind = self._kinds[self._of[number]]
        self.daemon.finished(Finished(now + self.daemon.offset, drafter, kind, counts, position))

    def _kill(self, step: Step, before: str, now: float) -> None:
        """Kills the daemon at a change of the level. Half of the steps up are lost with it: a step up is applied before
        it is saved, a step down is saved first."""
        lost = step.current < step.previous and bool(self._rng.random() < 0.5)
        self.daemon.restart(now, self.daemon.offset, before if lost else None)

    def _events(self) -> list[Event]:
        scenario = self._scenario
        events: list[Event] = [(one.at, self._delivered(one.notice)) for one in self._sender.deliveries]
        if scenario.post.poll:
            events += [(at, self._poll) for at in np.arange(0.0, self.span, scenario.post.poll).tolist()]
        if any(fault.cause is Cause.MEMORY for fault in self.faults):
            events += [(at, self._reading) for at in np.arange(0.0, self.span, READING_SECONDS).tolist()]
        if scenario.jump_every:
            events += [
                (at, self._jump) for at in np.arange(scenario.jump_every, self.span, scenario.jump_every).tolist()
            ]
        return sorted(events, key=lambda event: event[0])

    def _delivered(self, notice: Notice) -> Callable[[float], None]:
        def arrive(now: float) -> None:
            self.daemon.notice(notice, now)

        return arrive

    def _poll(self, now: float) -> None:
        self.daemon.polled(self._sender.listed(now), now)

    def _reading(self, now: float) -> None:
        critical = any(fault.cause is Cause.MEMORY and fault.start <= now < fault.end for fault in self.faults)
        self.daemon.machine(MachineReading(critical, None, None), now)

    def _jump(self, now: float) -> None:
        """Saves the daemon's state and restarts the daemon, with a wall clock that is up to twelve hours off."""
        self.daemon.save(now)
        self.daemon.restart(now, float(self._rng.uniform(-12, 12)) * 3600)

    def _shown(self, rng: np.random.Generator) -> list[tuple[list[int], list[int]]]:
        """Returns, for each level, the accepted tokens and the rollbacks that each request would have there."""
        good = quality(self.faults, self._times)
        good = np.where(self._times < self.span / 2, good, good * self._scenario.later)
        means = np.array([MEANS[kind] for kind in self._kinds])[self._of] * good
        lookup = np.array([LOOKUP_MEANS[kind] for kind in self._kinds])[self._of]
        depths = sorted({level.max_draft_tokens for level in LADDER if level.drafter})
        by_drafter: dict[DrafterName, dict[int, Seen]] = {
            DRAFT_MODEL: drafted(rng, means, depths),
            LIGHT_DRAFT_MODEL: drafted(rng, means * LIGHT, depths[:1]),
            PROMPT_LOOKUP: drafted(rng, lookup, depths[:1]),
        }
        found: list[tuple[list[int], list[int]]] = []
        for level in LADDER:
            if level.drafter is None:
                found.append(([], []))
                continue
            seen = by_drafter[level.drafter][level.max_draft_tokens]
            found.append((seen.accepted.tolist(), seen.rollbacks.tolist()))
        return found

    def _prober(self, level: LadderLevel, now: float) -> ProbeResult:
        """Simulates a probe of `level` at the time `now`: the fixed prompts, with the draft's acceptance at that
        time."""
        assert level.drafter is not None
        good = float(quality(self.faults, np.array([now]))[0])
        mean = {
            DRAFT_MODEL: MEANS[WorkloadClass.CHAT] * good,
            LIGHT_DRAFT_MODEL: MEANS[WorkloadClass.CHAT] * good * LIGHT,
            PROMPT_LOOKUP: LOOKUP_MEANS[WorkloadClass.CHAT],
        }[level.drafter]
        costs = break_even(level.max_draft_tokens, level.drafter)
        shown = self._prompts.shown(self._rng, mean, level.max_draft_tokens)
        prompts = [ProbedPrompt("", _counts(one.accepted, one.rollbacks, costs)) for one in shown]
        return ProbeResult(prompts, self._prompts.baseline)


def _counts(accepted: int, rollbacks: int, break_even: float) -> DraftCounts:
    return DraftCounts(drafts=STEPS, accepted=accepted, rollbacks=rollbacks, break_even_tokens=STEPS * break_even)


def _kinds(rng: np.random.Generator, times: Floats, scenario: Scenario) -> tuple[list[WorkloadClass], Ints]:
    """Returns the prompt categories (classes), and the index of each request's own."""
    kinds = list(MEANS)
    phase = (times / scenario.mix_seconds).astype(np.int64) % len(scenario.mixes)
    draws = rng.random(len(times))
    of = np.zeros(len(times), dtype=np.int64)
    for number, mix in enumerate(scenario.mixes):
        inside = phase == number
        of[inside] = np.searchsorted(_cumulative(mix, kinds), draws[inside], side="right").clip(0, len(kinds) - 1)
    return kinds, of


def _cumulative(mix: Mix, kinds: Sequence[WorkloadClass]) -> Floats:
    return np.cumsum([mix.get(kind, 0.0) for kind in kinds])
