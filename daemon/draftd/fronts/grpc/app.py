"""The daemon: listener, services, health, and how it comes up and goes down.

Up: listening at once, NOT_SERVING until the model is loaded. Down, on SIGTERM or SIGINT: NOT_SERVING, no new requests,
running ones go on for `drain_seconds`, the rest are ended with a status, telemetry is flushed, all within limits. A
second signal stops at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from draftd import __version__
from draftd.engine.loop import EngineState, EngineWorker
from draftd.errors import ConfigError, ModelLoadError
from draftd.fallback.journal import Journal
from draftd.fronts.grpc.control_service import ControlServicer
from draftd.fronts.grpc.inference import InferenceServicer
from draftd.fronts.grpc.interceptors import AuthInterceptor, ErrorInterceptor
from draftd.fronts.grpc.manifest import Manifests
from draftd.fronts.grpc.seams import FallbackControl, ServerTelemetry
from draftd.fronts.grpc.tls import server_credentials
from draftd.fronts.grpc.types import Interceptor
from draftd.hardware.state import FixedView, HardwareView
from draftd.planning.flag import FlagService
from draftd.planning.planner import Planner
from draftd.service.calls import Calls
from draftd.service.stream import Mailbox
from draftd.settings import ServerSettings, Settings
from draftd.v1 import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
CONTROL = control_pb2.DESCRIPTOR.services_by_name["ControlService"].full_name

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOAD_POLL_SECONDS = 0.05  # while loading: how soon progress and the end of it are noticed
_WATCH_POLL_SECONDS = 0.5  # afterwards: how soon a dead engine is noticed
_DELIVERY_SECONDS = 5.0  # after the engine has ended the last request: for its end to reach the client
_SPARE_CALLS = 256  # requests that the engine does not hold: being tokenised, or done and not yet read
_HURRY_SECONDS = 2.0  # on a second signal: for the engine to end its round
_GRACE_SECONDS = 0.5  # for calls that never end by themselves, such as health watches

log = logging.getLogger(__name__)

Announce = Callable[[str], None]


class Daemon:
    """One listener over one engine. Everything here runs on the event loop that `start` is called on. The controller is
    started and closed by whoever made it."""

    def __init__(
        self,
        settings: Settings,
        worker: EngineWorker,
        planner: Planner,
        flags: FlagService,
        telemetry: ServerTelemetry,
        *,
        journal: Journal | None = None,
        hardware: HardwareView | None = None,
        controller: FallbackControl | None = None,
        announce: Announce = lambda line: None,
        on_drain: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_drain` is called once on a thread when draining begins: it may block for a few seconds."""
        self._settings, self._worker, self._planner = settings, worker, planner
        self._flags, self._telemetry, self._announce = flags, telemetry, announce
        self._journal = journal if journal is not None else Journal()
        self._hardware: HardwareView = hardware if hardware is not None else FixedView()
        self._controller, self._on_drain = controller, on_drain
        engine = settings.engine
        self._calls = Calls(engine.queue_capacity + engine.max_batch + _SPARE_CALLS)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._tokenising = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftd-tokenise")
        self._manifests = Manifests(worker, self._hardware, settings, version=__version__)
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._mailbox: Mailbox | None = None
        self._watch: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self, *, signals: bool = False) -> int:
        """Listens, starts loading the model, and returns the port. Raises ConfigError where it cannot listen.

        With `signals`, SIGTERM and SIGINT call `stop` from here on, until `serve_until_stopped` returns.
        """
        if signals:
            for number in _SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
        server = grpc.aio.server(interceptors=self._interceptors(), options=_options(self._settings.server))
        self.port = self._bind(server)
        self._mailbox = Mailbox(asyncio.get_running_loop())
        stall = self._settings.server.write_stall_seconds or None
        inference = InferenceServicer(
            self._worker,
            self._planner,
            self._telemetry,
            self._calls,
            self._mailbox,
            self._tokenising,
            default_max_tokens=self._settings.engine.default_max_tokens,
            write_stall_seconds=stall,
        )
        control = ControlServicer(
            self._worker,
            self._planner,
            self._flags,
            self._telemetry,
            self._calls,
            inference.describe,
            self._journal,
            self._hardware,
            self._controller,
            self._stop,
            self._manifests,
            version=__version__,
            write_stall_seconds=stall,
        )
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, server)  # type: ignore[no-untyped-call]
        control_pb2_grpc.add_ControlServiceServicer_to_server(control, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        services = [INFERENCE, CONTROL, health.SERVICE_NAME]
        if self._settings.server.reflection:
            services.append(reflection.SERVICE_NAME)
            reflection.enable_server_reflection(services, server)
        for service in ("", INFERENCE):
            await self._health.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._health.set(CONTROL, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        self._server = server
        self._announce(f"listening on {self.address}")
        self._worker.start()
        self._watch = asyncio.create_task(self._watch_engine(), name="draftd-watch-engine")
        return self.port

    @property
    def address(self) -> str:
        host = self._settings.server.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    async def wait_ready(self) -> None:
        """Returns when requests are taken. Raises ModelLoadError when they never will be."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._ready, self._stop)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        if self._worker.state is EngineState.FAILED:
            raise ModelLoadError(self._worker.error)

    @property
    def in_hand(self) -> int:
        """Requests that have arrived and are not over."""
        return self._calls.open

    @property
    def hurried(self) -> bool:
        """Whether it was told to stop at once: threads may be left that nobody waits for."""
        return self._hurry.is_set()

    def stop(self) -> None:
        """Begins to drain; called again, stops at once. What the signals call."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def serve_until_stopped(self) -> bool:
        """Serves until `stop`, a signal, or the engine's end; then drains. True when everything ended in order.

        Raises ModelLoadError when the model could not be loaded.
        """
        try:
            await self._stop.wait()
            failed = self._worker.state is EngineState.FAILED
            orderly = await self._drain_unless_hurried()
        finally:
            for number in _SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)
        if failed and not self._ready.is_set():
            raise ModelLoadError(self._worker.error)
        return orderly and not failed

    async def drain(self) -> bool:
        """Ends every request in hand, or refuses it, and closes everything. True when nothing was left behind."""
        self._stop.set()
        self._calls.draining = True
        await self._health.enter_graceful_shutdown()
        seconds = self._settings.server.drain_seconds
        if self._calls.open:
            self._announce(f"draining: {self._calls.open} requests in hand, at most {seconds:g} s")
        await asyncio.to_thread(self._on_drain)
        # A load cannot be interrupted, and nobody waits for it: that thread ends with the process.
        loading = self._worker.state is EngineState.LOADING
        ended = loading or await asyncio.to_thread(self._worker.close, seconds)
        delivered = await self._calls.wait_none(_DELIVERY_SECONDS)
        await self._close_listener(_GRACE_SECONDS)
        flushed = await asyncio.to_thread(self._telemetry.shutdown, self._settings.telemetry.shutdown_seconds)
        self._flags.close()
        for what, well in (("the engine", ended), ("delivery to a client", delivered), ("telemetry", flushed)):
            if not well:
                log.warning("shutdown: %s did not finish in time", what)
        return ended and delivered

    async def _drain_unless_hurried(self) -> bool:
        drain = asyncio.create_task(self.drain())
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((drain, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await asyncio.gather(hurry, return_exceptions=True)
        if drain.done():
            return drain.result()
        self._announce("stopping at once")
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HURRY_SECONDS):
                # Ends every request within a round, so that clients hear a status.
                await asyncio.to_thread(self._worker.close, 0.0)
                await self._calls.wait_none(_GRACE_SECONDS)
        await self._close_listener(0)
        self._flags.close()
        return False

    async def _close_listener(self, grace: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace)
        if self._mailbox is not None:
            self._mailbox.close()
        self._tokenising.shutdown(wait=False, cancel_futures=True)
        self._manifests.close()

    async def _watch_engine(self) -> None:
        """Announces progress, turns health to SERVING, and stops the daemon when its engine has ended."""
        said = ""
        while True:
            state = self._worker.state
            if state is EngineState.LOADING:
                if said != (said := self._worker.progress):
                    self._announce(said)
                await asyncio.sleep(_LOAD_POLL_SECONDS)
            elif state is EngineState.READY:
                if not self._ready.is_set():
                    for service in ("", INFERENCE):
                        await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
                    self._ready.set()
                    self._announce(f"serving {self._worker.info.model} on {self.address}")
                await asyncio.sleep(_WATCH_POLL_SECONDS)
            else:
                if state is EngineState.FAILED and self._ready.is_set():  # else the exception says it
                    log.error("%s", self._worker.error)
                self._stop.set()
                return

    def _interceptors(self) -> list[Interceptor]:
        # Telemetry first: it must see what the others refuse.
        chain: list[Interceptor] = [self._telemetry.rpc_interceptor()]
        if (token := self._settings.server.token) is not None:
            chain.append(AuthInterceptor(token.get_secret_value()))
        return [*chain, ErrorInterceptor()]

    def _bind(self, server: grpc.aio.Server) -> int:
        settings = self._settings.server
        credentials = server_credentials(settings)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise ConfigError("server.port", settings.port, f"a port that is free on {settings.host}; 0 picks one")
        return port


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        ("grpc.so_reuseport", 0),  # two daemons on one port would share its connections at random
        # Ask silent clients for a sign of life, so that one whose machine is gone is noticed.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Take clients' own pings, however many: gRPC's default is to hang up on them.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]
