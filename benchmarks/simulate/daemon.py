"""A simulated daemon: the real fallback policy, composed as its controller composes it, with a clock that the
simulation sets.

The ladder's clock is the wall clock at its start plus the time since; a restart reads the saved state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName, LadderLevel, WorkloadClass
from draftd.counts import DraftCounts
from draftd.fallback import probes as probe
from draftd.fallback.drift import Baseline, CusumSettings
from draftd.fallback.ladder import (
    Cause,
    LadderSettings,
    LadderState,
    Permit,
    Signal,
    ladder_levels,
    lowest,
    move,
    to_probe,
)
from draftd.fallback.leases import Applied, Leases, Notice
from draftd.fallback.probes import ProbedPrompt, ProbeReport, ProbeVerdict
from draftd.fallback.saved_state import SavedLevels, parse
from draftd.fallback.signals import MachineReading, SignalState
from draftd.settings import FallbackSettings

LADDER = ladder_levels(4, (6, 4, 3, 2), DRAFT_MODEL, (LIGHT_DRAFT_MODEL, PROMPT_LOOKUP))
PROBE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Measurements of a probe: its prompts' counts, and the acceptance baseline that they are compared with."""

    prompts: Sequence[ProbedPrompt]
    baseline: Baseline | None


Prober = Callable[[LadderLevel, float], ProbeResult]  # (level, simulated seconds)


@dataclass(frozen=True, slots=True)
class Finished:
    """Counts of one drafter in a finished request. `at` is a time of the ladder's clock; `position` is the level at
    which the request was planned."""

    at: float
    drafter: DrafterName
    workload: WorkloadClass
    counts: DraftCounts
    position: int


@dataclass(frozen=True, slots=True)
class Step:
    """One change of the fallback level. `previous` and `current` are positions in the ladder, `at` simulated
    seconds."""

    previous: int
    current: int
    signal: Signal
    at: float

    @classmethod
    def between(cls, before: LadderState, after: LadderState, at: float) -> Step | None:
        """Returns the change between two states, or None if the position is the same."""
        if after.position == before.position or after.signal is None:
            return None
        return cls(before.position, after.position, after.signal, at)

    @property
    def up(self) -> bool:
        return self.current < self.previous


@dataclass(frozen=True, slots=True)
class Settings:
    fallback: FallbackSettings = field(default_factory=FallbackSettings)
    cusum: CusumSettings = field(default_factory=CusumSettings)
    ladder: LadderSettings = field(default_factory=LadderSettings)
    lease_seconds: float = 1800.0


class Daemon:
    """Decides about the fallback level as a daemon does. Each `now` is in simulated seconds. `steps` has all changes of
    the level, restarts included; `applied` counts the alert notices by their effect."""

    def __init__(self, settings: Settings, prober: Prober, ladder: Sequence[LadderLevel] = LADDER) -> None:
        self._settings = settings
        self._prober = prober
        self._levels = tuple(ladder)
        self._offset = 0.0
        self._guard = SignalState.new(settings.fallback, {}, cusum=settings.cusum)
        self._ladder = LadderState()
        self._leases = Leases()
        self._tried: set[int] = set()
        self._running: tuple[float, ProbeReport] | None = None
        self._good: tuple[float, ProbeReport] | None = None
        self._check: tuple[float, ProbeReport] | None = (
            None  # end and result of the probe of the current level, whose requests show drift
        )
        self._asked = -1e18  # when the last probe began
        self.steps: list[Step] = []
        self.applied: dict[Applied, int] = dict.fromkeys(Applied, 0)
        self.on_disk = self._document(0.0)

    @property
    def position(self) -> int:
        return self._ladder.position

    @property
    def state(self) -> LadderState:
        return self._ladder

    @property
    def offset(self) -> float:
        """Seconds by which the ladder's clock is ahead of simulated time."""
        return self._offset

    def finished(self, f: Finished) -> None:
        """Adds a finished request to the statistics from which signals (reasons to change the level) are computed.
        Ignores a request that was planned at another level."""
        if f.position == self.position:
            self._guard = self._guard.add_request(f.at, f.drafter, f.workload, f.counts)

    def machine(self, reading: MachineReading, now: float) -> None:
        self._guard = self._guard.machine(reading, now + self._offset)

    def failed(self, cause: Cause, now: float) -> None:
        self._guard = self._guard.add_failure(cause, now + self._offset)

    def notice(self, notice: Notice, now: float) -> Applied:
        self._leases, applied = self._leases.apply(notice, now + self._offset, self._settings.lease_seconds)
        self.applied[applied] += 1
        return applied

    def polled(self, firing: Sequence[Notice], now: float) -> None:
        self._leases = self._leases.reconcile(firing, now + self._offset, self._settings.lease_seconds)

    def hold(self, state: LadderState) -> None:
        """Sets the ladder's state, which begins or ends an operator's hold."""
        self._ladder = state

    def signals(self, now: float) -> tuple[Signal, ...]:
        own = now + self._offset
        self._guard = self._guard.advance(own)
        self._leases = self._leases.expire(own)
        return (*self._guard.signals(own), *self._leases.signals())

    def tick(self, now: float) -> Step | None:
        """Decides whether the level changes. If so, saves the state and returns the change; else returns None."""
        own = now + self._offset
        signals = self._borne_out(self.signals(now), now)
        permit = self._probe(now, own, signals) if self._check is None else None
        before, self._ladder = (
            self._ladder,
            move(self._ladder, self._levels, signals, permit, self._settings.ladder, own),
        )
        step = Step.between(before, self._ladder, now)
        if step is None:
            return None
        self._guard = self._guard.on_step(own, self.position)
        self._tried, self._running, self._good, self._check = set(), None, None, None
        self.steps.append(step)
        self.on_disk = self._document(own)
        return step

    def save(self, now: float) -> None:
        """Saves the state, as the daemon does regularly to keep its baselines."""
        self.on_disk = self._document(now + self._offset)

    def restart(self, now: float, ahead: float, saved: str | None = None) -> None:
        """Kills the daemon and starts it with a wall clock that is `ahead` seconds ahead of simulated time. `saved` is
        the state to read, by default the last one that was saved."""
        own = now + ahead
        restored = parse(self.on_disk if saved is None else saved, self._levels).resume_at(own)
        self._offset = ahead
        self._ladder = restored.ladder
        self._leases = restored.leases
        self._guard = SignalState.new(
            self._settings.fallback,
            restored.baselines,
            quality=restored.quality,
            position=restored.ladder.position,
            cusum=self._settings.cusum,
        )
        self._tried, self._running, self._good, self._asked = set(), None, None, -1e18
        self._check = None

    def _document(self, own: float) -> str:
        guard = self._guard
        saved = SavedLevels.of(
            own, self._levels, self._ladder, leases=self._leases, baselines=guard.learnt(), quality=guard.quality
        )
        return saved.model_dump_json(indent=1)

    def _borne_out(self, signals: Sequence[Signal], now: float) -> Sequence[Signal]:
        """Returns `signals`. Leaves out the signal of acceptance drift until a probe has confirmed that the draft is
        worse than before."""
        kind = self._guard.worst_drift(now + self._offset)
        if kind is None:
            self._check = None
            return signals
        if self._check is None:
            self._check = now + PROBE_SECONDS, self._judged(replace(self._levels[self.position], drafter=kind[0]), now)
        ended, report = self._check
        if now >= ended and kind[0] != PROMPT_LOOKUP and not report.as_ever:
            return signals
        if now >= ended or kind[0] == PROMPT_LOOKUP:
            self._guard, self._check = self._guard.relearn(kind), None
        return [one for one in signals if one.cause is not Cause.ACCEPTANCE_DRIFT]

    def _probe(self, now: float, own: float, signals: Sequence[Signal]) -> Permit | None:
        """Starts probes and evaluates them when they end. Returns the permit for a step up, or None."""
        if self._ladder.position == 0:
            return None
        target = to_probe(self._levels, self._ladder.position, self._tried)
        assert target is not None
        if self._running is not None and now >= self._running[0]:
            ended, report = self._running
            self._running = None
            if report.verdict is ProbeVerdict.GOOD:
                self._good = ended + self._offset, report
            else:
                self._good = None
                self._tried.add(target)
                if all(
                    level.drafter in {self._levels[i].drafter for i in self._tried}
                    for level in self._levels[: self.position]
                ):
                    self._tried.clear()
            target = to_probe(self._levels, self._ladder.position, self._tried)
            assert target is not None
        settings = self._settings.ladder
        if self._good is not None:
            made, report = self._good
            if probe.permits(report, made, self._ladder, self._levels, settings, own):
                return Permit(self._levels.index(report.level), report.reason)
            self._good = None
        due = own - self._ladder.since >= self._ladder.wait(settings) - PROBE_SECONDS
        wanted = all(lowest(self._levels, signal.asks_for) <= target for signal in signals)
        if due and wanted and self._running is None and now - self._asked >= settings.cooldown:
            self._asked = now
            self._running = now + PROBE_SECONDS, self._judged(self._levels[target], now)
        return None

    def _judged(self, level: LadderLevel, now: float) -> ProbeReport:
        shown = self._prober(level, now)
        floor = self._settings.fallback.acceptance_floor
        report = probe.judge_probe(level, shown.prompts, "", shown.baseline, None, floor)
        return replace(report, seconds=PROBE_SECONDS)
