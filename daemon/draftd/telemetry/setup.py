"""Telemetry as the daemon holds it: started once, handed around, shut down within a limit. It never raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from openfeature.hook import Hook
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Tracer

from draftd.core import ModelInfo
from draftd.engine.observer import EngineObserver, EngineStatus, NullObserver
from draftd.hardware.state import FixedView, HardwareView
from draftd.telemetry import catalog, exporters, pipeline
from draftd.telemetry.control import ControlRecorder, NullControlRecorder
from draftd.telemetry.decisions import Decisions, FallbackReadings
from draftd.telemetry.flags import FlagHook
from draftd.telemetry.guard import Guard
from draftd.telemetry.labels import Naming
from draftd.telemetry.ledger import Ledger
from draftd.telemetry.metrics import Metrics, MetricsObserver
from draftd.telemetry.pipeline import Pipeline
from draftd.telemetry.rpc import PassingInterceptor, RpcInterceptor
from draftd.telemetry.spans import InferenceSpan, InferenceStart, NullInferenceSpan, RecordingInferenceSpan
from draftd.telemetry.transitions import Changed, TransitionLog

__all__ = ["Decisions", "FallbackReadings", "InferenceSpan", "InferenceStart", "Telemetry", "TelemetrySettings"]

_log = logging.getLogger("draftd.telemetry")


class TelemetrySettings(Protocol):
    """What OTEL_* variables do not say."""

    @property
    def capture_content(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Recording:
    """The parts that exist only while something is exported."""

    pipeline: Pipeline
    tracer: Tracer
    metrics: Metrics
    naming: Naming
    hardware: HardwareView
    propagator: TextMapPropagator
    hook: Hook
    transitions: TransitionLog


class Telemetry:
    """The observer for the engine, spans for requests, the interceptor for the server, the hook for the flag."""

    observer: EngineObserver

    def __init__(self, recording: _Recording | None, observer: EngineObserver, guard: Guard, capture: bool) -> None:
        self._recording = recording
        self._guard = guard
        self.observer = observer
        self.capture_content = capture and recording is not None

    @classmethod
    def start(
        cls,
        *,
        service_version: str,
        settings: TelemetrySettings,
        environ: Mapping[str, str],
        info: Callable[[], ModelInfo | None],
        status: Callable[[], EngineStatus | None],
        hardware: HardwareView | None = None,
        decisions: Decisions | None = None,
    ) -> Telemetry:
        """Exports what the OTEL_* variables of `environ` ask for, and without them nothing, at no cost.

        `info`, `status` and `decisions` are asked from exporter threads; None means not yet. Without `hardware` nothing
        is told of the machine.
        """
        guard = Guard()
        view: HardwareView = hardware if hardware is not None else FixedView()
        built: Pipeline | None = None
        try:
            propagator = exporters.propagator(environ)
            built = pipeline.build(environ, service_version)
            if built is not None:
                return cls._recording_on(
                    built, propagator, service_version, settings, info, status, view, decisions, guard
                )
        except ValueError as error:
            _log.error("telemetry is off: %s", error)
        except Exception as error:
            guard.caught("start", error)
        if built is not None:
            built.shutdown(0.0)
        return cls(None, NullObserver(), guard, capture=False)

    @classmethod
    def _recording_on(
        cls,
        built: Pipeline,
        propagator: TextMapPropagator,
        service_version: str,
        settings: TelemetrySettings,
        info: Callable[[], ModelInfo | None],
        status: Callable[[], EngineStatus | None],
        hardware: HardwareView,
        decisions: Decisions | None,
        guard: Guard,
    ) -> Telemetry:
        naming = Naming(info)
        ledger = Ledger(naming)
        metrics = Metrics(
            built.meters.get_meter(catalog.SCOPE, service_version),
            ledger=ledger,
            naming=naming,
            status=status,
            hardware=hardware,
            guard=guard,
            decisions=decisions,
        )
        logger = built.loggers.get_logger(catalog.SCOPE, service_version)
        recording = _Recording(
            pipeline=built,
            tracer=built.tracers.get_tracer(catalog.SCOPE, service_version),
            metrics=metrics,
            naming=naming,
            hardware=hardware,
            propagator=propagator,
            hook=FlagHook(logger, guard),
            transitions=TransitionLog(logger, guard),
        )
        observer = MetricsObserver(ledger, metrics, guard)
        return cls(recording, observer, guard, capture=settings.capture_content)

    @property
    def exporting(self) -> bool:
        """True when any signal is exported."""
        return self._recording is not None

    @property
    def errors(self) -> Mapping[str, int]:
        """Failures of telemetry itself so far, by part."""
        return self._guard.counts()

    def rpc_interceptor(self) -> grpc.aio.ServerInterceptor[Any, Any]:
        """The server's first interceptor."""
        if self._recording is None:
            return PassingInterceptor()
        recording = self._recording
        return RpcInterceptor(recording.tracer, recording.metrics, recording.propagator, self._guard)

    def begin_inference(self, start: InferenceStart) -> InferenceSpan:
        """Begins to follow one request, under the RPC of the task that calls."""
        if self._recording is None:
            return NullInferenceSpan()
        try:
            return RecordingInferenceSpan(
                start,
                tracer=self._recording.tracer,
                metrics=self._recording.metrics,
                naming=self._recording.naming,
                hardware=self._recording.hardware,
                guard=self._guard,
                capture_content=self.capture_content,
            )
        except Exception as error:
            self._guard.caught("span", error)
            return NullInferenceSpan()

    def flag_hook(self) -> Hook:
        """Emits `feature_flag.evaluation` for each evaluation that it is hooked to."""
        return self._recording.hook if self._recording is not None else Hook()

    def transition_log(self) -> Callable[[Changed], None]:
        """Emits `draftd.transition` for each transition that it is called with."""
        return self._recording.transitions if self._recording is not None else lambda change: None

    def control_recorder(self) -> ControlRecorder | NullControlRecorder:
        """Counts what the fallback does."""
        if self._recording is None:
            return NullControlRecorder()
        return ControlRecorder(self._recording.metrics, self._recording.naming, self._recording.tracer, self._guard)

    @property
    def instance(self) -> str:
        """What alerts name this daemon by: `service.instance.id`. Empty while nothing is exported."""
        return "" if self._recording is None else self._recording.pipeline.instance

    def shutdown(self, seconds: float) -> bool:
        """Flushes and stops within `seconds`, whatever the collector does. True when all that was queued arrived."""
        if self._recording is None:
            return True
        try:
            return self._recording.pipeline.shutdown(seconds)
        except Exception as error:
            self._guard.caught("shutdown", error)
            return False
