"""Gauges of what is decided about speculation as a whole: the flag, the ladder, and what both rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from opentelemetry.metrics import Observation

from draftd.core import FallbackLevel
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.labels import Naming


@dataclass(frozen=True, slots=True)
class FallbackReadings:
    """The fallback at one moment. `demands` by signal; `drift` by workload class, as `draftd.drift.sum` counts; None
    is not known yet."""

    level: FallbackLevel
    rung: int = 0
    held: bool = False
    demands: Mapping[str, FallbackLevel] = field(default_factory=dict)
    drift: Mapping[str, float] = field(default_factory=dict)
    leases: int = 0
    probe_acceptance: float | None = None
    probe_speedup: float | None = None
    canary_scores: Mapping[str, float] = field(default_factory=dict)  # by decode mode


@dataclass(frozen=True, slots=True)
class Decisions:
    """How to ask; each answers None while that is not known."""

    fallback: Callable[[], FallbackReadings | None] = lambda: None
    flag_enabled: Callable[[], bool | None] = lambda: None


Series = Iterable[tuple[float | None, Mapping[str, str]]]


def observed_decisions(decisions: Decisions, naming: Naming) -> dict[str, Callable[[], Iterable[Observation]]]:
    """What each gauge shows, by its name. Nothing while the model has no name: under another it would count twice."""

    def shown(series: Callable[[FallbackReadings], Series]) -> Callable[[], Iterable[Observation]]:
        def observe() -> Iterable[Observation]:
            readings = decisions.fallback()
            return () if readings is None else observations(series(readings))

        return observe

    def observations(series: Series) -> Iterable[Observation]:
        if naming.info() is None:
            return
        for value, labels in series:
            if value is not None:
                yield Observation(value, {a.MODEL.name: naming.model(), **labels})

    def one(read: Callable[[FallbackReadings], float | None]) -> Callable[[], Iterable[Observation]]:
        return shown(lambda readings: [(read(readings), {})])

    asked: dict[str, FallbackLevel] = {}  # a collector goes on showing a series that ends: so none does

    def demands(readings: FallbackReadings) -> Series:
        asked.update(dict.fromkeys(readings.demands, FallbackLevel.FULL))
        return [(int(level), {a.SIGNAL.name: signal}) for signal, level in {**asked, **readings.demands}.items()]

    return {
        catalog.FALLBACK_LEVEL.name: one(lambda r: int(r.level)),
        catalog.FALLBACK_RUNG.name: one(lambda r: r.rung),
        catalog.FALLBACK_HOLD.name: one(lambda r: int(r.held)),
        catalog.ALERT_LEASES.name: one(lambda r: r.leases),
        catalog.PROBE_ACCEPTANCE.name: one(lambda r: r.probe_acceptance),
        catalog.PROBE_SPEEDUP.name: one(lambda r: r.probe_speedup),
        catalog.FALLBACK_DEMAND.name: shown(demands),
        catalog.DRIFT_SUM.name: shown(lambda r: [(v, {a.WORKLOAD.name: name}) for name, v in r.drift.items()]),
        catalog.CANARY_SCORE.name: shown(lambda r: [(v, {a.MODE.name: mode}) for mode, v in r.canary_scores.items()]),
        catalog.FLAG_ENABLED.name: lambda: observations([(_number(decisions.flag_enabled()), {})]),
    }


def _number(value: bool | None) -> float | None:
    return None if value is None else int(value)
