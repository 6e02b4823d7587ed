"""Runs probes and canaries, one at a time, on a thread of its own.

The canaries run at the level in force, for that is what clients get; where it drafts nothing, at the lowest one that
drafts, for that is where the ladder would climb to."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from draftd.canaries.prompts import FrozenPrompts
from draftd.errors import DraftdError, NotNow
from draftd.fallback.baselines import ProbeBaselines, learnt
from draftd.fallback.drift import Baseline, StreamKey
from draftd.fallback.ladder import LadderLevel
from draftd.fallback.loaded_drafters import why_missing
from draftd.fallback.probe_requests import Borrow, ProbeRequests, RunLimits, Unanswered, run_canaries, run_probe
from draftd.fallback.probes import (
    CanaryReport,
    ProbeReport,
    ProbeSettings,
    Verdict,
    judge_canaries,
    judge_probe,
    tolerated_gap,
)
from draftd.fallback.seams import EngineControl, FallbackTelemetry
from draftd.fallback.state import LevelInForce
from draftd.settings import FallbackSettings

log = logging.getLogger(__name__)

Report = TypeVar("Report", ProbeReport, CanaryReport)

_STOPPING = "the daemon is stopping"


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """Seconds: for one answer; for all of a probe, and of a run of the canaries; and how long a run of the canaries
    waits for clients' requests to be taken before it gives way. A probe does not wait."""

    answer: float = 30.0
    probe: float = 180.0
    canaries: float = 600.0
    patience: float = 30.0


class _Run(Generic[Report]):
    """`work` tries something out, `failed` is the report where that went wrong, `tell` hears of each."""

    def __init__(
        self, work: Callable[[], Report], failed: Callable[[str], Report], tell: Callable[[Report], None]
    ) -> None:
        self.future: Future[Report] = Future()
        self.future.set_running_or_notify_cancel()  # it cannot be taken back: who asks no more may forget it
        self._work: Callable[[], Report] = work
        self._failed: Callable[[str], Report] = failed
        self._tell: Callable[[Report], None] = tell
        self._lock = threading.Lock()
        self._report: Report | None = None

    def do(self, clock: Callable[[], float]) -> None:
        """Never raises: whatever goes wrong is in the report."""
        began = clock()
        try:
            report = self._work()
        except Unanswered as error:
            report = self._failed(str(error))
        except DraftdError as error:
            report = self._failed(error.message)
        except Exception as error:
            log.warning("a probe or a run of the canaries failed", exc_info=error)
            report = self._failed(f"{type(error).__name__}: {error}")
        self._report = replace(report, seconds=clock() - began)
        self._tell(self._report)

    def hand_over(self) -> None:
        assert self._report is not None
        self._end(self._report)

    def give_up(self, why: str) -> None:
        self._end(self._failed(why))

    def _end(self, report: Report) -> None:
        with self._lock:
            if not self.future.done():
                self.future.set_result(report)


class ProbeRunner:
    """Any thread may ask; a future always ends, and always in a report."""

    def __init__(
        self,
        engine: EngineControl,
        borrow: Borrow,
        settings: FallbackSettings,
        telemetry: FallbackTelemetry,
        *,
        in_force: LevelInForce,
        prompts: FrozenPrompts | None = None,
        limits: ProbeLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`borrow` holds a drafter's weights. `prompts`: the package's own, where none are given; raises
        FrozenPromptError where those are broken."""
        self._engine, self._borrow, self._settings, self._telemetry = engine, borrow, settings, telemetry
        self._in_force, self._clock = in_force, clock
        self._prompts = FrozenPrompts.shipped() if prompts is None else prompts
        self._limits = limits or ProbeLimits()
        self._requests = ProbeRequests(engine, self._limits.answer, clock)
        self.baselines = ProbeBaselines(self._prompts.probe)
        self._thread = threading.Thread(target=self._work, name="draftd-probes", daemon=True)
        self._stopping = threading.Event()
        self._changed = threading.Condition()  # guards the run
        self._run: _Run[ProbeReport] | _Run[CanaryReport] | None = None  # waiting or under way

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Ends what is under way, as failed. False where the thread did not end in time."""
        self._stopping.set()
        self._requests.abort()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        alive = self._thread.is_alive()
        with self._changed:
            run, self._run = self._run, self._run if alive else None
        if run is not None:
            run.give_up(_STOPPING)
        return not alive

    @property
    def busy(self) -> bool:
        return self._run is not None

    def probe(self, level: LadderLevel, baselines: Mapping[StreamKey, Baseline] | None = None) -> Future[ProbeReport]:
        """Tries `level` out. `baselines`, of clients' texts, are named beside the figures and judge nothing: other
        texts are drafted otherwise. Raises NotNow while a run is under way, and where the level drafts nothing, or its
        drafter cannot be had."""
        known = [one.mean for (drafter, _), one in (baselines or {}).items() if drafter == level.drafter]
        beside = f"; clients' texts had {sum(known) / len(known):.2f} while all was well" if known else ""
        return self._put(self._probing(level, lambda: self._probe(level, beside)))

    def learn(self, level: LadderLevel) -> Future[ProbeReport]:
        """A probe while all is well: where it is good, what it showed is what later ones of the same drafter are
        compared with. Raises NotNow as `probe` does."""
        return self._put(self._probing(level, lambda: self._probe(level, learn=True)))

    def canaries(self) -> Future[CanaryReport]:
        """Raises NotNow while a run is under way, and where nothing can be drafted."""
        level = self._in_force.level
        if level.drafter is None:
            drafting = [one for one in reversed(self._in_force.ladder) if one.drafter is not None]
            at_hand = (
                one for one in drafting if one.drafter is not None and not why_missing(one.drafter, self._engine)
            )
            level = next(at_hand, drafting[0] if drafting else level)
        self._check(level)

        def tell(report: CanaryReport) -> None:
            self._telemetry.canaries(level.kind, report.verdict, report.divergences, report.seconds)

        return self._put(_Run(lambda: self._canaries(level), lambda why: CanaryReport(Verdict.FAILED, why), tell))

    def _probing(self, level: LadderLevel, work: Callable[[], ProbeReport]) -> _Run[ProbeReport]:
        self._check(level)

        def tell(report: ProbeReport) -> None:
            self._telemetry.probe(level.kind, report.verdict, report.acceptance, report.speedup, report.seconds)

        return _Run(work, lambda why: ProbeReport(level, Verdict.FAILED, why), tell)

    def _put(self, run: _Run[Report]) -> Future[Report]:
        with self._changed:
            if self._stopping.is_set():
                raise NotNow(_STOPPING)
            if self._run is not None:
                raise NotNow("a probe or a run of the canaries is under way")
            self._run = run
            self._changed.notify_all()
        return run.future

    # its own thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._run is not None or self._stopping.is_set())
                run = self._run
            if self._stopping.is_set() or run is None:
                return  # close gives up what waits
            run.do(self._clock)
            with self._changed:
                self._run = None
            run.hand_over()

    def _probe(self, level: LadderLevel, beside: str = "", learn: bool = False) -> ProbeReport:
        assert level.drafter is not None
        age = self.baselines.age
        limits = RunLimits(self._engine, self._stopping, seconds=self._limits.probe, clock=self._clock)
        prompts, ended = run_probe(level, self._prompts.probe, self._requests, limits, self._borrow)
        settings = ProbeSettings(floor=self._settings.acceptance_floor)
        known = self.baselines.of(level.drafter)
        report = judge_probe(level, prompts, ended, known, self._tolerated, settings)
        if learn and not ended and report.verdict is Verdict.GOOD and (showed := learnt(prompts)) is not None:
            self.baselines.learn(level.drafter, showed, age)
        return replace(report, reason=report.reason + beside)

    def _canaries(self, level: LadderLevel) -> CanaryReport:
        limits = RunLimits(
            self._engine,
            self._stopping,
            seconds=self._limits.canaries,
            patience=self._limits.patience,
            clock=self._clock,
        )
        text = self._engine.tokenizer.decode
        outcomes, ended = run_canaries(level, self._prompts.canaries, self._requests, limits, self._borrow, text)
        return judge_canaries(outcomes, ended, self._tolerated, self._settings.canary_tolerance)

    @property
    def _tolerated(self) -> float | None:
        return tolerated_gap(self._engine.info.backend)

    def _check(self, level: LadderLevel) -> None:
        if level.drafter is None:
            raise NotNow(f"nothing is drafted at {level.label}: there is nothing to try")
        if why := why_missing(level.drafter, self._engine):
            raise NotNow(f"nothing is drafted at {level.label}: {why}")
