"""Moves the ladder: takes in what has happened, asks the policy, and does what follows from it.

A step down is saved before it is made, a step up after it: a process that is killed in between comes back as it was, or
one step safer. One thread's; nothing here waits for the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from draftd.core import DrafterName, FallbackLevel
from draftd.fallback.journal import Journal, Subject
from draftd.fallback.ladder import (
    Hold,
    LadderLevel,
    LadderSettings,
    LevelInForce,
    Signal,
    Step,
    highest,
    move,
    released,
)
from draftd.fallback.leases import Applied, Lease, Notice
from draftd.fallback.loaded_drafters import LoadedDrafters, StepUp, Weights, missing_drafters
from draftd.fallback.probe_schedule import ProbeSchedule
from draftd.fallback.probes import CanaryReport, ProbeReport
from draftd.fallback.saved_state import Saved, SavedState
from draftd.fallback.seams import EngineControl, FallbackTelemetry
from draftd.fallback.signal_feed import SignalFeed

log = logging.getLogger(__name__)

_OTHER_DRAFT = "it is another draft: what was learnt of the old one is forgotten"
_LOOK_BACK = 1024  # transitions, for the last one of the level


@dataclass(frozen=True, slots=True)
class FallbackState:
    """Times are seconds since 1970; `wait` is how long this level must have been in force before a step up.
    `state_file` None: nothing is kept over a restart. `missing`: drafters of the ladder that cannot be had here, and
    why. `drift`: by workload class, the CUSUM over its limit. `probe` and `canaries` are the last ones."""

    ladder: tuple[LadderLevel, ...]
    position: int
    since: float
    signal: Signal | None  # of the last step
    hold: Hold | None
    signals: tuple[Signal, ...]  # now
    leases: tuple[Lease, ...]
    wait: float
    relapses: int
    loaded_drafters: frozenset[DrafterName]
    draft_weight_bytes: int
    state_file: Path | None
    missing: Mapping[DrafterName, str] = field(default_factory=dict)
    drift: Mapping[str, float] = field(default_factory=dict)
    probe: ProbeReport | None = None
    canaries: CanaryReport | None = None


class LadderController:
    """All that the fallback's thread does. Times are the ladder's clock, in seconds; `now` never goes back."""

    def __init__(
        self,
        in_force: LevelInForce,
        engine: EngineControl,
        drafters: LoadedDrafters,
        feed: SignalFeed,
        schedule: ProbeSchedule,
        saved_state: SavedState,
        telemetry: FallbackTelemetry,
        journal: Journal,
        limits: LadderSettings,
        lease_seconds: float,
        saved: Saved,
    ) -> None:
        """The level that was `saved` is in force when this returns."""
        self._in_force, self._engine, self._drafters = in_force, engine, drafters
        self._feed, self._schedule, self._saved_state = feed, schedule, saved_state
        self._telemetry, self._journal = telemetry, journal
        self._limits, self._lease_seconds = limits, lease_seconds
        self._levels = in_force.ladder
        self._step_up = StepUp(drafters, self._levels, again_seconds=limits.cooldown)
        self._ladder, self._leases = saved.ladder, saved.leases
        self._signals: tuple[Signal, ...] = ()
        in_force.restore(self._ladder.position, self._ladder.signal)
        self._reconcile()
        drafters.hold(self._levels[self._ladder.position])

    def tick(self, now: float) -> None:
        """Looks at all there is and takes one step at most."""
        self._drafters.refresh()
        self._feed.look(now)
        report = self._schedule.collect(now)
        if isinstance(report, CanaryReport):
            self._feed.canaries(report)
        self._leases = self._leases.expire(now)
        self._signals = (*self._feed.signals(now), *self._leases.signals())
        self._move(now)
        self._schedule.consider(self._ladder, self._signals, self._feed.guard.learnt(), now)
        self._save(now)

    def _save(self, now: float) -> None:
        guard = self._feed.guard
        self._saved_state.keep(Saved(now, self._ladder, self._leases, guard.learnt(), guard.quality))

    # what is asked for from outside

    def notices(self, notices: Sequence[Notice], now: float) -> list[Applied]:
        """What became of each."""
        results: list[Applied] = []
        for notice in notices:
            self._leases, applied = self._leases.apply(notice, now, self._lease_seconds)
            results.append(applied)
        return results

    def polled(self, firing: Sequence[Notice], now: float) -> None:
        self._leases = self._leases.reconcile(firing, now, self._lease_seconds)

    def hold(self, kind: FallbackLevel, expires_in: float | None, now: float) -> None:
        """The next tick obeys it."""
        hold = Hold(highest(self._levels, kind), None if expires_in is None else now + expires_in)
        self._ladder = replace(self._ladder, hold=hold)
        if hold.position == self._ladder.position:
            self._note("hold", hold.evidence)

    def release(self, now: float) -> bool:
        """Whether there was a hold."""
        if self._ladder.hold is None:
            return False
        self._ladder = released(self._ladder, now)
        self._note("release", "by an operator")
        return True

    def probe(self, now: float) -> Future[ProbeReport]:
        """Raises NotNow."""
        return self._schedule.probe_now(self._ladder, self._feed.guard.learnt(), now)

    def canaries(self, now: float) -> Future[CanaryReport]:
        """Raises NotNow."""
        return self._schedule.canaries_now(now)

    def reloaded(self, now: float, *, forget: bool = False) -> None:
        """The draft's weights are others: requests of the old ones say nothing of them. `forget`: nor do baselines."""
        self._feed.anew(self._ladder.position, now)
        if forget:
            self._feed.forget()
            self._schedule.forget(now)
            self._note("reload", _OTHER_DRAFT)
            log.info("the draft was read anew: %s", _OTHER_DRAFT)
        self._schedule.reloaded(now)

    # what is shown

    def state(self) -> FallbackState:
        engine = self._engine.status()
        return FallbackState(
            ladder=self._levels,
            position=self._in_force.position,
            since=self._ladder.since,
            signal=self._ladder.signal,
            hold=self._ladder.hold,
            signals=self._signals,
            leases=tuple(self._leases.held.values()),
            wait=self._ladder.wait(self._limits),
            relapses=self._ladder.relapses,
            loaded_drafters=engine.loaded,
            draft_weight_bytes=engine.draft_weight_bytes,
            state_file=self._saved_state.path,
            missing=missing_drafters(self._levels, self._engine),
            drift=self._feed.guard.drift(),
            probe=self._schedule.probed,
            canaries=self._schedule.tested,
        )

    # steps

    def _move(self, now: float) -> None:
        permit = self._schedule.permit(self._ladder, now)
        after, step = move(self._ladder, self._levels, self._signals, permit, self._limits, now)
        if self._ladder.hold is not None and after.hold is None:
            self._note("release", "the hold's time is over")
        if step is None:
            self._ladder = after
            self._step_up.give_up(after.position)
            return
        if step.up and (weights := self._step_up.weights(step.current, now)) is not Weights.THERE:
            # The ladder is as it was: the next move is the same, unless a signal speaks against it.
            if weights is Weights.MISSING:
                self._drafters.hold(self._levels[step.previous])
            return
        self._ladder = after
        self._feed.anew(step.current, now)
        self._schedule.stepped(now)
        if step.up:
            self._up(step, now)
        else:
            self._down(step, now)

    def _down(self, step: Step, now: float) -> None:
        self._save(now)
        self._apply(step)
        if step.signal.hard:
            self._lower(step)
        self._drafters.hold(self._levels[step.current])
        if step.signal.hard:
            self._drafters.revoke()

    def _up(self, step: Step, now: float) -> None:
        self._apply(step)
        self._drafters.hold(self._levels[step.current])
        self._save(now)

    def _apply(self, step: Step) -> None:
        self._in_force.move(step.current, step.signal)
        before, after = self._levels[step.previous], self._levels[step.current]
        self._telemetry.transition(before.kind, after.kind, step.signal.cause)

    def _lower(self, step: Step) -> None:
        """Running requests are bound by it too."""
        level = self._levels[step.current]
        try:
            if level.kind >= FallbackLevel.SHORT_BLOCK:
                allowed = frozenset(self._engine.info.drafters)
            else:  # its own drafter and those lighter than it
                allowed = frozenset(one.drafter for one in self._levels[step.current :] if one.drafter is not None)
            self._engine.lower(level.max_draft_tokens, allowed, f"ladder: {step.signal.cause}")
        except Exception as error:
            log.warning("running requests keep their plans: %s", error)

    def _reconcile(self) -> None:
        """A process that was killed between a step and its saving left a journal that ends elsewhere: it is told which
        level is in force now."""
        last = next((one for one in reversed(self._journal.latest(_LOOK_BACK)) if one.subject is Subject.LEVEL), None)
        label, signal = self._in_force.level.label, self._ladder.signal
        if last is not None and last.current != label:
            cause, evidence = (signal.cause, signal.evidence) if signal is not None else ("restart", "")
            self._journal.record(Subject.LEVEL, last.current, label, cause, evidence)

    def _note(self, cause: str, evidence: str) -> None:
        """Records what concerns the level and does not change it."""
        label = self._in_force.level.label
        self._journal.record(Subject.LEVEL, label, label, cause, evidence)
