"""What a criterion can be about, by name: each metric with how it is read from a run.

All of it is derived from raw ticks and samples. Metrics of the sweep have the names of summary.METRICS; those of the
other stages begin with the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from draftd.acceptance import summary
from draftd.acceptance.folder import RunFolder
from draftd.acceptance.manifest import Manifest
from draftd.acceptance.quality import QualityResult, quality_result
from draftd.acceptance.samples import Sample
from draftd.acceptance.soak import SoakResult, soak_result
from draftd.acceptance.statistics import Interval
from draftd.acceptance.sweep.plan import measured
from draftd.acceptance.sweep.run import missing_requests
from draftd.acceptance.ticks import Arm, Stage, Tick
from draftd.core import WorkloadClass

_OF_DRAFTS = ("acceptance", "acceptance_at_position_0", "mean_accepted_length")
_BROKEN = "a checker is broken, so that nothing is shown"
_ONE_WAY = "no prompt was answered both ways"


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a run holds for a gate. `soak` and `quality` are None where that stage was not run. `manifests` are
    those of the sessions that measured something; one that was not kept is None. `arms`: which a stage was of.
    `missing` requests of the sweep are still to be measured."""

    name: str
    manifests: Mapping[int, Manifest | None]
    sweep: Sequence[Tick] = ()
    soak: SoakResult | None = None
    soak_samples: Sequence[Sample] = ()
    quality: QualityResult | None = None
    arms: Mapping[Stage, Sequence[str]] = field(default_factory=dict)
    missing: int = 0

    def has(self, stage: Stage) -> bool:
        return bool({Stage.SWEEP: self.sweep, Stage.SOAK: self.soak, Stage.QUALITY: self.quality}[stage])

    @classmethod
    def read(cls, folder: RunFolder) -> Evidence:
        """Raises RunError where a file cannot be read, naming it and the line."""
        kept = folder.manifests()
        ticks = {stage: folder.ticks(stage) for stage in Stage}
        samples = folder.samples()
        sessions = {tick.place.session for found in ticks.values() for tick in found}
        sessions |= {sample.session for sample in samples}
        return cls(
            name=folder.name,
            manifests={number: kept.get(number) for number in sorted(sessions)},
            sweep=ticks[Stage.SWEEP],
            soak=soak_result(folder),
            soak_samples=[sample for sample in samples if sample.stage is Stage.SOAK],
            quality=quality_result(folder),
            arms={stage: sorted({tick.place.arm for tick in found}) for stage, found in ticks.items()},
            missing=missing_requests(folder.plan(Stage.SWEEP) or {}, measured(ticks[Stage.SWEEP])),
        )


class Lack(Enum):
    """Why there is no value."""

    NOTHING = "nothing was measured"
    TOO_FEW = "too little was measured to tell"
    UNREADABLE = "the machine could not be asked: no longer run would have shown it"


class Moves(Enum):
    """Where a value can go to as a run goes on. What can only go up, and is too high, stays too high."""

    BOTH_WAYS = "both ways"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured. `low` and `high` are the ends of the 95 % interval, where there is one. `samples`: how many
    requests it rests on, or windows, or readings of the machine. `lack` and `reason` say why there is no value; beside
    a value `reason` is for where it does not pass."""

    value: float | None
    low: float | None = None
    high: float | None = None
    samples: int = 0
    lack: Lack | None = None
    reason: str = ""

    @classmethod
    def of(cls, found: Interval) -> Reading:
        return cls(found.estimate, found.low, found.high, found.samples)

    @classmethod
    def none(cls, reason: str, lack: Lack = Lack.NOTHING, samples: int = 0) -> Reading:
        return cls(None, samples=samples, lack=lack, reason=reason)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which requests of a sweep: those of `arm`, of the group and the workload where they are named."""

    arm: Arm | None = None
    group: str | None = None
    workload: WorkloadClass | None = None
    over_autoregressive: bool = False  # as a ratio to the autoregressive arm's

    def narrowed(self, ticks: Iterable[Tick]) -> list[Tick]:
        """Of all arms."""
        return [
            tick
            for tick in ticks
            if self.group in (None, tick.place.group) and self.workload in (None, tick.place.workload)
        ]

    def __str__(self) -> str:
        arm = "" if self.arm is None else self.arm.id
        if self.arm is not None and self.over_autoregressive:
            arm += f" and {self.arm.baseline.id}"
        return ", ".join(part for part in (arm, self.group, self.workload) if part)


Read = Callable[[Evidence, Scope, Evidence | None], Reading]


@dataclass(frozen=True, slots=True)
class Metric:
    """`read` takes a run, where in it to look, and another run where the ratio to it is wanted. `moves` is of the
    value itself, not of a ratio."""

    stage: Stage
    unit: str  # s, By, tokens/s; 1 is a share, and empty a count
    counted: str  # what its samples are, in the plural
    read: Read
    has_interval: bool = False
    divisible: bool = True
    autoregressive: bool = False  # it exists without drafts
    moves: Moves = Moves.BOTH_WAYS


# the sweep: one arm by itself, over its autoregressive arm, or over the same arm of another run


def _sweep_metrics() -> Iterator[tuple[str, Metric]]:
    for name, definition in summary.METRICS.items():
        plain = name not in _OF_DRAFTS
        read = _of_sweep(_figure(name))
        yield name, Metric(Stage.SWEEP, definition.unit, "requests", read, has_interval=True, autoregressive=plain)
    together = Metric(Stage.SWEEP, "tokens/s", "groups", _of_sweep(_together), has_interval=True, divisible=False)
    yield "total_tokens_per_second", together


_Find = Callable[[Evidence, Scope, Arm, Evidence | None], Interval | None]


def _of_sweep(find: _Find) -> Read:
    def read(run: Evidence, scope: Scope, baseline: Evidence | None) -> Reading:
        if not run.sweep:
            return Reading.none("the run has no sweep")
        if scope.arm is None:
            return Reading.none("the candidate's block length is not known: the sweep shows no knee")
        found = find(run, scope, scope.arm, baseline)
        if found is None:
            both = ", in both runs on the same prompts" if baseline is not None else ""
            return Reading.none(f"no answer of {scope}{both}")
        return Reading.of(found)

    return read


def _figure(name: str) -> _Find:
    def find(run: Evidence, scope: Scope, arm: Arm, baseline: Evidence | None) -> Interval | None:
        ticks = scope.narrowed(run.sweep)
        if scope.over_autoregressive:
            return summary.against(ticks, arm.id, arm.baseline.id, name)
        if baseline is None:
            return summary.measure(summary.select(ticks, arm=arm.id), name)
        return summary.against(ticks, arm.id, arm.id, name, scope.narrowed(baseline.sweep))

    return find


def _together(run: Evidence, scope: Scope, arm: Arm, _: Evidence | None) -> Interval | None:
    return summary.total_throughput(scope.narrowed(run.sweep), arm.id)


# soak and quality: one figure a run; over another run's it has no interval


def _of_stage(stage: Stage, read: Callable[[Evidence], Reading]) -> Read:
    def reading(run: Evidence, _: Scope, baseline: Evidence | None) -> Reading:
        if not run.has(stage):
            return Reading.none(f"the run has no {stage}")
        ours = read(run)
        if baseline is None or ours.value is None:
            return ours
        if not baseline.has(stage):
            return Reading.none(f"the baseline has no {stage}")
        theirs = read(baseline)
        if theirs.value is None:
            return theirs
        if not theirs.value:
            return Reading.none("it is 0 in the baseline")
        return Reading(ours.value / theirs.value, samples=min(ours.samples, theirs.samples))

    return reading


_Soaked = Callable[[SoakResult, Sequence[Sample]], Reading]
_OF_THE_MACHINE: tuple[tuple[str, str, str, str, Moves], ...] = (
    # metric, unit, of the result, of a sample where it could be read
    ("peak_resident", "By", "peak_resident", "resident", Moves.UP),
    ("headroom", "By", "least_headroom", "headroom", Moves.DOWN),
    ("critical_seconds", "s", "longest_critical", "pressure", Moves.UP),
    ("swap_in", "By", "swap_in", "swap_in", Moves.UP),
    ("throttles", "", "throttles", "throttles", Moves.UP),
)
_MEMORY = {"resident": "resident", "mlx": "mlx_active"}  # of the result, and of a sample


def _soak_metrics() -> Iterator[tuple[str, Metric]]:
    def metric(unit: str, counted: str, read: _Soaked, moves: Moves = Moves.BOTH_WAYS) -> Metric:
        def reading(run: Evidence) -> Reading:
            assert run.soak is not None
            return read(run.soak, run.soak_samples)

        return Metric(Stage.SOAK, unit, counted, _of_stage(Stage.SOAK, reading), moves=moves)

    yield (
        "soak.seconds",
        metric("s", "sessions", lambda soak, _: Reading(soak.seconds, samples=soak.sessions), Moves.UP),
    )
    yield (
        "soak.requests",
        metric("", "requests", lambda soak, _: Reading(soak.requests, samples=soak.requests), Moves.UP),
    )
    yield "soak.errors", metric("", "requests", _soak_errors, Moves.UP)
    yield "soak.tokens_per_second", metric("tokens/s", "requests", _soak_rate)
    for name, unit, figure, known, moves in _OF_THE_MACHINE:
        yield f"soak.{name}", metric(unit, "readings", _of_the_machine(name, figure, known), moves)
    for name in _MEMORY:
        growth = replace(metric("By/s", "readings", _growth(name)), has_interval=True, divisible=False)
        yield f"soak.{name}_growth", growth
    yield "soak.days_to_exhaustion", replace(metric("d", "readings", _days), divisible=False)
    yield "soak.acceptance_held", metric("1", "windows", _sustained, Moves.DOWN)


def _soak_errors(soak: SoakResult, _: Sequence[Sample]) -> Reading:
    return Reading(soak.errors, samples=soak.requests, reason="; ".join(soak.error_examples[:1]))


def _soak_rate(soak: SoakResult, _: Sequence[Sample]) -> Reading:
    rate = soak.tokens_per_second
    return Reading.none("nothing came of it") if rate is None else Reading(rate, samples=soak.requests)


def _of_the_machine(name: str, figure: str, known: str) -> _Soaked:
    def read(soak: SoakResult, samples: Sequence[Sample]) -> Reading:
        value, readings = getattr(soak, figure), _readings(samples, known)
        return _unknown(samples, name, readings) if value is None else Reading(value, samples=readings)

    return read


def _growth(memory: str) -> _Soaked:
    def read(soak: SoakResult, samples: Sequence[Sample]) -> Reading:
        found, readings = getattr(soak, memory), _readings(samples, _MEMORY[memory])
        return (
            _unknown(samples, "memory", readings)
            if found is None
            else replace(Reading.of(found.slope), samples=readings)
        )

    return read


def _days(soak: SoakResult, samples: Sequence[Sample]) -> Reading:
    value, readings = soak.days_to_exhaustion, max(_readings(samples, known) for known in _MEMORY.values())
    if value is None:
        return _unknown(samples, "memory", readings)
    return Reading(value, samples=readings, reason=soak.complaints[0] if soak.grows_without_bound else "")


def _sustained(soak: SoakResult, _: Sequence[Sample]) -> Reading:
    value, judged = soak.sustained_acceptance(), len(soak.judged_windows)
    if value is None:
        return Reading.none(f"{judged} of {len(soak.windows)} windows had drafts enough", Lack.TOO_FEW, judged)
    return Reading(value, samples=judged)


def _readings(samples: Sequence[Sample], known: str) -> int:
    return sum(getattr(sample, known) is not None for sample in samples)


def _unknown(samples: Sequence[Sample], name: str, readings: int) -> Reading:
    if readings:
        return Reading.none(f"{readings} readings are too few to tell", Lack.TOO_FEW, readings)
    if not samples:
        return Reading.none("the machine was not asked while it was soaked")
    return Reading.none(f"{name.replace('_', ' ')} cannot be read on this machine", Lack.UNREADABLE)


_Checked = Callable[[QualityResult], Reading]


def _quality_metrics() -> Iterator[tuple[str, Metric]]:
    """Shares of prompts, greedy."""

    def metric(read: _Checked, unit: str = "1", counted: str = "prompts") -> Metric:
        def reading(run: Evidence) -> Reading:
            assert run.quality is not None
            return read(run.quality)

        return Metric(Stage.QUALITY, unit, counted, _of_stage(Stage.QUALITY, reading))

    yield "quality.success_autoregressive", metric(_share(lambda found: found.autoregressive_success))
    yield "quality.success_speculative", metric(_share(lambda found: found.speculative_success))
    yield "quality.difference", replace(metric(_difference), has_interval=True, divisible=False)
    yield "quality.gap", replace(metric(_share(_gap)), divisible=False)
    yield "quality.identical", metric(_identical)
    yield "quality.errors", metric(_quality_errors, "", "requests")
    yield "quality.checkers_sound", replace(metric(_sound), divisible=False)


def _share(figure: Callable[[QualityResult], float | None]) -> _Checked:
    """What rests on the checkers: nothing, where they are broken."""

    def read(found: QualityResult) -> Reading:
        if not found.checkers_sound:
            return Reading.none(_BROKEN)
        value = figure(found)
        if value is None:
            return Reading.none(_ONE_WAY)
        # The first prompt that fails with drafts only.
        only = [one for one in found.prompts if one.speculative_complaint and not one.autoregressive_complaint]
        reason = f"{only[0].prompt}, with drafts: {only[0].speculative_complaint}" if only else ""
        return Reading(value, samples=sum(one.complete for one in found.prompts), reason=reason)

    return read


def _gap(found: QualityResult) -> float | None:
    """Either way: drafts that make a task succeed more often change answers, too."""
    plain, drafted = found.autoregressive_success, found.speculative_success
    return None if plain is None or drafted is None else abs(drafted - plain)


def _difference(found: QualityResult) -> Reading:
    """Speculative less autoregressive."""
    if not found.checkers_sound:
        return Reading.none(_BROKEN)
    return Reading.none(_ONE_WAY) if found.difference is None else Reading.of(found.difference)


def _identical(found: QualityResult) -> Reading:
    compared = sum(one.identical is not None for one in found.prompts)
    return Reading(found.identical / compared, samples=compared) if compared else Reading.none(_ONE_WAY)


def _quality_errors(found: QualityResult) -> Reading:
    return Reading(found.errors, samples=found.requests, reason="; ".join(found.error_examples[:1]))


def _sound(found: QualityResult) -> Reading:
    if found.checkers_sound:
        return Reading(1.0, samples=len(found.prompts))
    first = found.faults[0]
    return Reading(0.0, samples=len(found.prompts), reason=f"that of {first.prompt} {first.what}")


METRICS: Mapping[str, Metric] = MappingProxyType(dict([*_sweep_metrics(), *_soak_metrics(), *_quality_metrics()]))
