"""Decides when a probe of a level above or a run of canaries is due, and keeps their last results."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
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
        self._running: Future[ProbeReport] | Future[CanaryReport] | None = None
        self._void = False  # whether the present run began before a step, or with other weights
        self._ended, self._cost = now, _LIKELY_SECONDS  # end and cost of the last run
        self._not_before = now  # the earliest time of the next probe
        self._at_once = False
        self._vain: set[int] = set()  # positions probed without success since the last step
        self._probed_at: float | None = None  # end of the last probe that still counts
        self._canaries_at = now
        self._learn_at, self._learns = (
            now + limits.cooldown,
            0,
        )  # the first learning probe comes a cooldown after the start
        self._suspect: LadderLevel | None = None  # the level in force with the drifting drafter
        self._suspected_at = now
        self._innocent: bool | None = None  # whether a probe found that drafter unchanged
        self._checks = False  # whether the present run is that probe
        self.probed: ProbeReport | None = None
        self.tested: CanaryReport | None = None

    def permit(self, state: LadderState, now: float) -> Permit | None:
        """Returns the permit for a step up, from the last probe. A level whose drafter is unavailable needs no probe:
        it drafts nothing, and must not bar the way."""
        if self._suspect is not None:
            return None
        report, probed_at = self.probed, self._probed_at
        if (
            report is not None
            and probed_at is not None
            and permits(report, probed_at, state, self._ladder, self._limits, now)
        ):
            return Permit(self._ladder.index(report.level), f"probe of {report.level.label}: {report.reason}")
        target = to_probe(self._ladder, state.position, self._vain)
        if target is not None and (why := why_missing(self._ladder[target].drafter, self._engine)):
            return Permit(target, f"its drafter is not there ({why})")
        return None

    def on_step(self, now: float) -> None:
        """Drops earlier results, because another level is in force."""
        self._probed_at, self._void, self._at_once = None, True, False
        self._not_before, self._vain = now, set()
        self._suspect = None

    def traffic_changed(self, level: LadderLevel | None, now: float) -> bool | None:
        """Whether a drifting drafter's probe found frozen prompts accepted as before, so that the traffic has changed.
        None while unknown, for at most one cooldown; False if it cannot be known. `level`: the level in force with that
        drafter, None without drift."""
        if level != self._suspect:
            self._suspect, self._suspected_at, self._innocent = level, now, None
        if level is None or not level.drafts or self._innocent is not None:
            return self._innocent
        if level.drafter == PROMPT_LOOKUP:
            return True  # it has no weights: only its input can change
        comparable = level.drafter in self._runner.baselines.drafters and not why_missing(level.drafter, self._engine)
        if not comparable or now - self._suspected_at > self._limits.cooldown:
            self._innocent = False
        return self._innocent

    def on_reload(self, now: float) -> None:
        """Schedules a probe now, because the draft's weights are new."""
        self.on_step(now)
        self._vain = {i for i, level in enumerate(self._ladder) if level.drafter == PROMPT_LOOKUP}
        self._at_once = True
        self._canaries_at = float("-inf")

    def forget(self, now: float) -> None:
        """Drops the draft's baseline, because it was replaced by another draft on purpose."""
        self._runner.baselines.forget()
        self._learn_at, self._learns = now + self._limits.cooldown, 0

    def collect(self, now: float) -> CanaryReport | None:
        """Takes the results of runs that have ended; returns that of a canary run."""
        running = self._running
        if running is None or not running.done():
            return None
        report = running.result()
        self._running, self._ended, self._cost = None, now, max(report.seconds, 0.01)
        if isinstance(report, CanaryReport):
            self.tested, self._canaries_at = report, now
            return report
        self.probed = report
        log.info("probe of %s: %s: %s", report.level.label, report.verdict, report.reason)
        if not self._checks and not self._void:
            self._note_probe(report, now)
        elif not self._void and report.level == self._suspect:
            self._innocent = report.as_ever
        return None

    def probe_now(self, state: LadderState) -> Future[ProbeReport]:
        """Starts a probe of the level above. Raises NotNow if there is none, or during another run."""
        target = to_probe(self._ladder, state.position, self._vain)
        if target is None:
            raise NotNow("there is no level above the one in force")
        return self._begin(self._runner.probe(self._ladder[target]))

    def canaries_now(self) -> Future[CanaryReport]:
        """Starts the canaries. Raises NotNow during another run."""
        return self._begin(self._runner.canaries())

    def consider(self, state: LadderState, signals: Sequence[Signal], now: float) -> None:
        """Starts a run that is due, if its time can be afforded."""
        if self._running is not None:
            return
        try:
            if (suspect := self._suspect) is not None and self._innocent is None and not state.held:
                if self._affordable(now, urgent=self._settings.probe_share > 0):
                    self._begin(self._runner.probe(suspect))
                    self._checks = True
            elif (target := self._probe_due(state, signals, now)) is not None:
                if self._affordable(now, urgent=self._at_once):
                    self._begin(self._runner.probe(self._ladder[target]))
            elif self._learning_due(state, signals, now):
                if self._affordable(now):
                    self._begin(self._runner.probe(self._ladder[0], learn=True))
                    wait = min(self._limits.cooldown * 2.0 ** min(self._learns, 30), self._limits.longest_wait)
                    self._learn_at, self._learns = now + wait, self._learns + 1
            elif self._canaries_due(state, signals, now) and self._affordable(now):
                self._begin(self._runner.canaries())
        except DraftdError as error:
            log.debug("no probe can run now: %s", error)

    def _begin(self, future: Future[Report]) -> Future[Report]:
        self._running, self._void, self._checks = future, False, False
        return future

    def _note_probe(self, report: ProbeReport, now: float) -> None:
        self._at_once, self._probed_at = False, now
        if report.verdict is ProbeVerdict.GOOD:
            return
        self._not_before = now + self._limits.cooldown * (1.0 if report.verdict is ProbeVerdict.BAD else 0.25)
        self._vain.add(self._ladder.index(report.level))
        tried = {self._ladder[index].drafter for index in self._vain}
        if all(level.drafter in tried for level in self._ladder[: max(self._vain)]):
            self._vain = set()  # start over: any of them may have recovered

    def _probe_due(self, state: LadderState, signals: Sequence[Signal], now: float) -> int | None:
        """Returns the position to probe; None if it is too early, or no step up could follow."""
        target = to_probe(self._ladder, state.position, self._vain)
        if target is None or state.held or self.permit(state, now) is not None:
            return None
        if any(lowest(self._ladder, signal.asks_for) > target for signal in signals):
            return None
        wait = state.wait(self._limits)
        lead = min(wait / 10, _LEAD_SECONDS, self._limits.cooldown / 2)
        due = self._at_once or now >= max(self._not_before, state.since + wait - lead)
        return target if due else None

    def _learning_due(self, state: LadderState, signals: Sequence[Signal], now: float) -> bool:
        """Whether a probe to learn a baseline is due: at the top, while no signal asks for less."""
        top = self._ladder[0]
        if state.position != 0 or signals or not top.drafts or not top.max_draft_tokens or now < self._learn_at:
            return False
        return top.drafter not in self._runner.baselines.drafters and not why_missing(top.drafter, self._engine)

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
        """Whether a run can start now: the daemon is idle, or within the share of time that runs may use; with new
        weights always. Raises NotServing while nothing is loaded."""
        _ = self._engine.info
        status = self._engine.status()
        if urgent or (not status.active and not status.queued):
            return True
        share = self._settings.probe_share
        return share > 0 and now - self._ended >= self._cost / share
