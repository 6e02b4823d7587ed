"""Turns requests, errors and the machine's state into signals.

`SignalState` is immutable: each event returns the next state, and `signals` says which levels it asks for. Acceptance
is judged by drift and by a floor, speed by measured cost; each gives its figures. After a step windows and sums
restart, and only requests of the level in force count. Times are the ladder's clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from draftd.core import LIGHT_DRAFT_MODEL, MODEL_DRAFTERS, PROMPT_LOOKUP, DrafterName, FallbackLevel, WorkloadClass
from draftd.counts import DraftCounts
from draftd.fallback.drift import WINDOWS, AcceptanceSample, Baseline, Cusum, CusumSettings, Floor, StreamKey
from draftd.fallback.ladder import Cause, Signal
from draftd.fallback.probes import CanaryReport, ProbeVerdict
from draftd.settings import FallbackSettings

_WITH_WEIGHTS = frozenset({*MODEL_DRAFTERS, LIGHT_DRAFT_MODEL})
_HARD = frozenset({Cause.MEMORY, Cause.VERIFIER_ERRORS, Cause.DRAFTER_ERRORS, Cause.QUALITY})
_MOST_ERRORS = 1024  # times kept of each kind of error

LEVELS: Mapping[Cause, FallbackLevel] = {
    Cause.ACCEPTANCE_FLOOR: FallbackLevel.SHORT_BLOCK,
    Cause.ACCEPTANCE_DRIFT: FallbackLevel.SHORT_BLOCK,
    Cause.BREAK_EVEN: FallbackLevel.AUTOREGRESSIVE,
    Cause.SWAP: FallbackLevel.LIGHT_DRAFT,
    Cause.MEMORY: FallbackLevel.AUTOREGRESSIVE,
    Cause.THERMAL: FallbackLevel.SHORT_BLOCK,
    Cause.VERIFIER_ERRORS: FallbackLevel.AUTOREGRESSIVE,
    Cause.DRAFTER_ERRORS: FallbackLevel.LIGHT_DRAFT,
    Cause.QUALITY: FallbackLevel.AUTOREGRESSIVE,
}
"""Which level each cause asks for; an alert names its own."""


@dataclass(frozen=True, slots=True)
class MachineReading:
    """One reading; None for values that could not be read. `critical`: whether memory pressure is critical. `heavy`:
    whether the thermal level is HEAVY or worse. `swap_ins`: bytes since the daemon started."""

    critical: bool | None
    heavy: bool | None
    swap_ins: int | None


@dataclass(frozen=True, slots=True)
class Spell:
    """How long a condition has lasted. A reading of None neither starts, ends nor extends it."""

    since: float | None = None
    last: float = 0.0

    def observe(self, now: float, so: bool | None) -> Spell:
        if so is None:
            return self
        if not so:
            return Spell()
        return Spell(now if self.since is None else min(self.since, now), now)

    def evidence(self, what: str, limit: float) -> str:
        """Describes the seconds between the condition's first and last reading; empty below `limit` seconds. `what`:
        the condition in words."""
        if self.since is None or self.last - self.since < limit:
            return ""
        return f"{what} for {self.last - self.since:.0f} s, limit {limit:g} s"


@dataclass(frozen=True, slots=True)
class CounterGrowth:
    """The growth of a counter within a window. Bounded: at most eight marks per window."""

    marks: tuple[tuple[float, int], ...] = ()  # (time, counter), oldest first; the last is the newest reading

    def observe(self, now: float, count: int | None, window: float) -> CounterGrowth:
        """Adds a reading. Starts over if the counter or the clock went back."""
        if count is None:
            return self
        if self.marks and (count < self.marks[-1][1] or now < self.marks[-1][0]):
            return CounterGrowth(((now, count),))
        kept = self.marks
        if len(kept) >= 2 and now - kept[-2][0] < window / 8:
            kept = kept[:-1]
        kept = (*kept, (now, count))
        while len(kept) > 2 and kept[1][0] <= now - window:  # one mark at or before the window's start stays
            kept = kept[1:]
        return CounterGrowth(kept)

    def within(self, now: float, window: float) -> int:
        """Returns the growth since the window began; 0 if the last reading is older."""
        inside = [i for i, (at, _) in enumerate(self.marks) if at > now - window]
        return self.marks[-1][1] - self.marks[max(0, inside[0] - 1)][1] if inside else 0


@dataclass(frozen=True, slots=True)
class SignalState:
    """The evidence for signals. `position`: the ladder's, which has not changed since the time `since`. `floor`,
    `speed`: the drafts' acceptance, and the speed over autoregressive decoding, each with its minimum. `quality`: the
    complaint of the last bad canary run, empty after a good one."""

    settings: FallbackSettings
    cusum: CusumSettings
    streams: Mapping[StreamKey, Cusum]
    position: int
    quality: str
    floor: Floor  # acceptance
    speed: Floor  # speed over autoregressive decoding
    since: float = float("-inf")
    errors: Mapping[Cause, tuple[float, ...]] = field(default_factory=dict)
    critical: Spell = Spell()
    heavy: Spell = Spell()
    swap: CounterGrowth = CounterGrowth()

    @classmethod
    def new(
        cls,
        settings: FallbackSettings,
        baselines: Mapping[StreamKey, Baseline],
        *,
        quality: str = "",
        position: int = 0,
        cusum: CusumSettings | None = None,
    ) -> SignalState:
        """Returns a new state. `baselines`: frozen ones, or those learnt before a restart; `quality` and `position`: as
        saved."""
        streams = {kind: Cusum(baseline) for kind, baseline in baselines.items()}
        floor, speed = Floor(settings.acceptance_floor), Floor(1.0)
        return cls(settings, cusum or CusumSettings(), streams, position, quality, floor, speed)

    def add_request(self, at: float, drafter: DrafterName, workload: WorkloadClass, counts: DraftCounts) -> SignalState:
        """Adds `drafter`'s part of a request that ended at the level in force. A request without drafts is ignored."""
        if not counts.drafts:
            return self
        sample, kind = AcceptanceSample(counts.accepted, counts.rollbacks), (drafter, workload)
        before = self.streams.get(kind) or Cusum()
        # The baseline of a draft model or head is learnt at the top level only: below, something was wrong.
        learn = self.position == 0 or drafter not in MODEL_DRAFTERS
        stream = before.observe(sample, self.cusum, at, learn=learn)
        guard = self.advance(at)
        floor, cost = guard.floor, counts.draft_cost
        if drafter in _WITH_WEIGHTS:  # prompt lookup is free, so it may miss often: break-even judges it
            floor = floor.add(sample.accepted, sample.reached)
        return replace(
            guard,
            streams=self.streams if stream is before else {**self.streams, kind: stream},
            floor=floor,
            speed=guard.speed if cost is None else guard.speed.add(counts.gained, counts.drafts * cost),
        )

    def add_failure(self, cause: Cause, at: float) -> SignalState:
        """Adds a failed speculative step or draft."""
        times = (*self.errors.get(cause, ()), at)[-_MOST_ERRORS:]
        return replace(self, errors={**self.errors, cause: times})

    def machine(self, reading: MachineReading, now: float) -> SignalState:
        return replace(
            self,
            critical=self.critical.observe(now, reading.critical),
            heavy=self.heavy.observe(now, reading.heavy),
            swap=self.swap.observe(now, reading.swap_ins, self.settings.window_seconds),
        )

    def woken(self) -> SignalState:
        """Resets durations after the machine has slept, when nothing was observed."""
        return replace(self, critical=Spell(), heavy=Spell())

    def canaries(self, report: CanaryReport) -> SignalState:
        """Adds a canary report. Only a good run clears a bad one's complaint; a run that failed is ignored."""
        if report.verdict is ProbeVerdict.BAD:
            return replace(self, quality=report.reason or "the canaries were bad")
        return replace(self, quality="") if report.verdict is ProbeVerdict.GOOD else self

    def advance(self, now: float) -> SignalState:
        """Closes the windows that are over."""
        floor, speed = self.floor.advance(now, self.settings), self.speed.advance(now, self.settings)
        return self if floor is self.floor and speed is self.speed else replace(self, floor=floor, speed=speed)

    def on_step(self, now: float, position: int) -> SignalState:
        """Restarts windows, sums and errors after a step to `position`, and swap growth too. Baselines, memory
        pressure, heat and the canaries' verdict stay."""
        return replace(
            self,
            streams={kind: stream.reset(now) for kind, stream in self.streams.items()},
            position=position,
            since=now,
            floor=Floor(self.floor.least, began=now),
            speed=Floor(self.speed.least, began=now),
            errors={},
            swap=CounterGrowth(self.swap.marks[-1:]),
        )

    def signals(self, now: float) -> tuple[Signal, ...]:
        """Returns the signals, each with its evidence."""
        settings, guard = self.settings, self.advance(now)
        floor, speed, window = guard.floor, guard.speed, settings.window_seconds
        accepted = f"acceptance {floor.last:.2f} of"
        faster = f"speed-up {speed.last:.2f} over autoregressive decoding in"
        evidence = {
            Cause.ACCEPTANCE_FLOOR: floor.evidence(accepted, f"floor {floor.least:.2f}", window),
            Cause.ACCEPTANCE_DRIFT: self._drift_evidence(now),
            Cause.BREAK_EVEN: speed.evidence(faster, f"minimum {speed.least:g}", window),
            Cause.SWAP: self._swap_evidence(now),
            Cause.MEMORY: self.critical.evidence("memory pressure critical", settings.critical_seconds),
            Cause.THERMAL: self.heavy.evidence("thermal level heavy", settings.thermal_seconds),
            Cause.VERIFIER_ERRORS: self._failures(Cause.VERIFIER_ERRORS, "failed speculative steps", now),
            Cause.DRAFTER_ERRORS: self._failures(Cause.DRAFTER_ERRORS, "failed drafts", now),
            Cause.QUALITY: self.quality,
        }
        return tuple(
            Signal(cause, LEVELS[cause], text, hard=cause in _HARD)
            for cause, text in evidence.items()
            if text and (settings.guard or cause is Cause.QUALITY)
        )

    def drift(self) -> dict[str, float]:
        """Returns, by workload class, the highest ratio of a drafter's CUSUM to its limit; above 1 is drift. Drafters
        without a baseline are left out."""
        shares: dict[str, float] = {}
        for (_, workload), stream in self.streams.items():
            if stream.baseline is not None:
                share = stream.level / self.cusum.limit
                shares[workload.value] = max(shares.get(workload.value, 0.0), share)
        return shares

    def worst_drift(self, now: float) -> StreamKey | None:
        """Returns the kind of text that has drifted furthest and still occurs: one that no longer occurs could never
        recover."""
        since = now - WINDOWS * self.settings.window_seconds
        streams = self.streams.items()
        seen = {
            kind: stream.level for kind, stream in streams if stream.exceeds_limit(self.cusum) and stream.last >= since
        }
        return max(seen, key=lambda kind: seen[kind], default=None)

    def relearn(self, kind: StreamKey) -> SignalState:
        """Drops a baseline, to be learnt again, because the traffic has changed."""
        return replace(self, streams={**self.streams, kind: Cusum()})

    def forget(self, frozen: Mapping[StreamKey, Baseline]) -> SignalState:
        """Drops the learnt baselines of all drafters except prompt lookup, because an operator has replaced the draft
        models. `frozen` baselines stay."""
        kept = {kind: stream for kind, stream in self.streams.items() if kind[0] == PROMPT_LOOKUP}
        return replace(self, streams={**{kind: Cusum(baseline) for kind, baseline in frozen.items()}, **kept})

    def learnt(self) -> dict[StreamKey, Baseline]:
        """Returns the baselines, for saving."""
        return {kind: stream.baseline for kind, stream in self.streams.items() if stream.baseline is not None}

    def _drift_evidence(self, now: float) -> str:
        kind = self.worst_drift(now)
        if kind is None:
            return ""
        drafter, workload = kind
        return f"{workload.value} by {drafter}: {self.streams[kind].evidence(self.cusum)}"

    def _swap_evidence(self, now: float) -> str:
        window, most = self.settings.window_seconds, self.settings.swap_bytes
        grown = self.swap.within(now, window)
        return f"{grown} bytes read back from swap within {window:g} s, limit {most}" if grown > most else ""

    def _failures(self, cause: Cause, what: str, now: float) -> str:
        window, least = self.settings.window_seconds, min(self.settings.errors, _MOST_ERRORS)
        recent = sum(now - at < window for at in self.errors.get(cause, ()))
        return f"{recent} {what} within {window:g} s, limit {least}" if recent >= least else ""
