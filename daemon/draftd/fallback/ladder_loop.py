"""The fallback's one owner: takes in what was heard, asks policy, and does what follows from it.

A step down is saved before it is made, a step up after it: a process that is killed in between comes back as it was, or
one step safer. One thread's; nothing here waits for the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime

from draftd.core import FallbackLevel
from draftd.fallback.journal import Journal, Subject
from draftd.fallback.ladder import Demand, Hold, LadderSettings, Step, held, highest, move, released
from draftd.fallback.leases import Applied, Notice
from draftd.fallback.probe_schedule import Examination
from draftd.fallback.reports import CanaryReport, ProbeReport
from draftd.fallback.seams import ControlTelemetry, EngineControl
from draftd.fallback.signal_feed import Senses
from draftd.fallback.snapshot import FallbackState, Readings, readings
from draftd.fallback.state import Saved
from draftd.fallback.store import Saving
from draftd.fallback.weights import Ascent, Residency, Weights, absentees
from draftd.planning.planner import Planner

log = logging.getLogger(__name__)

_ANOTHER = "it is another draft: what was learnt of the old one is forgotten"
_LOOK_BACK = 1024  # transitions, for the last one of the level


class Steering:
    """All that the controller's thread does. Times are the ladder's clock, in seconds; `now` never goes back."""

    def __init__(
        self,
        planner: Planner,
        engine: EngineControl,
        residency: Residency,
        senses: Senses,
        examination: Examination,
        saving: Saving,
        telemetry: ControlTelemetry,
        journal: Journal,
        limits: LadderSettings,
        lease_seconds: float,
        saved: Saved,
    ) -> None:
        """Stands where `saved` stood, before anybody asks for a plan."""
        self._planner, self._engine, self._residency = planner, engine, residency
        self._senses, self._examination, self._saving = senses, examination, saving
        self._telemetry, self._journal = telemetry, journal
        self._limits, self._lease_seconds = limits, lease_seconds
        self._rungs = planner.ladder
        self._ascent = Ascent(residency, self._rungs, again_seconds=limits.dwell)
        self._ladder, self._leases = saved.ladder, saved.leases
        self._demands: tuple[Demand, ...] = ()
        planner.restore(self._ladder.rung, _split(self._ladder.cause)[0])
        self._reconcile()
        residency.stand(self._rungs[self._ladder.rung])

    def tick(self, now: float) -> None:
        """Looks at all there is and takes one step at most."""
        self._residency.tend()
        self._senses.look(now)
        report = self._examination.collect(now)
        if isinstance(report, CanaryReport):
            self._senses.canaries(report, now)
        self._leases = self._leases.expire(now)
        self._demands = (*self._senses.demands(now), *self._leases.demands())
        self._move(now)
        self._examination.consider(self._ladder, self._demands, self._senses.complaint, self._senses.baselines, now)
        self.save(now)

    def save(self, now: float) -> bool:
        """Whether the disk has the state of now."""
        learnt, quality = self._senses.baselines, self._senses.quality
        return self._saving.keep(Saved(now, self._ladder, self._leases, learnt, quality))

    # what is asked for from outside

    def notices(self, notices: Sequence[Notice], now: float) -> list[Applied]:
        """What became of each."""
        found: list[Applied] = []
        for notice in notices:
            self._leases, applied = self._leases.apply(notice, now, self._lease_seconds)
            found.append(applied)
        return found

    def polled(self, firing: Sequence[Notice], now: float) -> None:
        self._leases = self._leases.reconcile(firing, now, self._lease_seconds)

    def hold(self, level: FallbackLevel, expires_in: float | None, now: float) -> None:
        """The next tick obeys it."""
        hold = Hold(highest(self._rungs, level), None if expires_in is None else now + expires_in)
        self._ladder = held(self._ladder, hold)
        if hold.rung == self._ladder.rung:
            self._note("hold", _of_hold(hold))

    def release(self, now: float) -> bool:
        """Whether there was a hold."""
        if self._ladder.hold is None:
            return False
        self._ladder = released(self._ladder, now)
        self._note("release", "an operator's word")
        return True

    def probe(self, now: float) -> Future[ProbeReport]:
        """Raises NotNow."""
        return self._examination.probe_now(self._ladder, self._senses.baselines, now)

    def canaries(self, now: float) -> Future[CanaryReport]:
        """Raises NotNow."""
        return self._examination.canaries_now(now)

    def reloaded(self, now: float, *, forget: bool = False) -> None:
        """The draft's weights are others: requests of the old ones say nothing of them. `forget`: nor do the norms."""
        self._senses.anew(self._ladder.rung, now)
        if forget:
            self._senses.forget()
            self._examination.forget(now)
            self._note("reload", _ANOTHER)
            log.info("the draft was read anew: %s", _ANOTHER)
        self._examination.reloaded(now)

    # what is shown

    def state(self) -> FallbackState:
        engine = self._engine.status()
        return FallbackState(
            ladder=self._rungs,
            rung=self._planner.standing.rung,
            since=self._ladder.since,
            cause=self._ladder.cause,
            hold=self._ladder.hold,
            demands=self._demands,
            leases=tuple(self._leases.held.values()),
            wait=self._ladder.wait(self._limits),
            relapses=self._ladder.relapses,
            loaded_drafters=engine.loaded,
            draft_weight_bytes=engine.draft_weight_bytes,
            state_file=self._saving.path,
            absent=absentees(self._rungs, self._engine),
        )

    def readings(self) -> Readings:
        return readings(self.state(), self._senses.drift, self._examination.probed, self._examination.tested)

    # steps

    def _move(self, now: float) -> None:
        good = self._examination.good(self._ladder, now)
        after, step = move(self._ladder, self._rungs, self._demands, good is not None, self._limits, now, good)
        if self._ladder.hold is not None and after.hold is None:
            self._note("release", "the hold's time is over")
        recovered = step is not None and step.current < step.previous and self._ladder.hold is None
        if step is not None and recovered and (why := self._examination.absent(self._rungs[step.current])):
            cause = f"recovered: nothing is drafted there ({why})"
            after, step = replace(after, cause=cause), replace(step, cause=cause)
        if step is None:
            self._ladder = after
            self._ascent.give_up(after.rung)
        elif step.current > step.previous:
            self._ladder = after
            self._fall(step, now)
        else:
            match self._ascent.weights(step.current, now):
                case Weights.THERE:
                    self._ladder = after
                    self._climb(step, now)
                case Weights.MISSING:
                    self._residency.stand(self._rungs[step.previous])
                case Weights.COMING:
                    pass  # the ladder is as it was: the next move says the same, unless something speaks against it

    def _fall(self, step: Step, now: float) -> None:
        self._begin_anew(step, now)
        self.save(now)
        self._apply(step)
        hard = self._hard(step)
        if hard:
            self._lower(step)
        self._residency.stand(self._rungs[step.current])
        if hard:
            self._residency.revoke()

    def _climb(self, step: Step, now: float) -> None:
        self._begin_anew(step, now)
        self._apply(step)
        self._residency.stand(self._rungs[step.current])
        self.save(now)

    def _begin_anew(self, step: Step, now: float) -> None:
        self._senses.anew(step.current, now)
        self._examination.stepped(now)

    def _apply(self, step: Step) -> None:
        cause, evidence = _split(step.cause)
        if cause == "hold" and self._ladder.hold is not None:
            evidence = _of_hold(self._ladder.hold)
        elif (
            step.current < step.previous
            and (probed := self._examination.probed) is not None
            and probed.rung == self._rungs[step.current]
        ):
            evidence = f"probe of {probed.rung.label}: {probed.reason}"
        self._planner.move(step.current, cause, evidence)
        before, after = self._rungs[step.previous], self._rungs[step.current]
        self._telemetry.transition(before.level, after.level, cause)

    def _hard(self, step: Step) -> bool:
        """Whether running requests are bound by it too."""
        return any(demand.hard and f"{demand.signal}: {demand.evidence}" == step.cause for demand in self._demands)

    def _lower(self, step: Step) -> None:
        rung = self._rungs[step.current]
        try:
            if rung.level >= FallbackLevel.SHORT_BLOCK:
                allowed = frozenset(self._engine.info.drafters)
            else:  # its own drafter and those lighter than it
                allowed = frozenset(one.drafter for one in self._rungs[step.current :] if one.drafter is not None)
            self._engine.lower(rung.max_draft_tokens, allowed, f"ladder: {_split(step.cause)[0]}")
        except Exception as error:
            log.warning("running requests keep their plans: %s", error)

    def _reconcile(self) -> None:
        """A process that was killed between a step and its saving left a journal that ends elsewhere: it is told where
        the ladder stands now."""
        last = next((one for one in reversed(self._journal.latest(_LOOK_BACK)) if one.subject is Subject.LEVEL), None)
        stands = self._planner.rung.label
        if last is not None and last.current != stands:
            cause, evidence = _split(self._ladder.cause)
            self._journal.record(Subject.LEVEL, last.current, stands, cause or "restart", evidence)

    def _note(self, cause: str, evidence: str) -> None:
        """Something was said of the level that does not change it."""
        label = self._planner.rung.label
        self._journal.record(Subject.LEVEL, label, label, cause, evidence)


def _split(cause: str) -> tuple[str, str]:
    """A step's cause: what it was, and its evidence."""
    what, _, evidence = cause.partition(": ")
    return what, evidence


def _of_hold(hold: Hold) -> str:
    if hold.until is None:
        return "an operator's word, until it is released"
    return f"an operator's word, until {datetime.fromtimestamp(hold.until, UTC):%Y-%m-%d %H:%M:%S} UTC"
