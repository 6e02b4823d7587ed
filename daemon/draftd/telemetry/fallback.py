"""Telemetry of the fallback and the flag: log events, counters, spans of probes and canaries, gauges."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from openfeature.flag_evaluation import FlagEvaluationDetails, FlagValueType
from openfeature.hook import Hook, HookContext, HookHints
from opentelemetry._logs import Logger, SeverityNumber
from opentelemetry.context import Context

from draftd.core import FallbackLevel, Origin
from draftd.fallback.probes import CanaryReport, ProbeReport
from draftd.fallback.state import FallbackState
from draftd.journal import Subject, Transition
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog, catalog_spans
from draftd.telemetry import catalog_remote as remote
from draftd.telemetry.attributes import Attribute, Metric
from draftd.telemetry.metrics import Observe, Recording, Values, observe_each
from draftd.telemetry.recording import FailureGuard, ModelNames, attributes_of
from draftd.telemetry.spans import call_context, request_context


class FlagHook(Hook):
    """An OpenFeature hook that emits `feature_flag.evaluation` after each evaluation, failed ones included."""

    def __init__(self, logger: Logger, guard: FailureGuard) -> None:
        self._logger, self._guard = logger, guard

    def finally_after(
        self, hook_context: HookContext, details: FlagEvaluationDetails[FlagValueType], hints: HookHints
    ) -> None:
        with self._guard.part("flag"):
            metadata = {key: str(value) for key, value in details.flag_metadata.items()}
            provider, code, value = hook_context.provider_metadata, details.error_code, details.value
            caller = hook_context.evaluation_context.targeting_key or None
            stands_in = details.variant is None and isinstance(value, bool | int | float | str)
            self._logger.emit(
                timestamp=time.time_ns(),
                context=request_context.get() or call_context.get() or Context(),
                severity_number=SeverityNumber.INFO if code is None else SeverityNumber.WARN,
                event_name=catalog_spans.FLAG_EVALUATION.name,
                attributes=attributes_of(
                    {
                        a.FLAG_KEY: details.flag_key,
                        a.FLAG_VARIANT: details.variant,
                        a.FLAG_VALUE: value if stands_in else None,
                        # The conventions write reasons in lower case, OpenFeature in upper case.
                        a.FLAG_REASON: str(details.reason or "unknown").lower(),
                        a.FLAG_PROVIDER: None if provider is None else provider.name,
                        a.FLAG_CONTEXT: metadata.get("contextId") or caller,
                        a.FLAG_SET: metadata.get("flagSetId"),
                        a.FLAG_VERSION: metadata.get("version"),
                        a.ERROR_TYPE: None if code is None else str(code.value).lower(),
                        a.FLAG_ERROR_MESSAGE: details.error_message or None,
                    }
                ),
            )


_STEPS = {Subject.LEVEL: catalog.FALLBACK_TRANSITIONS, Subject.REMOTE: remote.TRANSITIONS}


class FallbackRecorder:
    """Records events of the fallback. Any thread; never raises or blocks."""

    def __init__(self, on: Recording, logger: Logger) -> None:
        self._on, self._logger = on, logger

    def log(self, change: Transition) -> None:
        """Emits `draftd.transition`, and counts a ladder's step by the labels of its levels, because several levels may
        share a kind, and by its cause. Events that do not change the level are not counted."""
        with self._on.guard.part("transition"):
            metric = _STEPS.get(change.subject)
            if metric is not None and change.previous != change.current:
                self._count(metric, change.previous, change.current, change.cause)
            self._logger.emit(
                timestamp=time.time_ns(),
                context=Context(),
                severity_number=SeverityNumber.INFO,
                event_name=catalog_spans.TRANSITION.name,
                body=f"{change.subject}: {change.previous} -> {change.current} ({change.cause})",
                attributes=attributes_of(
                    {
                        a.TRANSITION_SUBJECT: change.subject.value,
                        a.TRANSITION_FROM: change.previous,
                        a.TRANSITION_TO: change.current,
                        a.TRANSITION_CAUSE: change.cause,
                        a.TRANSITION_EVIDENCE: change.evidence,
                    }
                ),
            )

    def notification(self, result: str) -> None:
        """Counts one notification at the webhook. `result`: `accepted`, or why it was refused."""
        self._count(catalog.ALERT_NOTIFICATIONS, result)

    def poll(self, result: str) -> None:
        self._count(catalog.ALERT_POLLS, result)

    def annotation(self, result: str) -> None:
        self._count(catalog.ANNOTATIONS, result)

    def probe(self, report: ProbeReport) -> None:
        """Records a probe that has just ended."""
        level = report.level.kind
        self._count(catalog.PROBES, level.label, report.verdict)
        figures = {a.ACCEPTANCE: report.acceptance, a.SPEEDUP: report.speedup}
        self._span(level, report.seconds, {a.ORIGIN: Origin.PROBE, a.RESULT: report.verdict, **figures})

    def canaries(self, level: FallbackLevel, report: CanaryReport) -> None:
        """Records a run of the quality canaries that has just ended."""
        self._count(catalog.CANARIES, report.verdict)
        for _ in range(report.divergences):
            self._count(catalog.CANARY_DIVERGENCES)
        self._span(level, report.seconds, {a.ORIGIN: Origin.CANARY, a.RESULT: report.verdict})

    def _count(self, metric: Metric, *labels: str) -> None:
        """Adds 1 to a counter. `labels`: the metric's attributes in the catalog's order, after the model."""
        with self._on.guard.part("control"):
            values = zip(metric.attributes, (self._on.naming.model(), *labels), strict=True)
            self._on.metrics.count(metric, {attribute.name: value for attribute, value in values})

    def _span(self, level: FallbackLevel, seconds: float, attributes: Mapping[Attribute, str | float | None]) -> None:
        with self._on.guard.part("control"):
            now = time.time_ns()
            self._on.tracer.start_span(
                catalog_spans.PROBE_SPAN.name.replace("{draftd.plan.level}", level.label),
                context=Context(),
                start_time=now - round(seconds * 1e9),
                attributes=attributes_of({a.PLAN_LEVEL: level.label, **attributes}),
            ).end(now)


def observed_decisions(
    fallback: Callable[[], FallbackState | None], flag_enabled: Callable[[], bool | None], naming: ModelNames
) -> dict[str, Observe]:
    """Returns the gauges of the fallback and the flag by name. Each source returns None while unknown."""
    ceilings: dict[str, int] = {}  # a collector keeps showing a series that ends, so each one is continued

    def demands(now: FallbackState) -> Values:
        ceilings.update(dict.fromkeys(ceilings, FallbackLevel.FULL))
        for signal in now.signals:
            ceilings[signal.cause.value] = min(ceilings.get(signal.cause.value, FallbackLevel.FULL), signal.asks_for)
        return dict(ceilings)

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
        **observe_each(fallback, table, naming.model_label),
        **observe_each(flag_enabled, {catalog.FLAG_ENABLED: lambda enabled: enabled}, naming.model_label),
    }
