"""Runs probes and canaries, one at a time, each on its own thread.

Canaries run at the level in force, because clients use that; if it drafts nothing, at the lowest level that drafts,
because the ladder would climb to that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from draftd.canaries.prompts import Canary, FrozenPrompts
from draftd.core import LadderLevel, Origin
from draftd.engine.handle import EngineHandle
from draftd.errors import DraftdError, NotNow
from draftd.fallback.baselines import ProbeBaselines, learnt
from draftd.fallback.ladder import Ladder
from draftd.fallback.loaded_drafters import why_missing
from draftd.fallback.probe_requests import STOPPING, Borrow, ProbeRequests, ProbeUnanswered
from draftd.fallback.probes import (
    CanaryOutcome,
    CanaryReport,
    ProbedPrompt,
    ProbeReport,
    ProbeVerdict,
    judge_canaries,
    judge_probe,
    tolerated_gap,
)
from draftd.fallback.seams import FallbackTelemetry
from draftd.settings import FallbackSettings

log = logging.getLogger(__name__)

Report = TypeVar("Report", ProbeReport, CanaryReport)


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """Time limits in seconds: one answer; a whole probe; a run of canaries; and how long canaries wait for clients'
    queued requests before giving way. A probe does not wait."""

    answer: float = 30.0
    probe: float = 180.0
    canaries: float = 600.0
    patience: float = 30.0


class ProbeRunner:
    """Starts runs. Any thread may ask; each future ends with a report."""

    def __init__(
        self,
        engine: EngineHandle,
        borrow: Borrow,
        settings: FallbackSettings,
        telemetry: FallbackTelemetry,
        *,
        ladder: Ladder[LadderLevel],
        prompts: FrozenPrompts | None = None,
        limits: ProbeLimits | None = None,
    ) -> None:
        """`borrow`: keeps a drafter's weights loaded. `prompts`: the package's own by default; raises PromptError if
        these are broken."""
        self._engine, self._settings, self._telemetry = engine, settings, telemetry
        self._ladder = ladder
        self._prompts = FrozenPrompts.of_package() if prompts is None else prompts
        self._limits = limits or ProbeLimits()
        self._requests = ProbeRequests(engine, borrow, self._limits.answer)
        self.baselines = ProbeBaselines.of(self._prompts.probe)
        self._lock = threading.Lock()  # guards the present run
        self._thread: threading.Thread | None = None  # thread of the present run
        self._give_up: Callable[[], None] = lambda: None  # ends the run's future

    def close(self, seconds: float) -> bool:
        """Ends the present run as failed. Returns False if its thread did not end in time; it is then left behind."""
        self._requests.abort()
        with self._lock:
            thread = self._thread
        if thread is None:
            return True
        thread.join(seconds)
        if thread.is_alive():
            self._give_up()
        return not thread.is_alive()

    def probe(self, level: LadderLevel, *, learn: bool = False) -> Future[ProbeReport]:
        """Probes `level`. With `learn`, while nothing is wrong: a good result becomes the drafter's baseline. Raises
        NotNow during another run, or if the level drafts nothing or its drafter is unavailable."""
        self._check(level)
        failed = ProbeReport(level, ProbeVerdict.FAILED, "")
        return self._begin(lambda: self._probe(level, learn), failed, self._telemetry.probe)

    def canaries(self) -> Future[CanaryReport]:
        """Runs the canaries. Raises NotNow during another run, or if nothing can be drafted."""
        level = self._ladder.level
        if not level.drafts:
            drafting = [other for other in reversed(self._ladder.levels) if other.drafts]
            at_hand = (other for other in drafting if not why_missing(other.drafter, self._engine))
            level = next(at_hand, drafting[0] if drafting else level)
        self._check(level)
        failed = CanaryReport(ProbeVerdict.FAILED, "")
        return self._begin(lambda: self._canaries(level), failed, partial(self._telemetry.canaries, level.kind))

    def _check(self, level: LadderLevel) -> None:
        if not level.drafts:
            raise NotNow(f"no probe of the fallback level {level.label}: it decodes without drafts")
        if why := why_missing(level.drafter, self._engine):
            raise NotNow(f"no probe of the fallback level {level.label}: its drafts are unavailable: {why}")

    def _begin(self, work: Callable[[], Report], failed: Report, tell: Callable[[Report], None]) -> Future[Report]:
        """Starts a thread. `work` makes the report; after an error it is `failed` with the reason. `tell` receives the
        report."""
        future: Future[Report] = Future()
        future.set_running_or_notify_cancel()  # it cannot be cancelled; a caller may simply drop it

        def end(report: Report) -> None:
            with suppress(InvalidStateError):  # the run was given up
                future.set_result(report)

        def run() -> None:
            began = time.monotonic()
            try:
                report = work()
            except (ProbeUnanswered, DraftdError) as error:
                report = replace(failed, reason=str(error))
            except Exception as error:
                log.warning("a probe or a canary run failed", exc_info=error)
                report = replace(failed, reason=f"{type(error).__name__}: {error}")
            report = replace(report, seconds=time.monotonic() - began)
            tell(report)
            with self._lock:
                self._thread = None
            end(report)

        with self._lock:
            if self._requests.stopping.is_set():
                raise NotNow(STOPPING)
            if self._engine.unloaded:  # no client has asked for long, so none would benefit
                raise NotNow("the weights are unloaded until a client sends a request")
            if self._thread is not None:
                raise NotNow("a probe or a canary run is already active")
            self._thread = threading.Thread(target=run, name="draftd-probe", daemon=True)
            self._give_up = lambda: end(replace(failed, reason=STOPPING))
            self._thread.start()
        return future

    # on the run's thread

    def _probe(self, level: LadderLevel, learn: bool) -> ProbeReport:
        drafting = self._engine.info.with_stand_in(level)
        assert drafting.drafter is not None
        baselines, prompts = self.baselines.drafters, self._prompts.probe
        probed, ended = self._requests.compare(prompts, drafting, Origin.PROBE, self._limits.probe)
        baseline, floor = baselines.get(drafting.drafter), self._settings.acceptance_floor
        report = judge_probe(level, probed, ended, baseline, self._tolerated, floor)
        if learn and not ended and report.verdict is ProbeVerdict.GOOD and (showed := learnt(probed)) is not None:
            baselines[drafting.drafter] = showed
        return report

    def _canaries(self, level: LadderLevel) -> CanaryReport:
        canaries, limits, level = self._prompts.canaries, self._limits, self._engine.info.with_stand_in(level)
        compared, ended = self._requests.compare(canaries, level, Origin.CANARY, limits.canaries, limits.patience)
        outcomes = [self._outcome(canary, prompt) for canary, prompt in zip(canaries, compared, strict=False)]
        return judge_canaries(outcomes, ended, self._tolerated, self._settings.canary_tolerance)

    def _outcome(self, canary: Canary, prompt: ProbedPrompt) -> CanaryOutcome:
        decode = self._engine.tokenizer.decode
        plain, fast = (canary.check.complaint(decode(tokens)) for tokens in (prompt.reference, prompt.drafted))
        complaints = {"autoregressive": plain, "speculative": fast}
        shown = fast if plain == fast else "; ".join(f"{way}: {text}" for way, text in complaints.items() if text)
        return CanaryOutcome(canary.id, not plain, not fast, prompt.divergence, shown)

    @property
    def _tolerated(self) -> float | None:
        return tolerated_gap(self._engine.info.backend)
