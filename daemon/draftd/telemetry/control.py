"""Counts what the fallback does, and spans what it tries out."""

from __future__ import annotations

import time

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Tracer

from draftd.core import FallbackLevel, Origin
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.attributes import Metric
from draftd.telemetry.guard import Guard
from draftd.telemetry.labels import Naming
from draftd.telemetry.metrics import Metrics


class ControlRecorder:
    """Any thread; never raises, never blocks."""

    def __init__(self, metrics: Metrics, naming: Naming, tracer: Tracer, guard: Guard) -> None:
        self._metrics, self._naming, self._tracer, self._guard = metrics, naming, tracer, guard

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
        self._span(Origin.PROBE, level, verdict, acceptance, speedup, seconds)

    def canaries(self, level: FallbackLevel, verdict: str, divergences: int, seconds: float) -> None:
        """One run of the quality canaries, which has just ended and took `seconds`."""
        self._count(catalog.CANARIES, **{a.RESULT.name: verdict})
        for _ in range(divergences):
            self._count(catalog.CANARY_DIVERGENCES)
        self._span(Origin.CANARY, level, verdict, None, None, seconds)

    def _count(self, metric: Metric, **labels: str) -> None:
        try:
            self._metrics.count(metric, {a.MODEL.name: self._naming.model(), **labels})
        except Exception as error:
            self._guard.caught("control", error)

    def _span(
        self,
        origin: Origin,
        level: FallbackLevel,
        verdict: str,
        acceptance: float | None,
        speedup: float | None,
        seconds: float,
    ) -> None:
        try:
            now = time.time_ns()
            name = catalog.PROBE_SPAN.name.replace("{draftd.plan.level}", level.label)
            found = {
                a.ORIGIN.name: origin.value,
                a.PLAN_LEVEL.name: level.label,
                a.RESULT.name: verdict,
                a.ACCEPTANCE.name: acceptance,
                a.SPEEDUP.name: speedup,
            }
            span = self._tracer.start_span(
                name,
                context=Context(),
                kind=SpanKind.INTERNAL,
                start_time=now - round(seconds * 1e9),
                attributes={key: value for key, value in found.items() if value is not None},
            )
            span.end(now)
        except Exception as error:
            self._guard.caught("control", error)


class NullControlRecorder:
    """Records nothing: while nothing is exported."""

    def transition(self, previous: FallbackLevel, current: FallbackLevel, signal: str) -> None:
        return None

    def save_failed(self) -> None:
        return None

    def notification(self, result: str) -> None:
        return None

    def poll(self, result: str) -> None:
        return None

    def annotation(self, result: str) -> None:
        return None

    def probe(
        self, level: FallbackLevel, verdict: str, acceptance: float | None, speedup: float | None, seconds: float
    ) -> None:
        return None

    def canaries(self, level: FallbackLevel, verdict: str, divergences: int, seconds: float) -> None:
        return None
