"""What the daemon sees of requests, errors and the machine, and which signals that amounts to.

`Guard` is a state that is never changed: each event gives the next one, `signals` says which levels it asks for.
Acceptance is judged by drift and by a floor, speed by measured cost; each says with figures what it rests on. After a
step the windows and sums begin anew, and only requests of the level in force count. Times are the ladder's clock, in
seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, DrafterName, FallbackLevel, WorkloadClass
from draftd.fallback.drift import (
    Baseline,
    Cusum,
    CusumSettings,
    DriftVerdict,
    Floor,
    FloorSettings,
    Sample,
    Stream,
    StreamKey,
)
from draftd.fallback.ladder import Cause, Signal
from draftd.fallback.probes import CanaryReport, Verdict
from draftd.settings import FallbackSettings


@dataclass(frozen=True, slots=True)
class Machine:
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

    @property
    def seconds(self) -> float:
        """Between the first and the last reading of it."""
        return 0.0 if self.since is None else self.last - self.since

    def lasts(self, seconds: float) -> bool:
        return self.since is not None and self.seconds >= seconds


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a counter grew within a window. Bounded: it keeps a mark an eighth of a window at most."""

    marks: tuple[tuple[float, int], ...] = ()  # (time, counter), oldest first; the last one is the newest reading

    def observe(self, now: float, count: int | None, window: float) -> Growth:
        """A counter that went back, or a clock that did, begins anew."""
        if count is None:
            return self
        if self.marks and (count < self.marks[-1][1] or now < self.marks[-1][0]):
            return Growth(((now, count),))
        kept = self.marks
        if len(kept) >= 2 and now - kept[-2][0] < window / 8:
            kept = kept[:-1]
        kept = (*kept, (now, count))
        while len(kept) > 2 and kept[1][0] <= now - window:  # one mark at the window's beginning or before it stays
            kept = kept[1:]
        return Growth(kept)

    def within(self, now: float, window: float) -> int:
        """The growth since the window began; of what was last seen before it, nothing."""
        inside = [i for i, (at, _) in enumerate(self.marks) if at > now - window]
        if not inside:
            return 0
        first = max(0, inside[0] - 1)
        return self.marks[-1][1] - self.marks[first][1]

    def anew(self) -> Growth:
        return Growth(self.marks[-1:])


@dataclass(frozen=True, slots=True)
class MachineWatch:
    """What the readings so far amount to."""

    critical: Spell = Spell()
    heavy: Spell = Spell()
    swap: Growth = Growth()

    def observe(self, reading: Machine, now: float, window: float) -> MachineWatch:
        return MachineWatch(
            self.critical.observe(now, reading.critical),
            self.heavy.observe(now, reading.heavy),
            self.swap.observe(now, reading.swap_ins, window),
        )

    def stepped(self) -> MachineWatch:
        """What was swapped before a step says nothing of what came after. Pressure and heat go on as they are."""
        return replace(self, swap=self.swap.anew())


_DRAFT_MODELS = frozenset({DRAFT_MODEL, LIGHT_DRAFT_MODEL})
_HARD = frozenset({Cause.MEMORY, Cause.VERIFIER_ERRORS, Cause.DRAFTER_ERRORS, Cause.QUALITY})
_MOST_ERRORS = 1024  # times kept of each kind
_REACHED_PER_REQUEST = 20  # drafted tokens that a request reaches at least, on average, for a window to count


def default_levels() -> dict[Cause, FallbackLevel]:
    """Which level each cause asks for; an alert names its own."""
    return {
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


@dataclass(frozen=True, slots=True)
class Finished:
    """One request's end. `position` is that of its plan's level; `break_even_tokens` as DraftCounts has it."""

    at: float
    accepted: int
    rollbacks: int
    drafts: int
    break_even_tokens: float
    drafter: DrafterName
    workload: WorkloadClass
    position: int


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """`floor` also gives the windows over which speed, errors and swap-ins are judged. Seconds and bytes."""

    floor: FloorSettings = field(default_factory=FloorSettings)
    cusum: CusumSettings = field(default_factory=CusumSettings)
    errors: int = 3
    critical_seconds: float = 10.0
    thermal_seconds: float = 60.0
    swap_bytes: int = 128 * 1024 * 1024
    speedup_floor: float = 1.0
    levels: Mapping[Cause, FallbackLevel] = field(default_factory=default_levels)
    speed: FloorSettings = field(init=False)  # windows and samples as for acceptance, with the floor of speed

    def __post_init__(self) -> None:
        object.__setattr__(self, "speed", replace(self.floor, floor=self.speedup_floor))

    @classmethod
    def of(cls, settings: FallbackSettings) -> GuardSettings:
        return cls(
            floor=FloorSettings(
                floor=settings.acceptance_floor,
                window_seconds=settings.window_seconds,
                least_requests=settings.least_requests,
                least_reached=_REACHED_PER_REQUEST * settings.least_requests,
            ),
            errors=settings.errors,
            critical_seconds=settings.critical_seconds,
            thermal_seconds=settings.thermal_seconds,
            swap_bytes=settings.swap_bytes,
        )

    @property
    def window(self) -> float:
        return self.floor.window_seconds

    @property
    def stale_after(self) -> float:
        """A kind of text that was not seen for so long asks for nothing."""
        return self.floor.windows * self.floor.window_seconds


@dataclass(frozen=True, slots=True)
class Guard:
    """What is known. `position` is the ladder's; None counts requests of any. `quality` is what the last bad run of the
    canaries complained of, empty once one was good."""

    streams: Mapping[StreamKey, Stream] = field(default_factory=dict)
    floor: Floor = field(default_factory=Floor)
    speed: Floor = field(default_factory=Floor)
    verifier_errors: tuple[float, ...] = ()
    drafter_errors: tuple[float, ...] = ()
    watch: MachineWatch = field(default_factory=MachineWatch)
    quality: str = ""
    position: int | None = None

    @classmethod
    def new(cls, baselines: Mapping[StreamKey, Baseline], *, quality: str = "", position: int | None = None) -> Guard:
        """`baselines` are frozen ones, or those learnt before a restart; `quality` and `position` as saved."""
        streams = {kind: Stream(Cusum(baseline)) for kind, baseline in baselines.items()}
        return cls(streams=streams, quality=quality, position=position)

    def finished(self, f: Finished, settings: GuardSettings) -> Guard:
        """A request ended. One without a draft, or of another level, says nothing."""
        if not f.drafts or (self.position is not None and f.position != self.position):
            return self
        sample = Sample(f.accepted, f.rollbacks)
        kind = (f.drafter, f.workload)
        before = self.streams.get(kind) or Stream(Cusum())
        # A draft model's baseline is that of the top level: below it, something was wrong.
        stream = before.observe(f.at, sample, settings.cusum, f.position == 0 or f.drafter != DRAFT_MODEL)
        floor = self.floor.advance(f.at, settings.floor)
        if f.drafter in _DRAFT_MODELS:  # prompt lookup drafts at no cost and rightly misses: break-even judges it
            floor = floor.observe(sample)
        speed = self.speed.advance(f.at, settings.speed).add(f.drafts + f.accepted, f.drafts + f.break_even_tokens)
        return Guard(
            self.streams if stream is before else {**self.streams, kind: stream},
            floor,
            speed,
            self.verifier_errors,
            self.drafter_errors,
            self.watch,
            self.quality,
            self.position,
        )

    def verifier_error(self, now: float) -> Guard:
        return replace(self, verifier_errors=(*self.verifier_errors, now)[-_MOST_ERRORS:])

    def drafter_error(self, now: float) -> Guard:
        return replace(self, drafter_errors=(*self.drafter_errors, now)[-_MOST_ERRORS:])

    def machine(self, reading: Machine, now: float, settings: GuardSettings) -> Guard:
        return replace(self, watch=self.watch.observe(reading, now, settings.window))

    def canaries(self, report: CanaryReport, now: float) -> Guard:
        """Only a good run takes back what a bad one said; one that could not be run says nothing."""
        if report.verdict is Verdict.BAD:
            return replace(self, quality=report.reason or "the canaries were bad")
        return replace(self, quality="") if report.verdict is Verdict.GOOD else self

    def advance(self, now: float, settings: GuardSettings) -> Guard:
        """Closes the windows that are over."""
        floor = self.floor.advance(now, settings.floor)
        speed = self.speed.advance(now, settings.speed)
        return self if floor is self.floor and speed is self.speed else replace(self, floor=floor, speed=speed)

    def stepped(self, now: float, position: int | None = None) -> Guard:
        """The ladder has stepped, to `position`: windows, sums and errors begin anew. Baselines, the machine's state
        and the canaries' verdict stay."""
        return Guard(
            {kind: stream.stepped(now) for kind, stream in self.streams.items()},
            Floor(began=now),
            Floor(began=now),
            watch=self.watch.stepped(),
            quality=self.quality,
            position=position,
        )

    def signals(self, now: float, settings: GuardSettings) -> tuple[Signal, ...]:
        """What all of it asks for, each with its evidence."""
        evidence = {
            Cause.ACCEPTANCE_FLOOR: self._floor(now, settings),
            Cause.ACCEPTANCE_DRIFT: self._drift(now, settings),
            Cause.BREAK_EVEN: self._break_even(now, settings),
            Cause.SWAP: self._swap(now, settings),
            Cause.MEMORY: self._memory(settings),
            Cause.THERMAL: self._thermal(settings),
            Cause.VERIFIER_ERRORS: _errors(self.verifier_errors, "failed speculative steps", now, settings),
            Cause.DRAFTER_ERRORS: _errors(self.drafter_errors, "failed drafts", now, settings),
            Cause.QUALITY: self.quality,
        }
        return tuple(
            Signal(cause, settings.levels[cause], found, hard=cause in _HARD)
            for cause, found in evidence.items()
            if found and cause in settings.levels
        )

    def drift(self, settings: GuardSettings) -> dict[str, float]:
        """By workload class, the CUSUM over its limit, of the drafter that is worst off; only where there is a
        baseline."""
        found: dict[str, float] = {}
        for (_, workload), stream in self.streams.items():
            if stream.cusum.baseline is not None:
                share = stream.cusum.level / settings.cusum.limit
                found[workload.value] = max(found.get(workload.value, 0.0), share)
        return found

    def learnt(self) -> dict[StreamKey, Baseline]:
        """The baselines, for saving."""
        return {
            kind: stream.cusum.baseline for kind, stream in self.streams.items() if stream.cusum.baseline is not None
        }

    def _floor(self, now: float, settings: GuardSettings) -> str:
        floor = self.floor.advance(now, settings.floor)
        if floor.verdict(settings.floor) is not DriftVerdict.DRIFTED:
            return ""
        return (
            f"acceptance {floor.last:.2f} of {floor.last_requests} requests, floor {settings.floor.floor:.2f}, "
            f"in {floor.below} windows of {settings.window:g} s in a row"
        )

    def _break_even(self, now: float, settings: GuardSettings) -> str:
        speed = self.speed.advance(now, settings.speed)
        if speed.verdict(settings.speed) is not DriftVerdict.DRIFTED:
            return ""
        return (
            f"speed-up {speed.last:.2f} over autoregressive decoding in {speed.last_requests} requests, least "
            f"{settings.speedup_floor:g}, in {speed.below} windows of {settings.window:g} s in a row"
        )

    def _drift(self, now: float, settings: GuardSettings) -> str:
        drifted = [
            (stream.cusum.level, kind, stream)
            for kind, stream in self.streams.items()
            if stream.drifted(now, settings.cusum, settings.stale_after)
        ]
        if not drifted:
            return ""
        _, (drafter, workload), stream = max(drifted, key=lambda found: found[0])
        return f"{workload.value} by {drafter}: {stream.evidence(settings.cusum)}"

    def _swap(self, now: float, settings: GuardSettings) -> str:
        grown = self.watch.swap.within(now, settings.window)
        if grown <= settings.swap_bytes:
            return ""
        return f"{grown} bytes read back from swap within {settings.window:g} s, most {settings.swap_bytes}"

    def _memory(self, settings: GuardSettings) -> str:
        spell = self.watch.critical
        if not spell.lasts(settings.critical_seconds):
            return ""
        return f"memory pressure critical for {spell.seconds:.0f} s, most {settings.critical_seconds:g} s"

    def _thermal(self, settings: GuardSettings) -> str:
        spell = self.watch.heavy
        if not spell.lasts(settings.thermal_seconds):
            return ""
        return f"thermal level heavy for {spell.seconds:.0f} s, most {settings.thermal_seconds:g} s"


def _errors(times: tuple[float, ...], what: str, now: float, settings: GuardSettings) -> str:
    least = min(settings.errors, _MOST_ERRORS)
    recent = sum(now - at < settings.window for at in times)
    return f"{recent} {what} within {settings.window:g} s, {least} are bad" if recent >= least else ""
