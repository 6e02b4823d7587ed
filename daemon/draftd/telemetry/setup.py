"""The daemon's telemetry: started once, passed to its parts, shut down within a limit. Never raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from draftd import __version__
from draftd.core import DaemonState
from draftd.engine.observer import EngineObserver, EngineStatus
from draftd.engine.remote.verifier_link import LinkState
from draftd.fallback.state import FallbackState
from draftd.hardware.state import HardwareView
from draftd.model_info import ModelInfo
from draftd.settings import TelemetrySettings
from draftd.strategies import VerificationStatus
from draftd.telemetry import catalog
from draftd.telemetry.fallback import FallbackRecorder, FlagHook, observed_decisions
from draftd.telemetry.hardware import observed_hardware
from draftd.telemetry.http import HttpTelemetry
from draftd.telemetry.metrics import Ledger, Metrics, MetricsObserver, Recording, observe_each, observed_engine
from draftd.telemetry.pipeline import Pipeline, build, process_uptime
from draftd.telemetry.ranks import observed_ranks
from draftd.telemetry.recording import FailureGuard, ModelNames
from draftd.telemetry.remote import VerificationSpan, observed_remote
from draftd.telemetry.rpc import RpcInterceptor
from draftd.telemetry.spans import InferenceSpan, InferenceStart

_log = logging.getLogger("draftd.telemetry")


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of observed values, called on the exporters' threads. Each returns None while unknown."""

    info: Callable[[], ModelInfo | None] = lambda: None
    status: Callable[[], EngineStatus | None] = lambda: None
    fallback: Callable[[], FallbackState | None] = lambda: None
    flag_enabled: Callable[[], bool | None] = lambda: None
    link: Callable[[], LinkState | None] = lambda: None  # the link to the remote; None without one
    verification: Callable[[], VerificationStatus | None] = lambda: None  # None if this daemon is no verifier
    certificates: Callable[[], Mapping[str, float]] = dict  # expiry as Unix time, by setting
    save_errors: Callable[[], Mapping[str, int]] = dict  # failed saves, by file
    state: Callable[[], DaemonState | None] = lambda: None


class Telemetry:
    """The observer for the engine, spans for requests, recorders of servers' calls, the hook for the flag. `exporting`:
    whether any signal is exported or scraped; if not, recording uses OpenTelemetry's no-op providers. `sends`: whether
    a signal is sent to a collector. `instance`: this daemon's name in alerts, `service.instance.id`; empty while
    nothing is exported."""

    def __init__(
        self,
        pipeline: Pipeline | None = None,
        hardware: HardwareView | None = None,
        guard: FailureGuard | None = None,
        *,
        capture_content: bool = False,
    ) -> None:
        self._pipeline, self._hardware = pipeline or Pipeline(), hardware or HardwareView()
        self.exporting, self.instance = self._pipeline.exporting, self._pipeline.instance
        self.sends = self._pipeline.sends
        guard = guard or FailureGuard()
        self._naming = naming = ModelNames()
        self._ledger = ledger = Ledger(naming)
        scope = (catalog.SCOPE, __version__)
        self._metrics = metrics = Metrics(self._pipeline.meters.get_meter(*scope), guard)
        tracer, logger = self._pipeline.tracers.get_tracer(*scope), self._pipeline.loggers.get_logger(*scope)
        self._on = Recording(
            tracer, metrics, naming, self._hardware, guard, self.exporting, capture_content and self.exporting
        )
        self.observer = MetricsObserver(ledger, metrics, guard) if self.exporting else EngineObserver()
        self.rpc_interceptor = RpcInterceptor(self._on, self._pipeline.propagator)
        self.http = HttpTelemetry(self._on, self._pipeline.propagator, self._pipeline.exposition)
        self.flag_hook = FlagHook(logger, guard)
        self.fallback_recorder = FallbackRecorder(self._on, logger)

    @classmethod
    def start(
        cls,
        settings: TelemetrySettings,
        hardware: HardwareView | None = None,
        *,
        scraped: bool = False,
        group: str = "",
        port: int | None = None,
    ) -> Telemetry:
        """Starts the exports that the OTEL_* variables ask for; none without them. `scraped`: metrics can also be read
        by Prometheus. The resource has `group`, the id of the target's ranks (empty without), and the configured
        `port`."""
        guard, pipeline = FailureGuard(), Pipeline()
        try:
            pipeline = build(scraped=scraped, group=group, port=port)
        except ValueError as error:
            _log.error("telemetry could not be started and is off: %s", error)
        except Exception as error:
            guard.caught("start", error)
        return cls(pipeline, hardware, guard, capture_content=settings.capture_content)

    def observe(self, sources: Sources) -> None:
        """Observes these sources from the next export on."""
        naming = self._naming
        naming.ask = sources.info
        began = psutil.Process().create_time()
        self._metrics.observe(
            {
                **observed_engine(self._ledger, naming, sources.status, self._on.guard),
                **observed_decisions(sources.fallback, sources.flag_enabled, naming),
                **observe_each(sources.save_errors, {catalog.STATE_SAVE_ERRORS: lambda counts: counts}),
                **observed_hardware(self._hardware),
                **observe_each(sources.certificates, {catalog.CERTIFICATE_EXPIRY: lambda expiries: expiries}),
                **observe_each(process_uptime(), {catalog.UPTIME: lambda seconds: seconds}),
                **observe_each(lambda: began, {catalog.STARTED: lambda seconds: seconds}),
                **observe_each(
                    sources.state, {catalog.STATE: lambda now: {state.value: state is now for state in DaemonState}}
                ),
                **observed_ranks(sources.status, naming),
                **observed_remote(sources.status, sources.link, sources.verification, sources.fallback, naming),
            }
        )

    def listens(self, host: str, port: int) -> None:
        """Notes the address on which the daemon listens; spans have it from now on."""
        self._naming.address = (host, port)

    def begin_inference(self, start: InferenceStart) -> InferenceSpan:
        """Starts to record one request, under the RPC of the calling task."""
        return InferenceSpan(start, self._on)

    def begin_verification(self, trace: str, prompt_tokens: int) -> VerificationSpan:
        """Starts to record one sequence of an edge. `trace`: the edge's own span, from `Open`."""
        return VerificationSpan(self._on, trace, prompt_tokens)

    def shutdown(self, seconds: float) -> bool:
        """Flushes and stops within `seconds`, whatever the collector does. Returns True if all queued data arrived."""
        with self._on.guard.part("shutdown"):
            return self._pipeline.shutdown(seconds)
        return False
