"""Decides when a probe of a level above or a run of canaries is due, and keeps their last results."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from draftd.core import PROMPT_LOOKUP, LadderLevel
from draftd.engine.handle import EngineHandle
from draftd.errors import DraftdError, NotNow
from draftd.fallback.ladder import Cause, LadderSettings, LadderState, Permit, Signal, lowest, to_probe
from draftd.fallback.loaded_drafters import why_missing
from draftd.fallback.probe_runner import ProbeRunner
from draftd.fallback.probes import CanaryReport, ProbeReport, ProbeVerdict, permits
from draftd.settings import FallbackSettings

log = logging.getLogger(__name__)

Report = TypeVar("Report", ProbeReport, CanaryReport)

_LEAD_SECONDS = 30.0  # a probe begins at most this long before the wait is over
_LIKELY_SECONDS = 1.0  # the assumed cost of the first probe


@dataclass(slots=True)
class _Run:
    """The present run. `void`: it began before a step, or with other weights. `checks`: it probes a suspected
    drafter."""

    future: Future[ProbeReport] | Future[CanaryReport]
    void: bool = False
    checks: bool = False


@dataclass(frozen=True, slots=True)
class _LastRun:
    """The end of the last run, and its cost in seconds."""

    ended: float
    cost: float


@dataclass(slots=True)
class _Suspicion:
    """A drafter whose acceptance drifts, as suspected from traffic. `level`: the level in force with this drafter; None
    if no drafter drifts. `innocent`: whether a probe found the drafter unchanged; None until known."""

    level: LadderLevel | None
    since: float
    innocent: bool | None = None


@dataclass(slots=True)
class _Probing:
    """The search for a level to step up to, since the last step. `not_before`: the earliest time of the next probe.
    `at_once`: after a reload, the next probe does not wait. `vain`: positions probed without success. `probed_at`: the
    end of the last probe; None if none has ended since the step."""

    not_before: float
    at_once: bool = False
    vain: set[int] = field(default_factory=set)
    probed_at: float | None = None


@dataclass(slots=True)
class _Learning:
    """The time of the next probe that learns a baseline, and how many there were."""

    at: float
    count: int = 0


class ProbeSchedule:
    """The schedule of probes and canaries. One caller at a time. Times are the ladder's clock."""

    def __init__(
        self,
        runner: ProbeRunner,
        engine: EngineHandle,
        ladder: Sequence[LadderLevel],
        settings: FallbackSettings,
        limits: LadderSettings,
        now: float,
    ) -> None:
        self._runner, self._engine, self._ladder = runner, engine, tuple(ladder)
        self._settings, self._limits = settings, limits
        self._run: _Run | None = None
        self._last = _LastRun(now, _LIKELY_SECONDS)
        self._probing = _Probing(now)
        self._canaries_at = now
        self._learning = _Learning(now + limits.cooldown)  # not while a daemon that has just started warms up
        self._suspicion = _Suspicion(None, now)
        self.probed: ProbeReport | None = None
        self.tested: CanaryReport | None = None

    def permit(self, state: LadderState, now: float) -> Permit | None:
        """Returns the permit for a step up, from the last probe. A level whose drafter is unavailable needs no probe:
        it drafts nothing, and must not bar the way."""
        if self._suspicion.level is not None:
            return None
        report, probed_at = self.probed, self._probing.probed_at
        if (
            report is not None
            and probed_at is not None
            and permits(report, probed_at, state, self._ladder, self._limits, now)
        ):
            return Permit(self._ladder.index(report.level), f"probe of {report.level.label}: {report.reason}")
        target = to_probe(self._ladder, state.position, self._probing.vain)
        if target is not None and (why := why_missing(self._ladder[target].drafter, self._engine)):
            return Permit(target, f"its drafter is not there ({why})")
        return None

    def on_step(self, now: float) -> None:
        """Drops earlier results, because another level is in force."""
        self._probing, self._suspicion.level = _Probing(now), None
        if self._run is not None:
            self._run.void = True

    def traffic_changed(self, level: LadderLevel | None, now: float) -> bool | None:
        """Returns whether the traffic has changed: a probe of the drifting drafter found frozen prompts accepted as
        before. None while unknown, for at most one cooldown, and without drift; False if they were not, or if no probe
        can tell. `level`: the level in force with the drifting drafter, None without drift."""
        if level != self._suspicion.level:
            self._suspicion = _Suspicion(level, now)
        suspicion = self._suspicion
        if level is None or not level.drafts or suspicion.innocent is not None:
            return suspicion.innocent
        if level.drafter == PROMPT_LOOKUP:
            return True  # it has no weights: only its input can change
        comparable = level.drafter in self._runner.baselines.drafters and not why_missing(level.drafter, self._engine)
        if not comparable or now - suspicion.since > self._limits.cooldown:
            suspicion.innocent = False
        return suspicion.innocent

    def on_reload(self, now: float) -> None:
        """Schedules a probe now, because the draft's weights are new."""
        self.on_step(now)
        self._probing.vain = {i for i, level in enumerate(self._ladder) if level.drafter == PROMPT_LOOKUP}
        self._probing.at_once = True
        self._canaries_at = float("-inf")

    def forget(self, now: float) -> None:
        """Drops the draft's baseline, because an operator has replaced the draft by another one."""
        self._runner.baselines.forget()
        self._learning = _Learning(now + self._limits.cooldown)

    def collect(self, now: float) -> CanaryReport | None:
        """Takes the results of runs that have ended; returns that of a canary run."""
        run = self._run
        if run is None or not run.future.done():
            return None
        report = run.future.result()
        self._run, self._last = None, _LastRun(now, max(report.seconds, 0.01))
        if isinstance(report, CanaryReport):
            self.tested, self._canaries_at = report, now
            return report
        self.probed = report
        log.info("probe of level %s: %s, because %s", report.level.label, report.verdict, report.reason)
        if not run.checks and not run.void:
            self._note_probe(report, now)
        elif not run.void and report.level == self._suspicion.level:
            self._suspicion.innocent = report.as_ever
        return None

    def probe_now(self, state: LadderState) -> Future[ProbeReport]:
        """Starts a probe of the level above. Raises NotNow if there is none, or during another run."""
        target = to_probe(self._ladder, state.position, self._probing.vain)
        if target is None:
            raise NotNow("no higher level than the present one is left to probe")
        self._run = _Run(future := self._runner.probe(self._ladder[target]))
        return future

    def canaries_now(self) -> Future[CanaryReport]:
        """Starts the canaries. Raises NotNow during another run."""
        self._run = _Run(future := self._runner.canaries())
        return future

    def consider(self, state: LadderState, signals: Sequence[Signal], now: float) -> None:
        """Starts a run that is due, if its time can be afforded."""
        if self._run is not None:
            return
        try:
            if (suspect := self._suspicion.level) and self._suspicion.innocent is None and not state.held:
                if self._affordable(now, urgent=self._settings.probe_share > 0):
                    self._run = _Run(self._runner.probe(suspect), checks=True)
            elif (target := self._probe_due(state, signals, now)) is not None:
                if self._affordable(now, urgent=self._probing.at_once):
                    self._run = _Run(self._runner.probe(self._ladder[target]))
            elif self._learning_due(state, signals, now):
                if self._affordable(now):
                    self._run = _Run(self._runner.probe(self._ladder[0], learn=True))
                    count = self._learning.count
                    wait = min(self._limits.cooldown * 2.0 ** min(count, 30), self._limits.longest_wait)
                    self._learning = _Learning(now + wait, count + 1)
            elif self._canaries_due(state, signals, now) and self._affordable(now):
                self._run = _Run(self._runner.canaries())
        except DraftdError as error:
            log.debug("no probe can run now: %s", error)

    def _note_probe(self, report: ProbeReport, now: float) -> None:
        probing = self._probing
        probing.at_once, probing.probed_at = False, now
        if report.verdict is ProbeVerdict.GOOD:
            return
        probing.not_before = now + self._limits.cooldown * (1.0 if report.verdict is ProbeVerdict.BAD else 0.25)
        probing.vain.add(self._ladder.index(report.level))
        tried = {self._ladder[index].drafter for index in probing.vain}
        if all(level.drafter in tried for level in self._ladder[: max(probing.vain)]):
            probing.vain = set()  # start over: any of them may have recovered

    def _probe_due(self, state: LadderState, signals: Sequence[Signal], now: float) -> int | None:
        """Returns the position to probe; None if it is too early, or no step up could follow."""
        target = to_probe(self._ladder, state.position, self._probing.vain)
        if target is None or state.held or self.permit(state, now) is not None:
            return None
        if any(lowest(self._ladder, signal.asks_for) > target for signal in signals):
            return None
        wait = state.wait(self._limits)
        lead = min(wait / 10, _LEAD_SECONDS, self._limits.cooldown / 2)
        due = self._probing.at_once or now >= max(self._probing.not_before, state.since + wait - lead)
        return target if due else None

    def _learning_due(self, state: LadderState, signals: Sequence[Signal], now: float) -> bool:
        """Whether a probe to learn a baseline is due: at the top, while no signal asks for less."""
        top = self._ladder[0]
        if state.position != 0 or signals or not top.drafts or not top.max_draft_tokens or now < self._learning.at:
            return False
        if why_missing(top.drafter, self._engine):
            return False
        return self._engine.info.with_stand_in(top).drafter not in self._runner.baselines.drafters

    def _canaries_due(self, state: LadderState, signals: Sequence[Signal], now: float) -> bool:
        """Whether canaries are due, and something would be drafted."""
        level = self._ladder[state.position]
        drafters = [other.drafter for other in ([level] if level.drafts else self._ladder)]
        if all(drafter is None or why_missing(drafter, self._engine) for drafter in drafters):
            return False
        others = [signal for signal in signals if signal.cause is not Cause.QUALITY]
        if len(others) < len(signals):  # the last run was bad, and only a good one ends that
            forbidden = any(
                not self._ladder[lowest(self._ladder, signal.asks_for)].max_draft_tokens for signal in others
            )
            return not forbidden and now - self._canaries_at >= state.wait(self._limits)
        period = self._settings.canary_period_seconds
        return period > 0 and level.max_draft_tokens > 0 and now - self._canaries_at >= period

    def _affordable(self, now: float, *, urgent: bool = False) -> bool:
        """Returns whether a run can start now: it is `urgent`, the daemon is idle, or runs have used less than their
        share of the time (`probe_share`). Raises NotServing while nothing is loaded."""
        _ = self._engine.info
        status = self._engine.status()
        if urgent or (not status.active and not status.queued):
            return True
        share = self._settings.probe_share
        return share > 0 and now - self._last.ended >= self._last.cost / share
