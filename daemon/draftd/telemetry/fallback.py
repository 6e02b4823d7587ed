"""What telemetry says of the fallback and the flag: counters, the spans of probes and canaries, and gauges."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from opentelemetry.context import Context

from draftd.core import FallbackLevel, Origin
from draftd.fallback.controller import FallbackState
from draftd.fallback.probes import CanaryReport, ProbeReport
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.attributes import Attribute, Metric
from draftd.telemetry.metrics import Observe, Recording, Values, observed
from draftd.telemetry.recording import Naming, named


class FallbackRecorder:
    """Any thread; never raises, never blocks."""

    def __init__(self, on: Recording) -> None:
        self._on = on

    def transition(self, previous: FallbackLevel, current: FallbackLevel, signal: str) -> None:
        """One step of the ladder; `signal` is what asked for it."""
        self._count(catalog.FALLBACK_TRANSITIONS, previous.label, current.label, signal)

    def save_failed(self) -> None:
        self._count(catalog.FALLBACK_SAVE_ERRORS)

    def notification(self, result: str) -> None:
        """One notification at the webhook; `result` is `accepted`, or why it was not."""
        self._count(catalog.ALERT_NOTIFICATIONS, result)

    def poll(self, result: str) -> None:
        self._count(catalog.ALERT_POLLS, result)

    def annotation(self, result: str) -> None:
        self._count(catalog.ANNOTATIONS, result)

    def probe(self, report: ProbeReport) -> None:
        """One probe, which has just ended."""
        level = report.level.kind
        self._count(catalog.PROBES, level.label, report.verdict)
        figures = {a.ACCEPTANCE: report.acceptance, a.SPEEDUP: report.speedup}
        self._span(level, report.seconds, {a.ORIGIN: Origin.PROBE, a.RESULT: report.verdict, **figures})

    def canaries(self, level: FallbackLevel, report: CanaryReport) -> None:
        """One run of the quality canaries, which has just ended."""
        self._count(catalog.CANARIES, report.verdict)
        for _ in range(report.divergences):
            self._count(catalog.CANARY_DIVERGENCES)
        self._span(level, report.seconds, {a.ORIGIN: Origin.CANARY, a.RESULT: report.verdict})

    def _count(self, metric: Metric, *labels: str) -> None:
        """`labels` are the metric's attributes in the catalog's order, after the model."""
        with self._on.guard.part("control"):
            values = zip(metric.attributes, (self._on.naming.model(), *labels), strict=True)
            self._on.metrics.count(metric, {attribute.name: value for attribute, value in values})

    def _span(self, level: FallbackLevel, seconds: float, told: Mapping[Attribute, str | float | None]) -> None:
        with self._on.guard.part("control"):
            now = time.time_ns()
            self._on.tracer.start_span(
                catalog.PROBE_SPAN.name.replace("{draftd.plan.level}", level.label),
                context=Context(),
                start_time=now - round(seconds * 1e9),
                attributes=named({a.PLAN_LEVEL: level.label, **told}),
            ).end(now)


def observed_decisions(
    fallback: Callable[[], FallbackState | None], flag_enabled: Callable[[], bool | None], naming: Naming
) -> dict[str, Observe]:
    """What the gauges of the fallback and of the flag show, by their name. Each function answers None while that is not
    known."""
    asked: dict[str, FallbackLevel] = {}  # a collector goes on showing a series that ends, so each one is kept up

    def demands(now: FallbackState) -> Values:
        asked.update(dict.fromkeys(asked, FallbackLevel.FULL))
        for signal in now.signals:
            asked[signal.cause.value] = min(asked.get(signal.cause.value, FallbackLevel.FULL), signal.asks_for)
        return dict(asked)

    table: Mapping[Metric, Callable[[FallbackState], Values]] = {
        catalog.FALLBACK_LEVEL: lambda now: now.ladder[now.position].kind,
        catalog.FALLBACK_POSITION: lambda now: now.position,
        catalog.FALLBACK_HOLD: lambda now: now.hold is not None,
        catalog.FALLBACK_DEMAND: demands,
        catalog.ALERT_LEASES: lambda now: len(now.leases),
        catalog.DRIFT_SUM: lambda now: now.drift,
        catalog.PROBE_ACCEPTANCE: lambda now: None if now.probe is None else now.probe.acceptance,
        catalog.PROBE_SPEEDUP: lambda now: None if now.probe is None else now.probe.speedup,
        catalog.CANARY_SCORE: lambda now: {} if now.canaries is None else now.canaries.scores,
    }
    return {
        **observed(fallback, table, naming.model_label),
        **observed(flag_enabled, {catalog.FLAG_ENABLED: lambda enabled: enabled}, naming.model_label),
    }
