"""Telemetry as the daemon holds it: started once, handed around, shut down within a limit. It never raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from draftd.core import ModelInfo
from draftd.engine.observer import EngineObserver, EngineStatus, NullObserver
from draftd.hardware.state import FixedView, HardwareView
from draftd.settings import TelemetrySettings
from draftd.telemetry import catalog, pipeline
from draftd.telemetry.events import FlagHook, TransitionLog
from draftd.telemetry.fallback import Decisions, FallbackRecorder, observed_decisions
from draftd.telemetry.hardware import observed_hardware
from draftd.telemetry.metrics import Ledger, Metrics, MetricsObserver, observed_engine
from draftd.telemetry.pipeline import Pipeline
from draftd.telemetry.recording import Guard, Naming
from draftd.telemetry.rpc import RpcInterceptor
from draftd.telemetry.spans import InferenceSpan, InferenceStart

_log = logging.getLogger("draftd.telemetry")


class Telemetry:
    """The observer for the engine, spans for requests, the interceptor for the server, the hook for the flag.

    Where nothing is exported they record on OpenTelemetry's no-op providers.
    """

    def __init__(
        self,
        built: Pipeline | None = None,
        *,
        service_version: str = "",
        capture_content: bool = False,
        info: Callable[[], ModelInfo | None] = lambda: None,
        status: Callable[[], EngineStatus | None] = lambda: None,
        hardware: HardwareView | None = None,
        decisions: Decisions | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._pipeline = built = built or Pipeline()
        self._guard = guard = guard or Guard()
        self._naming = naming = Naming(info)
        self._hardware = hardware or FixedView()
        self.capture_content = capture_content and built.exporting
        ledger = Ledger(naming)
        observed = {
            **observed_engine(ledger, naming, status, guard),
            **observed_decisions(decisions or Decisions(), naming),
            **observed_hardware(self._hardware),
        }
        self._metrics = Metrics(built.meters.get_meter(catalog.SCOPE, service_version), observed, guard)
        self._tracer = built.tracers.get_tracer(catalog.SCOPE, service_version)
        self._logger = built.loggers.get_logger(catalog.SCOPE, service_version)
        self.observer: EngineObserver = NullObserver()
        if built.exporting:
            self.observer = MetricsObserver(ledger, self._metrics, guard)

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
        """Exports what the OTEL_* variables of `environ` ask for, and without them nothing.

        `info`, `status` and `decisions` are asked from exporter threads; None means not yet. Without `hardware` nothing
        is said of the machine.
        """
        guard = Guard()
        built = Pipeline()
        try:
            built = pipeline.build(environ, service_version)
            return cls(
                built,
                service_version=service_version,
                capture_content=settings.capture_content,
                info=info,
                status=status,
                hardware=hardware,
                decisions=decisions,
                guard=guard,
            )
        except ValueError as error:
            _log.error("telemetry is off: %s", error)
        except Exception as error:
            guard.caught("start", error)
        built.shutdown(0.0)
        return cls(guard=guard)

    @property
    def exporting(self) -> bool:
        """True when any signal is exported."""
        return self._pipeline.exporting

    @property
    def errors(self) -> Mapping[str, int]:
        """Failures of telemetry itself so far, by part."""
        return self._guard.counts()

    @property
    def instance(self) -> str:
        """What alerts name this daemon by: `service.instance.id`. Empty while nothing is exported."""
        return self._pipeline.instance

    def rpc_interceptor(self) -> grpc.aio.ServerInterceptor[Any, Any]:
        """The server's first interceptor."""
        return RpcInterceptor(
            self._tracer, self._metrics, self._pipeline.propagator, self._guard, exporting=self.exporting
        )

    def begin_inference(self, start: InferenceStart) -> InferenceSpan:
        """Begins to follow one request, under the RPC of the task that calls."""
        return InferenceSpan(
            start,
            self._tracer,
            self._metrics,
            self._naming,
            self._hardware,
            self._guard,
            exporting=self.exporting,
            capture_content=self.capture_content,
        )

    def flag_hook(self) -> FlagHook:
        """Emits `feature_flag.evaluation` for each evaluation that it is hooked to."""
        return FlagHook(self._logger, self._guard)

    def transition_log(self) -> TransitionLog:
        """Emits `draftd.transition` for each transition that it is called with."""
        return TransitionLog(self._logger, self._guard)

    def fallback_recorder(self) -> FallbackRecorder:
        """Counts what the fallback does."""
        return FallbackRecorder(self._metrics, self._naming, self._tracer, self._guard)

    def shutdown(self, seconds: float) -> bool:
        """Flushes and stops within `seconds`, whatever the collector does. True when all that was queued arrived."""
        with self._guard.part("shutdown"):
            return self._pipeline.shutdown(seconds)
        return False
