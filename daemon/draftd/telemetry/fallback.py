"""What telemetry says of the fallback and the flag: counters, the spans of probes and canaries, and gauges."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.metrics import Observation
from opentelemetry.trace import Tracer

from draftd.core import FallbackLevel, Origin
from draftd.fallback.state import Readings
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.attributes import Metric
from draftd.telemetry.metrics import Metrics, Observe
from draftd.telemetry.recording import Guard, Naming


class FallbackRecorder:
    """Any thread; never raises, never blocks."""

    def __init__(self, metrics: Metrics, naming: Naming, tracer: Tracer, guard: Guard) -> None:
        self._metrics, self._naming, self._tracer, self._guarded = metrics, naming, tracer, guard.part("control")

    def transition(self, previous: FallbackLevel, current: FallbackLevel, signal: str) -> None:
        """One step of the ladder; `signal` is what asked for it."""
        labels = {a.TRANSITION_FROM.name: previous.label, a.TRANSITION_TO.name: current.label, a.SIGNAL.name: signal}
        self._count(catalog.FALLBACK_TRANSITIONS, **labels)

    def save_failed(self) -> None:
        self._count(catalog.FALLBACK_SAVE_ERRORS)

    def notification(self, result: str) -> None:
        """One notification at the webhook; `result` is `accepted`, or why it was not."""
        self._count(catalog.ALERT_NOTIFICATIONS, **{a.RESULT.name: result})

    def poll(self, result: str) -> None:
        self._count(catalog.ALERT_POLLS, **{a.RESULT.name: result})

    def annotation(self, result: str) -> None:
        self._count(catalog.ANNOTATIONS, **{a.RESULT.name: result})

    def probe(
        self, level: FallbackLevel, verdict: str, acceptance: float | None, speedup: float | None, seconds: float
    ) -> None:
        """One probe, which has just ended and took `seconds`."""
        self._count(catalog.PROBES, **{a.PLAN_LEVEL.name: level.label, a.RESULT.name: verdict})
        self._span(Origin.PROBE, level, verdict, seconds, acceptance, speedup)

    def canaries(self, level: FallbackLevel, verdict: str, divergences: int, seconds: float) -> None:
        """One run of the quality canaries, which has just ended and took `seconds`."""
        self._count(catalog.CANARIES, **{a.RESULT.name: verdict})
        for _ in range(divergences):
            self._count(catalog.CANARY_DIVERGENCES)
        self._span(Origin.CANARY, level, verdict, seconds)

    def _count(self, metric: Metric, **labels: str) -> None:
        with self._guarded:
            self._metrics.count(metric, {a.MODEL.name: self._naming.model(), **labels})

    def _span(
        self,
        origin: Origin,
        level: FallbackLevel,
        verdict: str,
        seconds: float,
        acceptance: float | None = None,
        speedup: float | None = None,
    ) -> None:
        with self._guarded:
            now = time.time_ns()
            found = {
                a.ORIGIN.name: origin.value,
                a.PLAN_LEVEL.name: level.label,
                a.RESULT.name: verdict,
                a.ACCEPTANCE.name: acceptance,
                a.SPEEDUP.name: speedup,
            }
            self._tracer.start_span(
                catalog.PROBE_SPAN.name.replace("{draftd.plan.level}", level.label),
                context=Context(),
                start_time=now - round(seconds * 1e9),
                attributes={key: value for key, value in found.items() if value is not None},
            ).end(now)


@dataclass(frozen=True, slots=True)
class Decisions:
    """How to ask what is decided about speculation as a whole; each answers None while that is not known."""

    fallback: Callable[[], Readings | None] = lambda: None
    flag_enabled: Callable[[], bool | None] = lambda: None


Series = Iterable[tuple[float | None, Mapping[str, str]]]


def observed_decisions(decisions: Decisions, naming: Naming) -> dict[str, Observe]:
    """What each gauge shows, by its name. Nothing while the model has no name: under another it would count twice."""

    def shown(series: Callable[[Readings], Series]) -> Observe:
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

    def one(read: Callable[[Readings], float | None]) -> Observe:
        return shown(lambda readings: [(read(readings), {})])

    asked: dict[str, FallbackLevel] = {}  # a collector goes on showing a series that ends, so each one is kept up

    def signals(readings: Readings) -> Series:
        asked.update(dict.fromkeys(readings.signals, FallbackLevel.FULL))
        return [(int(level), {a.SIGNAL.name: signal}) for signal, level in {**asked, **readings.signals}.items()]

    def flag() -> Iterable[Observation]:
        enabled = decisions.flag_enabled()
        return observations([(None if enabled is None else int(enabled), {})])

    return {
        catalog.FALLBACK_LEVEL.name: one(lambda r: int(r.level)),
        catalog.FALLBACK_POSITION.name: one(lambda r: r.position),
        catalog.FALLBACK_HOLD.name: one(lambda r: int(r.held)),
        catalog.ALERT_LEASES.name: one(lambda r: r.leases),
        catalog.PROBE_ACCEPTANCE.name: one(lambda r: r.probe_acceptance),
        catalog.PROBE_SPEEDUP.name: one(lambda r: r.probe_speedup),
        catalog.FALLBACK_DEMAND.name: shown(signals),
        catalog.DRIFT_SUM.name: shown(lambda r: [(v, {a.WORKLOAD.name: name}) for name, v in r.drift.items()]),
        catalog.CANARY_SCORE.name: shown(lambda r: [(v, {a.MODE.name: mode}) for mode, v in r.canary_scores.items()]),
        catalog.FLAG_ENABLED.name: flag,
    }
