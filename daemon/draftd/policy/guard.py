"""The daemon's own judgement: what it sees of requests, errors and the machine, and which level that asks for.

A state that is never changed: each event gives the next one, `demands` says what it amounts to. Acceptance is judged in
two ways, by drift.py and floor.py, speed by measured cost; each says with figures what it rests on. After a step the
windows and sums begin anew, and only requests of the present rung count. Times are the ladder's clock, in seconds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from draftd.core import DrafterKind, FallbackLevel, WorkloadClass
from draftd.policy.drift import Baseline, Cusum, CusumSettings, DriftVerdict, Sample
from draftd.policy.floor import Floor, FloorSettings
from draftd.policy.ladder import Demand, Signal
from draftd.policy.machine import Machine, MachineWatch
from draftd.policy.reports import CanaryReport, Verdict
from draftd.policy.stream import Stream

Kind = tuple[DrafterKind, WorkloadClass]  # what has a baseline of its own

_DRAFT_MODELS = frozenset({DrafterKind.DRAFT_MODEL, DrafterKind.LIGHT_DRAFT_MODEL})
_HARD = frozenset({Signal.MEMORY, Signal.VERIFIER_ERRORS, Signal.DRAFTER_ERRORS, Signal.QUALITY})
_MOST_ERRORS = 1024  # times kept of each kind


def default_levels() -> dict[Signal, FallbackLevel]:
    """Which level each signal asks for; an alert says so itself."""
    return {
        Signal.ACCEPTANCE_FLOOR: FallbackLevel.SHORT_BLOCK,
        Signal.ACCEPTANCE_DRIFT: FallbackLevel.SHORT_BLOCK,
        Signal.BREAK_EVEN: FallbackLevel.AUTOREGRESSIVE,
        Signal.SWAP: FallbackLevel.LIGHT_DRAFT,
        Signal.MEMORY: FallbackLevel.AUTOREGRESSIVE,
        Signal.THERMAL: FallbackLevel.SHORT_BLOCK,
        Signal.VERIFIER_ERRORS: FallbackLevel.AUTOREGRESSIVE,
        Signal.DRAFTER_ERRORS: FallbackLevel.LIGHT_DRAFT,
        Signal.QUALITY: FallbackLevel.AUTOREGRESSIVE,
    }


@dataclass(frozen=True, slots=True)
class Finished:
    """One request's end. `rung` is that of its plan; `break_even_tokens` as DraftCounts has it."""

    at: float
    accepted: int
    rollbacks: int
    drafts: int
    break_even_tokens: float
    drafter: DrafterKind
    workload: WorkloadClass
    rung: int


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
    levels: Mapping[Signal, FallbackLevel] = field(default_factory=default_levels)
    speed: FloorSettings = field(init=False)  # windows and samples as for acceptance, with the floor of speed

    def __post_init__(self) -> None:
        object.__setattr__(self, "speed", replace(self.floor, floor=self.speedup_floor))

    @property
    def window(self) -> float:
        return self.floor.window_seconds

    @property
    def stale_after(self) -> float:
        """A kind of text that was not seen for so long asks for nothing."""
        return self.floor.windows * self.floor.window_seconds


class ErrorKind(enum.StrEnum):
    VERIFIER = "verifier"
    DRAFTER = "drafter"


@dataclass(frozen=True, slots=True)
class Guard:
    """What is known. `rung` is the ladder's; None counts requests of any. `quality` is what the last bad run of the
    canaries complained of, empty once one was good."""

    streams: Mapping[Kind, Stream] = field(default_factory=dict)
    floor: Floor = field(default_factory=Floor)
    speed: Floor = field(default_factory=Floor)
    verifier_errors: tuple[float, ...] = ()
    drafter_errors: tuple[float, ...] = ()
    watch: MachineWatch = field(default_factory=MachineWatch)
    quality: str = ""
    rung: int | None = None

    @classmethod
    def new(cls, baselines: Mapping[Kind, Baseline], *, quality: str = "", rung: int | None = None) -> Guard:
        """`baselines` are frozen ones, or those learnt before a restart; `quality` and `rung` as saved."""
        streams = {kind: Stream(Cusum(baseline)) for kind, baseline in baselines.items()}
        return cls(streams=streams, quality=quality, rung=rung)

    def finished(self, f: Finished, settings: GuardSettings) -> Guard:
        """A request ended. One without a draft, or of another rung, says nothing."""
        if not f.drafts or (self.rung is not None and f.rung != self.rung):
            return self
        sample = Sample(f.accepted, f.rollbacks)
        kind = (f.drafter, f.workload)
        before = self.streams.get(kind) or Stream(Cusum())
        # A draft model's norm is that of the top rung: below it, something was wrong.
        stream = before.observe(f.at, sample, settings.cusum, f.rung == 0 or f.drafter is not DrafterKind.DRAFT_MODEL)
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
            self.rung,
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

    def stepped(self, now: float, rung: int | None = None) -> Guard:
        """The ladder has stepped, to `rung`: windows, sums and errors begin anew. Baselines, the machine's state and
        the canaries' word stay."""
        return Guard(
            {kind: stream.stepped(now) for kind, stream in self.streams.items()},
            Floor(began=now),
            Floor(began=now),
            watch=self.watch.stepped(),
            quality=self.quality,
            rung=rung,
        )

    def demands(self, now: float, settings: GuardSettings) -> tuple[Demand, ...]:
        """What all of it asks for, each with its evidence."""
        evidence = {
            Signal.ACCEPTANCE_FLOOR: self._floor(now, settings),
            Signal.ACCEPTANCE_DRIFT: self._drift(now, settings),
            Signal.BREAK_EVEN: self._break_even(now, settings),
            Signal.SWAP: self._swap(now, settings),
            Signal.MEMORY: self._memory(settings),
            Signal.THERMAL: self._thermal(settings),
            Signal.VERIFIER_ERRORS: _errors(self.verifier_errors, "failed decode rounds", now, settings),
            Signal.DRAFTER_ERRORS: _errors(self.drafter_errors, "failed drafts", now, settings),
            Signal.QUALITY: self.quality,
        }
        return tuple(
            Demand(signal, settings.levels[signal], said, hard=signal in _HARD)
            for signal, said in evidence.items()
            if said and signal in settings.levels
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

    def learnt(self) -> dict[Kind, Baseline]:
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
        return f"{workload.value} by {drafter.value}: {stream.evidence(settings.cusum)}"

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
