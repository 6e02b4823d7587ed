"""What the daemon sees for itself: feeds the guard with requests, errors, the machine and the canaries' word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from draftd.control.clock import SteadyClock
from draftd.control.intake import Ended, Failure, Intake
from draftd.control.machine import MachineFeed
from draftd.core import DrafterKind
from draftd.policy.drift import Baseline
from draftd.policy.guard import Finished, Guard, GuardSettings, Kind
from draftd.policy.ladder import Demand, Rung, Signal
from draftd.policy.reports import CanaryReport


class Senses:
    """One thread's. `judge` False: only the canaries' word asks for anything."""

    def __init__(
        self,
        intake: Intake,
        feed: MachineFeed,
        guard: Guard,
        ladder: Sequence[Rung],
        settings: GuardSettings,
        clock: SteadyClock,
        *,
        judge: bool = True,
        frozen: Mapping[Kind, Baseline] | None = None,
    ) -> None:
        """`frozen` baselines are a person's word: they are never forgotten."""
        self._intake, self._feed, self._guard = intake, feed, guard
        self._ladder, self._settings, self._clock, self._judge = tuple(ladder), settings, clock, judge
        self._frozen = dict(frozen or {})
        self._rung = guard.rung or 0
        self._anew_at = float("-inf")

    @property
    def baselines(self) -> Mapping[Kind, Baseline]:
        return self._guard.learnt()

    @property
    def quality(self) -> str:
        """What the canaries complain of; empty where they do not."""
        return self._guard.quality

    @property
    def complaint(self) -> bool:
        return bool(self._guard.quality)

    @property
    def drift(self) -> Mapping[str, float]:
        return self._guard.drift(self._settings)

    def look(self, now: float) -> None:
        """Takes in what there is."""
        guard, settings = self._guard, self._settings
        for heard in self._intake.take():
            at = min(self._clock.of(heard.at), now)
            if isinstance(heard, Ended):
                finished = self._finished(heard, at) if self._clock.of(heard.arrival) >= self._anew_at else None
                guard = guard if finished is None else guard.finished(finished, settings)
            elif heard.what is Failure.VERIFIER:
                guard = guard.verifier_error(at)
            else:
                guard = guard.drafter_error(at)
        reading = self._feed.reading()
        if reading is not None:
            guard = guard.machine(reading, now, settings)
        self._guard = guard.advance(now, settings)

    def canaries(self, report: CanaryReport, now: float) -> None:
        self._guard = self._guard.canaries(report, now)

    def demands(self, now: float) -> tuple[Demand, ...]:
        found = self._guard.demands(now, self._settings)
        return found if self._judge else tuple(demand for demand in found if demand.signal is Signal.QUALITY)

    def anew(self, rung: int, now: float) -> None:
        """The ladder stands elsewhere, or the draft is another: requests from before count no more."""
        self._guard = self._guard.stepped(now, rung)
        self._rung, self._anew_at = rung, now

    def forget(self) -> None:
        """The drafts with weights are others on purpose: what was learnt of the old ones is no norm any more."""
        lookup = DrafterKind.PROMPT_LOOKUP
        kept = {kind: stream for kind, stream in self._guard.streams.items() if kind[0] is lookup}
        self._guard = replace(self._guard, streams={**Guard.new(self._frozen).streams, **kept})

    def _finished(self, heard: Ended, at: float) -> Finished | None:
        """None where its plan is not of the rung that is stood on."""
        rung, plan = self._ladder[self._rung], heard.plan
        if plan.level is not rung.level or plan.max_draft_tokens > rung.max_draft_tokens or plan.drafter is None:
            return None
        return Finished(
            at,
            heard.accepted,
            heard.rollbacks,
            heard.drafts,
            heard.break_even_tokens,
            plan.drafter,
            heard.workload,
            self._rung,
        )
