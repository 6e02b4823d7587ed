"""Tries things out: probes a rung with frozen prompts, and runs the quality canaries both ways.

Both are ordinary requests, one at a time, marked as the daemon's own. A probe says whether a rung would do: how many
drafted tokens stand, how fast that is, and whether the text stays the target's own. The canaries say whether what is
served is as good as it would be autoregressively: they run at the rung that the ladder stands on, for that is what
callers get; where it drafts nothing, at the lowest one that drafts, for that is where it would climb to.

The autoregressive answers come first and are kept, so that weights are held only while they are needed, and what was
interrupted goes on where it was. A job gives way: where callers' requests wait, it ends between two prompts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from draftd.canaries.prompts import FrozenPrompts
from draftd.control import canary_run, probing
from draftd.control.absence import absent
from draftd.control.asking import Asker
from draftd.control.bounds import Bounds
from draftd.control.job import Job, Report
from draftd.control.lessons import Lessons
from draftd.control.probing import Borrow
from draftd.control.seams import ControlTelemetry, EngineControl
from draftd.errors import NotNow
from draftd.policy import identity
from draftd.policy.drift import Baseline
from draftd.policy.guard import Kind
from draftd.policy.ladder import Rung
from draftd.policy.probe import ProbeSettings
from draftd.policy.reports import CanaryReport, ProbeReport, Verdict
from draftd.settings import FallbackSettings

_STOPPING = "the daemon is stopping"


@dataclass(frozen=True, slots=True)
class ExaminerLimits:
    """Seconds: for one answer; for all of a probe, and of a run of the canaries; and how long a run of the canaries
    waits for callers' requests to be taken in before it gives way. A probe does not wait."""

    answer: float = 30.0
    probe: float = 180.0
    canaries: float = 600.0
    patience: float = 30.0


class Stands(Protocol):
    """Where the ladder stands: the planner."""

    @property
    def ladder(self) -> Sequence[Rung]: ...

    @property
    def rung(self) -> Rung: ...


class Examiner:
    """One job at a time, on a thread of its own. Any thread may ask; a future always ends, and always in a report."""

    def __init__(
        self,
        engine: EngineControl,
        borrow: Borrow,
        settings: FallbackSettings,
        telemetry: ControlTelemetry,
        *,
        stands: Stands,
        prompts: FrozenPrompts | None = None,
        limits: ExaminerLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`borrow` holds a drafter's weights. `prompts`: the package's own, where none are given; raises
        FrozenPromptError where those are broken."""
        self._engine, self._borrow, self._settings, self._telemetry = engine, borrow, settings, telemetry
        self._stands, self._clock = stands, clock
        self._prompts = FrozenPrompts.shipped() if prompts is None else prompts
        self._limits = limits or ExaminerLimits()
        self._asker = Asker(engine, self._limits.answer, clock)
        self.lessons = Lessons(self._prompts.probe)
        self._thread = threading.Thread(target=self._work, name="draftd-examiner", daemon=True)
        self._stopping = threading.Event()
        self._changed = threading.Condition()  # guards the job
        self._job: Job[ProbeReport] | Job[CanaryReport] | None = None  # waiting or under way

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Ends what is under way, as failed. False where the thread did not end in time."""
        self._stopping.set()
        self._asker.abort()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        alive = self._thread.is_alive()
        with self._changed:
            job, self._job = self._job, self._job if alive else None
        if job is not None:
            job.give_up(_STOPPING)
        return not alive

    @property
    def busy(self) -> bool:
        return self._job is not None

    def probe(self, rung: Rung, baselines: Mapping[Kind, Baseline] | None = None) -> Future[ProbeReport]:
        """Tries `rung` out. `baselines`, of callers' texts, are told beside the figures and judge nothing: other texts
        are drafted otherwise. Raises NotNow while a job is under way, and where the rung drafts nothing, or its
        drafter cannot be had."""
        known = [one.mean for (drafter, _), one in (baselines or {}).items() if drafter is rung.drafter]
        beside = f"; callers' texts had {sum(known) / len(known):.2f} while all was well" if known else ""
        return self._put(self._probing(rung, lambda: self._probe(rung, beside)))

    def learn(self, rung: Rung) -> Future[ProbeReport]:
        """A probe while all is well: where it is good, what it showed is what later ones of the same drafter are
        compared with. Raises NotNow as `probe` does."""
        return self._put(self._probing(rung, lambda: self._probe(rung, learn=True)))

    def knows(self, rung: Rung) -> bool:
        """Whether something was learnt of this rung's drafter."""
        return rung.drafter is not None and self.lessons.of(rung.drafter) is not None

    def canaries(self) -> Future[CanaryReport]:
        """Raises NotNow while a job is under way, and where nothing can be drafted."""
        rung = self._stands.rung
        if rung.drafter is None:
            drafting = [one for one in reversed(self._stands.ladder) if one.drafter is not None]
            had = (one for one in drafting if one.drafter is not None and not absent(one.drafter, self._engine))
            rung = next(had, drafting[0] if drafting else rung)
        self._check(rung)

        def tell(report: CanaryReport) -> None:
            self._telemetry.canaries(rung.level, report.verdict, report.divergences, report.seconds)

        return self._put(Job(lambda: self._run(rung), lambda why: CanaryReport(Verdict.FAILED, why), tell))

    def _probing(self, rung: Rung, work: Callable[[], ProbeReport]) -> Job[ProbeReport]:
        self._check(rung)

        def tell(report: ProbeReport) -> None:
            self._telemetry.probe(rung.level, report.verdict, report.acceptance, report.speedup, report.seconds)

        return Job(work, lambda why: ProbeReport(rung, Verdict.FAILED, why), tell)

    def _put(self, job: Job[Report]) -> Future[Report]:
        with self._changed:
            if self._stopping.is_set():
                raise NotNow(_STOPPING)
            if self._job is not None:
                raise NotNow("a probe or a run of the canaries is under way")
            self._job = job
            self._changed.notify_all()
        return job.future

    # the examiner's thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._stopping.is_set())
                job = self._job
            if self._stopping.is_set() or job is None:
                return  # close gives up what waits
            job.do(self._clock)
            with self._changed:
                self._job = None
            job.hand_over()

    def _probe(self, rung: Rung, beside: str = "", learn: bool = False) -> ProbeReport:
        age = self.lessons.age
        bounds = Bounds(self._engine, self._stopping, seconds=self._limits.probe, clock=self._clock)
        found = probing.tries(rung, self._prompts.probe, self._asker, bounds, self._borrow)
        assert rung.drafter is not None
        baseline = self.lessons.of(rung.drafter)
        settings = ProbeSettings(floor=self._settings.acceptance_floor)
        report = probing.judged(rung, found, baseline, self._tolerated, settings)
        if learn and report.verdict is Verdict.GOOD and (made := probing.learnt(found)) is not None:
            self.lessons.learn(rung.drafter, made, age)
        return replace(report, reason=report.reason + beside)

    def _run(self, rung: Rung) -> CanaryReport:
        limits = self._limits
        bounds = Bounds(
            self._engine, self._stopping, seconds=limits.canaries, patience=limits.patience, clock=self._clock
        )
        text = self._engine.tokenizer.decode
        outcomes, ended = canary_run.run(rung, self._prompts.canaries, self._asker, bounds, self._borrow, text)
        return canary_run.judged(outcomes, ended, self._tolerated, self._settings.canary_tolerance)

    @property
    def _tolerated(self) -> float | None:
        return identity.tolerated(self._engine.info.backend)

    def _check(self, rung: Rung) -> None:
        if rung.drafter is None:
            raise NotNow(f"nothing is drafted at {rung.label}: there is nothing to try")
        if why := absent(rung.drafter, self._engine):
            raise NotNow(f"nothing is drafted at {rung.label}: {why}")
