"""What the daemon sees of requests, errors and the machine, and which signals that amounts to.

`SignalState` is a state that is never changed: each event gives the next one, `signals` says which levels it asks for.
Acceptance is judged by drift and by a floor, speed by measured cost; each says with figures what it rests on. After a
step the windows and sums begin anew, and only requests of the level in force count. Times are the ladder's clock, in
seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName, FallbackLevel, WorkloadClass
from draftd.counts import DraftCounts
from draftd.fallback.drift import WINDOWS, AcceptanceSample, Baseline, Cusum, CusumSettings, Floor, StreamKey
from draftd.fallback.ladder import Cause, Signal
from draftd.fallback.probes import CanaryReport, ProbeVerdict
from draftd.settings import FallbackSettings

_DRAFT_MODELS = frozenset({DRAFT_MODEL, LIGHT_DRAFT_MODEL})
_HARD = frozenset({Cause.MEMORY, Cause.VERIFIER_ERRORS, Cause.DRAFTER_ERRORS, Cause.QUALITY})
_MOST_ERRORS = 1024  # times kept of each kind

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
    """One reading. None could not be read. `swap_ins` are bytes since the daemon started."""

    critical: bool | None
    heavy: bool | None
    swap_ins: int | None


@dataclass(frozen=True, slots=True)
class Spell:
    """For how long something has been so. A reading of None neither begins nor ends it, nor makes it longer."""

    since: float | None = None
    last: float = 0.0

    def observe(self, now: float, so: bool | None) -> Spell:
        if so is None:
            return self
        if not so:
            return Spell()
        return Spell(now if self.since is None else min(self.since, now), now)

    def evidence(self, what: str, most: float) -> str:
        """Between the first and the last reading of it; empty where that is too short."""
        if self.since is None or self.last - self.since < most:
            return ""
        return f"{what} for {self.last - self.since:.0f} s, limit {most:g} s"


@dataclass(frozen=True, slots=True)
class CounterGrowth:
    """How much a counter grew within a window. Bounded: it keeps a mark an eighth of a window at most."""

    marks: tuple[tuple[float, int], ...] = ()  # (time, counter), oldest first; the last one is the newest reading

    def observe(self, now: float, count: int | None, window: float) -> CounterGrowth:
        """A counter that went back, or a clock that did, begins anew."""
        if count is None:
            return self
        if self.marks and (count < self.marks[-1][1] or now < self.marks[-1][0]):
            return CounterGrowth(((now, count),))
        kept = self.marks
        if len(kept) >= 2 and now - kept[-2][0] < window / 8:
            kept = kept[:-1]
        kept = (*kept, (now, count))
        while len(kept) > 2 and kept[1][0] <= now - window:  # one mark at the window's beginning or before it stays
            kept = kept[1:]
        return CounterGrowth(kept)

    def within(self, now: float, window: float) -> int:
        """The growth since the window began; of what was last seen before it, nothing."""
        inside = [i for i, (at, _) in enumerate(self.marks) if at > now - window]
        return self.marks[-1][1] - self.marks[max(0, inside[0] - 1)][1] if inside else 0


@dataclass(frozen=True, slots=True)
class SignalState:
    """What is known at the ladder's `position`, where it has been `since`. `quality` is what the last bad run of the
    canaries complained of, empty once one was good."""

    settings: FallbackSettings
    cusum: CusumSettings
    streams: Mapping[StreamKey, Cusum]
    position: int
    quality: str
    floor: Floor  # of acceptance
    speed: Floor  # over autoregressive decoding
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
        """`baselines` are frozen ones, or those learnt before a restart; `quality` and `position` as saved."""
        streams = {kind: Cusum(baseline) for kind, baseline in baselines.items()}
        floor, speed = Floor(settings.acceptance_floor), Floor(1.0)
        return cls(settings, cusum or CusumSettings(), streams, position, quality, floor, speed)

    def add_request(self, at: float, drafter: DrafterName, workload: WorkloadClass, counts: DraftCounts) -> SignalState:
        """A request of the level in force ended: what `drafter` did of it. One without a draft says nothing."""
        if not counts.drafts:
            return self
        sample, kind = AcceptanceSample(counts.accepted, counts.rollbacks), (drafter, workload)
        before = self.streams.get(kind) or Cusum()
        # A draft model's baseline is that of the top level: below it, something was wrong.
        learn = self.position == 0 or drafter != DRAFT_MODEL
        stream = before.observe(sample, self.cusum, at, learn=learn)
        guard = self.advance(at)
        floor, cost = guard.floor, counts.draft_cost
        if drafter in _DRAFT_MODELS:  # prompt lookup drafts at no cost and rightly misses: break-even judges it
            floor = floor.add(sample.accepted, sample.reached)
        return replace(
            guard,
            streams=self.streams if stream is before else {**self.streams, kind: stream},
            floor=floor,
            speed=guard.speed if cost is None else guard.speed.add(counts.gained, counts.drafts * cost),
        )

    def add_failure(self, cause: Cause, at: float) -> SignalState:
        """A speculative step, or a draft, failed."""
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
        """The machine has slept: what lasted before was not watched meanwhile."""
        return replace(self, critical=Spell(), heavy=Spell())

    def canaries(self, report: CanaryReport) -> SignalState:
        """Only a good run takes back what a bad one said; one that could not be run says nothing."""
        if report.verdict is ProbeVerdict.BAD:
            return replace(self, quality=report.reason or "the canaries were bad")
        return replace(self, quality="") if report.verdict is ProbeVerdict.GOOD else self

    def advance(self, now: float) -> SignalState:
        """Closes the windows that are over."""
        floor, speed = self.floor.advance(now, self.settings), self.speed.advance(now, self.settings)
        return self if floor is self.floor and speed is self.speed else replace(self, floor=floor, speed=speed)

    def on_step(self, now: float, position: int) -> SignalState:
        """The ladder has stepped, to `position`: windows, sums and errors begin anew, and what was swapped before says
        nothing of what comes after. Baselines, pressure, heat and the canaries' verdict stay."""
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
        """By workload class, the CUSUM over its limit, of the drafter that is worst off; only where there is a
        baseline."""
        shares: dict[str, float] = {}
        for (_, workload), stream in self.streams.items():
            if stream.baseline is not None:
                share = stream.level / self.cusum.limit
                shares[workload.value] = max(shares.get(workload.value, 0.0), share)
        return shares

    def worst_drift(self, now: float) -> StreamKey | None:
        """The one that has drifted furthest from its baseline, and is seen still: one that is not could never be seen
        to recover."""
        since = now - WINDOWS * self.settings.window_seconds
        streams = self.streams.items()
        seen = {
            kind: stream.level for kind, stream in streams if stream.exceeds_limit(self.cusum) and stream.last >= since
        }
        return max(seen, key=lambda kind: seen[kind], default=None)

    def relearn(self, kind: StreamKey) -> SignalState:
        """The traffic has changed: its baseline is learnt anew."""
        return replace(self, streams={**self.streams, kind: Cusum()})

    def forget(self, frozen: Mapping[StreamKey, Baseline]) -> SignalState:
        """The drafters with weights are others on purpose: what was learnt of the old ones is no baseline any more.
        `frozen` ones stay."""
        kept = {kind: stream for kind, stream in self.streams.items() if kind[0] == PROMPT_LOOKUP}
        return replace(self, streams={**{kind: Cusum(baseline) for kind, baseline in frozen.items()}, **kept})

    def learnt(self) -> dict[StreamKey, Baseline]:
        """The baselines, for saving."""
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
