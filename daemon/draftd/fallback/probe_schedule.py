"""When a probe of a rung above is due, and a run of the canaries; and what they last said."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from draftd.core import PROMPT_LOOKUP
from draftd.errors import DraftdError, NotNow
from draftd.fallback.drift import Baseline
from draftd.fallback.ladder import Demand, Ladder, LadderSettings, Rung, Signal, lowest, to_probe
from draftd.fallback.probes import permits
from draftd.fallback.reports import CanaryReport, ProbeReport, Verdict
from draftd.fallback.seams import EngineControl
from draftd.fallback.signals import Kind
from draftd.fallback.weights import absent
from draftd.settings import FallbackSettings

log = logging.getLogger(__name__)

_LEAD_SECONDS = 30.0  # a probe begins so much before the wait is over, at most
_LIKELY_SECONDS = 1.0  # what a probe is taken to cost before the first one


class Remembers(Protocol):
    """What probes showed while all was well: draftd.fallback.probe_runner."""

    def forget(self) -> None:
        """Drafts with weights are others on purpose: what they showed is no norm any more."""
        ...

    def document(self) -> Mapping[str, object]: ...

    def recall(self, document: Mapping[str, object]) -> None:
        """What `document` gave in an earlier run. Raises ValueError."""
        ...


class Examines(Protocol):
    """Who runs probes and canaries: draftd.fallback.probe_runner. One job at a time."""

    @property
    def busy(self) -> bool: ...

    def probe(self, rung: Rung, baselines: Mapping[Kind, Baseline]) -> Future[ProbeReport]:
        """Raises NotNow while a job is under way."""
        ...

    def learn(self, rung: Rung) -> Future[ProbeReport]:
        """A probe while all is well, which later ones are compared with. Raises NotNow while a job is under way."""
        ...

    def knows(self, rung: Rung) -> bool:
        """Whether that has been learnt."""
        ...

    @property
    def lessons(self) -> Remembers:
        """What was learnt so."""
        ...

    def canaries(self) -> Future[CanaryReport]:
        """Raises NotNow while a job is under way."""
        ...


class Examination:
    """The controller's thread only. Times are the ladder's clock."""

    def __init__(
        self,
        examiner: Examines,
        engine: EngineControl,
        ladder: Sequence[Rung],
        settings: FallbackSettings,
        limits: LadderSettings,
        now: float,
    ) -> None:
        self._examiner, self._engine, self._ladder = examiner, engine, tuple(ladder)
        self._settings, self._limits = settings, limits
        self._running: Future[ProbeReport] | Future[CanaryReport] | None = None
        self._began = now
        self._void = False  # what runs began before a step, or with other weights
        self._ended, self._cost = now, _LIKELY_SECONDS  # of the last job
        self._not_before = now  # of the next probe
        self._at_once = False
        self._vain: set[int] = set()  # rungs probed since the last step that were not good
        self._probed_at: float | None = None  # the last one that still counts
        self._canaries_at = now
        self._lesson_at, self._lessons = now + limits.dwell, 0  # not while a daemon that has just started is tried out
        self.probed: ProbeReport | None = None
        self.tested: CanaryReport | None = None

    def good(self, state: Ladder, now: float) -> int | None:
        """The rung that the last probe lets the ladder up to; one whose drafter cannot be had needs none: nothing is
        drafted there, and it must not bar the way."""
        report, made = self.probed, self._probed_at
        if report is not None and made is not None and permits(report, made, state, self._ladder, self._limits, now):
            return self._ladder.index(report.rung)
        target = to_probe(self._ladder, state.rung, self._vain)
        return target if target is not None and self.absent(self._ladder[target]) else None

    def absent(self, rung: Rung) -> str:
        """Why nothing is drafted there; empty where its drafter can be had, and where it has none."""
        return "" if rung.drafter is None else absent(rung.drafter, self._engine)

    def stepped(self, now: float) -> None:
        """The ladder stands elsewhere: what was found is of no use any more."""
        self._probed_at, self._void, self._at_once = None, True, False
        self._not_before, self._vain = now, set()

    def reloaded(self, now: float) -> None:
        """The draft's weights are others: what drafts with them is tried first, and now."""
        self.stepped(now)
        self._vain = {i for i, rung in enumerate(self._ladder) if rung.drafter == PROMPT_LOOKUP}
        self._at_once = True
        self._canaries_at = float("-inf")

    def forget(self, now: float) -> None:
        """The draft is another on purpose: it is not compared with the old one, and is to be learnt of anew."""
        self._examiner.lessons.forget()
        self._lesson_at, self._lessons = now + self._limits.dwell, 0

    def collect(self, now: float) -> ProbeReport | CanaryReport | None:
        """What has ended since."""
        running = self._running
        if running is None or not running.done():
            return None
        self._running, self._ended = None, now
        self._cost = max(now - self._began, 0.01)
        if running.cancelled() or running.exception() is not None:
            why = "it was given up" if running.cancelled() else running.exception()
            log.warning("what was tried out failed: %s", why)
            self._not_before = now + self._limits.dwell
            return None
        report = running.result()
        if isinstance(report, CanaryReport):
            self.tested, self._canaries_at = report, now
        else:
            self._probed(report, now)
        return report

    def probe_now(self, state: Ladder, baselines: Mapping[Kind, Baseline], now: float) -> Future[ProbeReport]:
        """Raises NotNow where there is no rung above, or something is being tried out."""
        target = to_probe(self._ladder, state.rung, self._vain)
        if target is None:
            raise NotNow("there is no rung above the one in force")
        future = self._examiner.probe(self._ladder[target], baselines)
        self._begin(future, now)
        return future

    def canaries_now(self, now: float) -> Future[CanaryReport]:
        """Raises NotNow while something is being tried out."""
        future = self._examiner.canaries()
        self._begin(future, now)
        return future

    def consider(
        self, state: Ladder, demands: Sequence[Demand], complaint: bool, baselines: Mapping[Kind, Baseline], now: float
    ) -> None:
        """Begins what is due. `complaint`: the last canaries were bad."""
        if self._running is not None or self._examiner.busy:
            return
        target = self._probe_due(state, demands, now)
        learns = self._lesson_due(state, demands, now)
        tests = self._canaries_due(state, demands, complaint, now)
        if target is None and not learns and not tests:
            return
        if not self._affordable(now, urgent=self._at_once and target is not None):
            return
        try:
            if target is not None:
                self._begin(self._examiner.probe(self._ladder[target], baselines), now)
            elif learns:
                self._begin(self._examiner.learn(self._ladder[0]), now)
                wait = min(self._limits.dwell * 2.0 ** min(self._lessons, 30), self._limits.longest_wait)
                self._lesson_at, self._lessons = now + wait, self._lessons + 1
            else:
                self._begin(self._examiner.canaries(), now)
        except DraftdError as error:
            log.debug("nothing can be tried out now: %s", error)

    def _begin(self, future: Future[ProbeReport] | Future[CanaryReport], now: float) -> None:
        self._running, self._began, self._void = future, now, False

    def _probed(self, report: ProbeReport, now: float) -> None:
        self.probed = report
        log.info("probe of %s: %s: %s", report.rung.label, report.verdict, report.reason)
        if self._void:
            return
        self._at_once = False
        self._probed_at = now
        if report.verdict is Verdict.GOOD:
            return
        self._in_vain(self._ladder.index(report.rung))
        bad = report.verdict is Verdict.BAD
        self._not_before = now + self._limits.dwell * (1.0 if bad else 0.25)

    def _probe_due(self, state: Ladder, demands: Sequence[Demand], now: float) -> int | None:
        """The rung to probe; None where it is too early, or where no step up could follow."""
        target = to_probe(self._ladder, state.rung, self._vain)
        if target is None or state.hold is not None or self.good(state, now) is not None:
            return None
        if any(lowest(self._ladder, demand.level) > target for demand in demands):
            return None
        wait = state.wait(self._limits)
        lead = min(wait / 10, _LEAD_SECONDS, self._limits.dwell / 2)
        due = self._at_once or now >= max(self._not_before, state.since + wait - lead)
        return target if due else None

    def _lesson_due(self, state: Ladder, demands: Sequence[Demand], now: float) -> bool:
        """On the top rung, while nothing complains: what probes show when all is well."""
        if state.rung != 0 or demands or not self._ladder[0].max_draft_tokens or now < self._lesson_at:
            return False
        return not self._examiner.knows(self._ladder[0]) and not self.absent(self._ladder[0])

    def _canaries_due(self, state: Ladder, demands: Sequence[Demand], complaint: bool, now: float) -> bool:
        if not self._testable(state):
            return False
        if complaint:  # nothing but a good run ends it; not while something else forbids the weights that it needs
            others = (demand for demand in demands if demand.signal is not Signal.QUALITY)
            if any(not self._ladder[lowest(self._ladder, demand.level)].max_draft_tokens for demand in others):
                return False
            return now - self._canaries_at >= state.wait(self._limits)
        if not self._settings.canary_period_seconds or not self._ladder[state.rung].max_draft_tokens:
            return False
        return now - self._canaries_at >= self._settings.canary_period_seconds

    def _testable(self, state: Ladder) -> bool:
        """Whether the canaries would find something drafted where they run."""
        stands = self._ladder[state.rung]
        rungs = [stands] if stands.drafter is not None else self._ladder
        return any(one.drafter is not None and not self.absent(one) for one in rungs)

    def _affordable(self, now: float, urgent: bool) -> bool:
        """Idle, or within the share of its time that a busy daemon may spend; new weights are worth it at any time."""
        try:
            _ = self._engine.info
            status = self._engine.status()
        except DraftdError:
            return False
        if urgent or (not status.active and not status.queued):
            return True
        share = self._settings.probe_share
        return share > 0 and now - self._ended >= self._cost / share

    def _in_vain(self, rung: int) -> None:
        """Once all drafters above were tried, they are tried all over again: any of them may have been mended."""
        self._vain.add(rung)
        tried = {self._ladder[one].drafter for one in self._vain}
        if all(one.drafter in tried for one in self._ladder[: max(self._vain)]):
            self._vain = set()
