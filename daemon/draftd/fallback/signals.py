"""The daemon's own judgement: what it sees of requests, errors and the machine, and which level that asks for.

A state that is never changed: each event gives the next one, `demands` says what it amounts to. Acceptance is judged in
two ways, by drift.py and floor.py, speed by measured cost; each says with figures what it rests on. After a step the
windows and sums begin anew, and only requests of the present rung count. Times are the ladder's clock, in seconds."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, DrafterName, FallbackLevel, WorkloadClass
from draftd.fallback.drift import Baseline, Cusum, CusumSettings, DriftVerdict, Floor, FloorSettings, Sample
from draftd.fallback.ladder import Demand, Signal
from draftd.fallback.reports import CanaryOutcome, CanaryReport, Divergence, Verdict


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
        """What was swapped before a step is no word on what came after. Pressure and heat go on as they are."""
        return replace(self, swap=self.swap.anew())


_EXACT = 1e-9  # 0.995 - 0.99 is a little less than 0.005


def judge(outcomes: Sequence[CanaryOutcome], tolerance: float) -> tuple[Verdict, str]:
    """The verdict, and what it rests on. BAD where the share that passed speculatively lies below the autoregressive
    one by more than `tolerance`. A text that diverges and passes is told, and is not bad by itself: on some machines
    two logits that lie close change places with the number of rows."""
    if not outcomes:
        return Verdict.TOO_FEW_SAMPLES, "no canary was run"
    plain = sum(o.passed_autoregressive for o in outcomes)
    drafted = sum(o.passed_speculative for o in outcomes)
    diverged = [o for o in outcomes if o.divergence is not None]
    reason = f"{drafted} of {len(outcomes)} canaries passed speculatively, {plain} autoregressively"
    if diverged:
        first = diverged[0]
        assert first.divergence is not None
        gap = "" if first.divergence.logit_gap is None else f", logit gap {first.divergence.logit_gap:.3g}"
        reason += f"; {len(diverged)} diverged, {first.id} at token {first.divergence.at}{gap}"
    bad = (plain - drafted) / len(outcomes) > tolerance + _EXACT
    if bad:
        complaint = next((o for o in outcomes if o.passed_autoregressive and not o.passed_speculative), None)
        if complaint is not None and complaint.complaint:
            reason += f"; {complaint.id}: {complaint.complaint}"
        reason += f"; tolerance {tolerance:.1%}"
    return (Verdict.BAD if bad else Verdict.GOOD), reason


NEAR_TIE = 0.5


"""Logits. Four steps of bfloat16 where logits lie between 16 and 32; the ties that were seen to flip were one apart."""


def tolerated(backend: str) -> float | None:
    """The largest gap that is no error on a backend, as ModelInfo names it; None where every divergence is one."""
    return NEAR_TIE if backend == "metal" else None


def broken(divergence: Divergence, tolerated: float | None) -> bool:
    """Whether it is an error. One whose gap is not known is, where every one is."""
    if tolerated is None:
        return True
    return divergence.logit_gap is not None and abs(divergence.logit_gap) > tolerated


def described(divergence: Divergence) -> str:
    gap = "not measured" if divergence.logit_gap is None else f"{divergence.logit_gap:.3g}"
    return f"leaves the autoregressive text at token {divergence.at}, logit gap {gap}"


def complaint(outcomes: Sequence[CanaryOutcome], tolerated: float | None) -> str:
    """What is broken of these texts; empty where nothing is."""
    found = [o for o in outcomes if o.divergence is not None and broken(o.divergence, tolerated)]
    if not found:
        return ""
    first = found[0]
    assert first.divergence is not None
    return f"{len(found)} of {len(outcomes)} texts are not the target's own: {first.id} {described(first.divergence)}"


@dataclass(frozen=True, slots=True)
class Stream:
    """`requests`, `accepted` and `rollbacks` are sums since the detector last stood at nothing: what it rests on.
    `last` is the time of the last sample."""

    cusum: Cusum
    since: float = 0.0
    last: float = 0.0
    requests: int = 0
    accepted: int = 0
    rollbacks: int = 0

    def observe(self, at: float, sample: Sample, settings: CusumSettings, learn: bool) -> Stream:
        """The next state. Without `learn` a detector without a baseline is left as it is."""
        if self.cusum.baseline is None and not learn:
            return self
        cusum = self.cusum.observe(sample, settings)
        if cusum is self.cusum:
            return self
        if cusum.level == 0.0:
            return Stream(cusum, at, at)
        return Stream(
            cusum,
            self.since if self.requests else at,
            at,
            self.requests + 1,
            self.accepted + sample.accepted,
            self.rollbacks + sample.rollbacks,
        )

    def stepped(self, now: float) -> Stream:
        """The sum begins anew; what was learnt stays."""
        return Stream(self.cusum.reset(), now, now)

    def drifted(self, now: float, settings: CusumSettings, stale_after: float) -> bool:
        """A kind of text that is not asked for any more demands nothing: it could never be seen to recover."""
        return self.cusum.verdict(settings) is DriftVerdict.DRIFTED and now - self.last <= stale_after

    def evidence(self, settings: CusumSettings) -> str:
        """Only where it has a baseline and a sum above nothing."""
        baseline = self.cusum.baseline
        assert baseline is not None
        reached = Sample(self.accepted, self.rollbacks)
        return (
            f"acceptance {reached.acceptance:.2f} in {self.requests} requests over {self.last - self.since:.0f} s, "
            f"baseline {baseline.mean:.2f}; CUSUM {self.cusum.level:.1f}, limit {settings.limit:g}"
        )


Kind = tuple[DrafterName, WorkloadClass]  # what has a baseline of its own


_DRAFT_MODELS = frozenset({DRAFT_MODEL, LIGHT_DRAFT_MODEL})


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
    drafter: DrafterName
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
        stream = before.observe(f.at, sample, settings.cusum, f.rung == 0 or f.drafter != DRAFT_MODEL)
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
