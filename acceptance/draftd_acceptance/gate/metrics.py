"""The metrics that a criterion can name, each with the function that reads it from a run.

Metrics of the sweep have the names of summary.METRICS; those of the other stages begin with the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from draftd_acceptance import summary
from draftd_acceptance.folder import RunError, RunFolder
from draftd_acceptance.manifest import Manifest
from draftd_acceptance.quality import QualityComparison, QualityResult, quality_result
from draftd_acceptance.soak import SoakResult, soak_result
from draftd_acceptance.statistics import Interval, MemoryGrowth
from draftd_acceptance.sweep.plan import measured_keys, missing_requests
from draftd_acceptance.ticks import Stage, Tick

_OF_DRAFTS = ("acceptance", "acceptance_at_position_0", "mean_accepted_length")
TOTAL_THROUGHPUT = "total_tokens_per_second"
_ONE_WAY = "no prompt was answered both ways"


@dataclass(frozen=True, slots=True)
class GateEvidence:
    """A run's data for a gate: each stage's result, empty or None if the stage did not run. `manifests` are those of
    sessions that measured something; `arms` are the arms of each stage; `missing` counts requests that the sweep still
    has to measure."""

    name: str
    manifests: Mapping[int, Manifest]
    sweep: Sequence[Tick] = ()
    soak: SoakResult | None = None
    quality: QualityResult | None = None
    arms: Mapping[Stage, Sequence[str]] = field(default_factory=dict)
    missing: int = 0

    @classmethod
    def read(cls, folder: RunFolder) -> GateEvidence:
        """Reads a run. Raises RunError, naming file and line, if a file cannot be read or a session's manifest is
        missing."""
        kept = folder.manifests()
        ticks = {stage: folder.ticks(stage) for stage in Stage}
        sessions = {tick.place.session for found in ticks.values() for tick in found}
        sessions |= {sample.session for sample in folder.samples()}
        for number in sorted(sessions - kept.keys()):
            place = f"{folder.path / 'manifests'}/{number:04}.json"
            raise RunError(place, "no file", f"the manifest of session {number}, which has measurements")
        return cls(
            name=folder.name,
            manifests={number: kept[number] for number in sorted(sessions)},
            sweep=ticks[Stage.SWEEP],
            soak=soak_result(folder),
            quality=quality_result(folder),
            arms={stage: sorted({tick.place.arm for tick in found}) for stage, found in ticks.items()},
            missing=missing_requests(folder.plan(Stage.SWEEP) or {}, measured_keys(ticks[Stage.SWEEP])),
        )


Lack = Literal["nothing", "too_few", "unreadable"]
"""Why there is no value: nothing was measured, too little was measured, or this machine or model cannot show it,
however long the run."""
Moves = Literal["both ways", "up", "down"]
"""The direction in which a value can move during a run. A value that only goes up stays too high once it is."""


@dataclass(frozen=True, slots=True)
class MetricReading:
    """A measured value. `low` and `high` are the ends of its 95 % interval, if it has one. `samples` counts its
    requests, windows, or readings of the machine. `lack` and `reason` say why there is no value. With a value, `reason`
    is the explanation that is shown if the criterion fails, such as the first error."""

    value: float | None
    low: float | None = None
    high: float | None = None
    samples: int = 0
    lack: Lack | None = None
    reason: str = ""

    @classmethod
    def of(cls, interval: Interval) -> MetricReading:
        return cls(interval.estimate, interval.low, interval.high, interval.samples)

    @classmethod
    def none(cls, reason: str, lack: Lack = "nothing", samples: int = 0) -> MetricReading:
        return cls(None, samples=samples, lack=lack, reason=reason)


@dataclass(frozen=True, slots=True)
class GateMetric:
    """`read` takes the value from the result of the soak or of quality; None for the sweep. `counted` names the
    samples. `divisible`: a criterion may divide the value by another arm's or run's. `autoregressive`: the metric also
    exists without drafts. `moves`: how the value can change during a run; does not apply to a ratio."""

    stage: Stage
    unit: str  # s, By, tokens/s; 1 is a share, and empty a count
    counted: str  # the name of its samples, in the plural
    read: Callable[[Any], MetricReading] | None = None
    has_interval: bool = False
    divisible: bool = True
    autoregressive: bool = False  # it exists without drafts
    moves: Moves = "both ways"


# the soak


_soak = partial(GateMetric, Stage.SOAK)


def _machine(unit: str, what: str, figure: str, readings: Iterable[str], **more: Any) -> GateMetric:
    """Returns a metric for a `figure` of the soak's result that rests on `readings` of the machine; messages name it
    `what`."""

    def read(soak: SoakResult) -> MetricReading:
        value, counted = getattr(soak, figure), max(soak.readings.get(name, 0) for name in readings)
        if isinstance(value, MemoryGrowth):
            return replace(MetricReading.of(value.slope), samples=counted)
        if value is not None:
            growing = soak.complaints[0] if figure == "days_to_exhaustion" and soak.grows_without_bound else ""
            return MetricReading(value, samples=counted, reason=growing)
        if counted:
            few = soak.too_few_samples or f"{counted} readings are too few to tell"
            return MetricReading.none(few, "too_few", counted)
        if not soak.readings.get("at"):
            return MetricReading.none("the machine was not read during the soak")
        return MetricReading.none(f"{what} cannot be read on this machine", "unreadable")

    return _soak(unit, "readings", read, **more)


def _sustained_acceptance(soak: SoakResult) -> MetricReading:
    value, judged = soak.sustained_acceptance(), len(soak.judged_windows)
    if value is None:
        return MetricReading.none(f"only {judged} of {len(soak.windows)} windows had enough drafts", "too_few", judged)
    return MetricReading(value, samples=judged)


def _rate(soak: SoakResult) -> MetricReading:
    rate = soak.tokens_per_second
    return MetricReading.none("the soak took no time") if rate is None else MetricReading(rate, samples=soak.requests)


def _errors(stage: SoakResult | QualityResult) -> MetricReading:
    return MetricReading(stage.errors, samples=stage.requests, reason="; ".join(stage.error_examples[:1]))


# quality: shares of prompts, greedy


_quality = partial(GateMetric, Stage.QUALITY, "1", "prompts")


def _share(
    figure: Callable[[QualityComparison], float | Interval | None], *, schemas: bool = False
) -> Callable[[QualityResult], MetricReading]:
    """Returns a reader for a figure that rests on the checkers: it has no value if one is broken. `schemas` selects the
    prompts with a schema."""

    def read(result: QualityResult) -> MetricReading:
        if (lack := _lack_of_proof(result, schemas=schemas)) is not None:
            return lack
        compared = result.schemas.greedy if schemas and result.schemas is not None else result.greedy
        value, prompts = figure(compared), compared.prompts
        if value is None:
            return MetricReading.none(_ONE_WAY)
        if isinstance(value, Interval):
            return MetricReading.of(value)
        # The first prompt that fails with drafts only.
        only = [one for one in prompts if one.speculative.complaint and not one.autoregressive.complaint]
        reason = f"{only[0].prompt}, with drafts: {only[0].speculative.complaint}" if only else ""
        return MetricReading(value, samples=sum(one.complete for one in prompts), reason=reason)

    return read


def _lack_of_proof(result: QualityResult, *, schemas: bool) -> MetricReading | None:
    """Returns a reading with the reason why a share proves nothing; None if it proves something."""
    if result.faults:
        return MetricReading.none("nothing is shown, because a checker is broken")
    if schemas and result.schemas is None:
        return MetricReading.none("the quality stage of this run asked nothing under a schema")
    if schemas and result.schemas is not None and result.schemas.refused:
        return MetricReading.none(result.schemas.refused, "unreadable")
    return None


def _schema_valid(result: QualityResult) -> MetricReading:
    if (lack := _lack_of_proof(result, schemas=True)) is not None:
        return lack
    assert result.schemas is not None
    share = result.schemas.valid_share
    if share is None:
        return MetricReading.none("no prompt was answered under a schema")
    return MetricReading(share, samples=result.schemas.answers, reason="; ".join(map(str, result.schemas.invalid[:1])))


def _gap(comparison: QualityComparison) -> float | None:
    """The difference in either direction: drafts that make a task succeed more often change answers, too."""
    plain, drafted = comparison.autoregressive, comparison.speculative
    return None if plain is None or drafted is None else abs(drafted - plain)


def _identical(result: QualityResult) -> MetricReading:
    compared = sum(prompt.identical is not None for prompt in result.greedy.prompts)
    return (
        MetricReading(result.greedy.identical / compared, samples=compared)
        if compared
        else MetricReading.none(_ONE_WAY)
    )


def _sound(result: QualityResult) -> MetricReading:
    broken = [f"the checker of {fault.prompt}: {fault.what}" for fault in result.faults[:1]]
    return MetricReading(0.0 if broken else 1.0, samples=len(result.greedy.prompts), reason="".join(broken))


_MEMORY = ("resident", "mlx_active")
_ESTIMATED: dict[str, Any] = {"has_interval": True, "divisible": False}

METRICS: Mapping[str, GateMetric] = MappingProxyType(
    {
        **{
            name: GateMetric(
                Stage.SWEEP, definition.unit, "requests", has_interval=True, autoregressive=name not in _OF_DRAFTS
            )
            for name, definition in summary.METRICS.items()
        },
        TOTAL_THROUGHPUT: GateMetric(Stage.SWEEP, "tokens/s", "groups", **_ESTIMATED),
        "soak.seconds": _soak(
            "s", "sessions", lambda soak: MetricReading(soak.seconds, samples=soak.sessions), moves="up"
        ),
        "soak.requests": _soak(
            "", "requests", lambda soak: MetricReading(soak.requests, samples=soak.requests), moves="up"
        ),
        "soak.errors": _soak("", "requests", _errors, moves="up"),
        "soak.tokens_per_second": _soak("tokens/s", "requests", _rate),
        "soak.peak_resident": _machine("By", "memory", "peak_resident", ["resident"], moves="up"),
        "soak.headroom": _machine("By", "free memory", "least_headroom", ["headroom"], moves="down"),
        "soak.critical_seconds": _machine("s", "memory pressure", "longest_critical", ["pressure"], moves="up"),
        "soak.swap_in": _machine("By", "swap-ins", "swap_in", ["swap_in"], moves="up"),
        "soak.throttles": _machine("", "throttle events", "throttles", ["throttles"], moves="up"),
        "soak.resident_growth": _machine("By/s", "memory", "resident", ["resident"], **_ESTIMATED),
        "soak.mlx_growth": _machine("By/s", "memory", "mlx", ["mlx_active"], **_ESTIMATED),
        "soak.days_to_exhaustion": _machine("d", "memory", "days_to_exhaustion", _MEMORY, divisible=False),
        "soak.acceptance_held": _soak("1", "windows", _sustained_acceptance, moves="down"),
        "quality.success_autoregressive": _quality(_share(lambda found: found.autoregressive)),
        "quality.success_speculative": _quality(_share(lambda found: found.speculative)),
        "quality.difference": _quality(_share(lambda found: found.difference), **_ESTIMATED),
        "quality.gap": _quality(_share(_gap), divisible=False),
        "quality.identical": _quality(_identical),
        "quality.schema_valid": GateMetric(Stage.QUALITY, "1", "answers", _schema_valid),
        "quality.schema_difference": _quality(_share(lambda found: found.difference, schemas=True), **_ESTIMATED),
        "quality.schema_gap": _quality(_share(_gap, schemas=True), divisible=False),
        "quality.errors": GateMetric(Stage.QUALITY, "", "requests", _errors),
        "quality.checkers_sound": _quality(_sound, divisible=False),
    }
)
