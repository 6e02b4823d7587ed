"""The daemon: how it starts and how it stops.

It listens at once, and is NOT_SERVING until the model is loaded. On SIGTERM or SIGINT it is NOT_SERVING again and
refuses new requests. Running requests may continue for `drain_seconds`; then they are ended with a status, and
telemetry is flushed. All of this takes at most `drain_seconds` and twelve more. A second signal stops at once. The
caller handles SIGHUP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from draftd import __version__
from draftd.core import DaemonState, FallbackLevel, FinishReason
from draftd.engine.handle import EngineHandle, EngineState
from draftd.errors import ConfigError, ModelLoadError, NotServing
from draftd.fronts.grpc.control import ControlServicer, DaemonParts
from draftd.fronts.grpc.manifest import Manifests
from draftd.fronts.grpc.relay import GrpcAnswers
from draftd.fronts.grpc.server import GrpcServer, certificate_configuration
from draftd.fronts.grpc.verification import VerificationServicer
from draftd.service.inference import InferenceService
from draftd.service.transitions import unless_set
from draftd.service.verification import VerificationService
from draftd.settings import Settings

if TYPE_CHECKING:
    from draftd.fronts.http.server import HttpServer

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOAD_POLL_SECONDS = 0.05  # between two looks at the progress of loading
_WATCH_POLL_SECONDS = 0.2  # between two looks at whether a loaded engine has ended or loads again
_DELIVERY_SECONDS = 5.0  # for the last request's end to reach its client
_CLOSE_SECONDS = 12.0  # after `drain_seconds`, for the rest of the shutdown
_HURRY_SECONDS = 2.0  # on a second signal: for the engine to end its step
_GRACE_SECONDS = 0.5  # for calls that never end by themselves, such as health watches

log = logging.getLogger(__name__)


class Daemon:
    """One engine, one service over it, and its listeners. Create and use it on one event loop. The caller starts and
    closes the controller."""

    def __init__(
        self,
        parts: DaemonParts,
        *,
        announce: Callable[[str], None] = lambda line: None,
        on_drain: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_drain` is called once, on a thread, when draining begins. It may block for a few seconds."""
        self._parts = parts
        self._announce, self._on_drain = announce, on_drain
        self._remote = GrpcAnswers(parts.settings.remote) if parts.settings.remote.enabled else None
        self.service = InferenceService(
            parts.worker, parts.planner, parts.telemetry.begin_inference, parts.settings, self._remote
        )
        self.verification = VerificationService(
            parts.worker, parts.planner, parts.settings, parts.telemetry.begin_verification
        )
        self._manifests = Manifests(parts.worker, parts.hardware, self._settings, version=__version__)
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._server: GrpcServer | None = None
        self._http: HttpServer | None = None
        self._watch: asyncio.Task[None] | None = None
        self.port = self.http_port = 0

    @property
    def _settings(self) -> Settings:
        return self._parts.settings

    @property
    def _worker(self) -> EngineHandle:
        return self._parts.worker

    def reloading(self, settings: Settings) -> Callable[[], Awaitable[None]]:
        """Reads the certificates of these settings, and returns a function that puts them and the tokens into use for
        new calls and connections. Existing ones continue. Raises ConfigError."""
        certificates = certificate_configuration(settings.server)
        context = None
        if self._http is not None:
            from draftd.fronts.http.connections import tls

            context = tls(settings.server)

        async def reload() -> None:
            if self._server is not None:
                self._server.reload(settings.server, certificates)
            if self._http is not None:
                await self._http.reload(settings.server, context)
            if self._remote is not None:
                self._remote.reload(settings.remote)

        return reload

    async def start(self, *, signals: bool = False) -> int:
        """Listens, starts loading the model, and returns the port. Raises ConfigError if it cannot listen.

        With `signals`, SIGTERM and SIGINT call `stop` until `serve_until_stopped` returns.
        """
        if signals:
            for number in _SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
        control = ControlServicer(self._parts, self.service, self.verification, self._manifests, self._stop)
        try:
            interceptor = self._parts.telemetry.rpc_interceptor
            stall = self._settings.server.write_stall_seconds or None
            verification = VerificationServicer(self.verification, stall)
            server = GrpcServer(self._settings.server, self.service, control, verification, interceptor)
            self._http = self._http_server()
        except BaseException:
            self.service.close()
            await self.verification.close()
            raise
        self._server, self.port = server, server.port
        self._parts.telemetry.listens(self._settings.server.host, self.port)
        await server.start()
        self._announce(f"listening on {self.address}")
        self.service.start()
        if self._http is not None:
            self.http_port = self._http.port
            await self._http.start()
            self._announce(f"HTTP on {self.url}")
        self._worker.start()
        self._watch = asyncio.create_task(self._watch_engine(server), name="draftd-watch-engine")
        return self.port

    def _http_server(self) -> HttpServer | None:
        """The HTTP server, or None if HTTP is off or the default port is taken. Raises ConfigError if a configured port
        is taken."""
        settings = self._settings.server
        if settings.http is None:
            return None
        from draftd.fronts.http.server import HttpServer  # importing aiohttp takes a while

        try:
            return HttpServer(settings, self.service, self._parts.telemetry.http)
        except ConfigError:
            if settings.http_port is not None:
                raise
            log.warning(
                "HTTP is not served: port %d is taken by another program; --http-port picks another", settings.http
            )
            return None

    @property
    def address(self) -> str:
        return self._at(self.port)

    @property
    def url(self) -> str:
        """The HTTP server's base URL for OpenAI's clients."""
        scheme = "http" if self._settings.server.tls_cert is None else "https"
        return f"{scheme}://{self._at(self.http_port)}/v1"

    def _at(self, port: int) -> str:
        host = self._settings.server.host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def state(self) -> DaemonState:
        """The daemon's state. Any thread may read it."""
        engine = self._worker.state
        if engine is EngineState.FAILED:
            return DaemonState.FAILED
        if self._stop.is_set():
            return DaemonState.DRAINING
        if engine is EngineState.READY and self._ready.is_set():
            return DaemonState.SERVING
        return DaemonState.NOT_SERVING if self._ready.is_set() else DaemonState.LOADING

    @property
    def hurried(self) -> bool:
        """Whether a second `stop` asked to stop at once. Threads may still run that nothing waits for."""
        return self._hurry.is_set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Begins to drain; a second call stops at once. The signal handlers call this."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def serve_until_stopped(self) -> bool:
        """Serves until `stop`, a signal or the engine's end, then drains. Returns whether everything ended in order.

        Raises ModelLoadError if the model could not be loaded.
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
        """Ends or refuses every open request, and closes everything. Returns whether the engine ended in time, and all
        clients received the ends of their answers in time."""
        self._stop.set()
        self.service.draining = True
        self.verification.drain()
        if self._server is not None:
            await self._server.draining()
        seconds = self._settings.server.drain_seconds
        self._announce("stopping")
        if self._worker.progress.startswith("downloading"):
            self._announce("what was downloaded is kept: the next start goes on with it")
        cancelled = self._worker.status().finished.get(FinishReason.CANCELLED, 0)
        if n := self.service.open_requests:
            wait = f"{n} active request{'s' * (n > 1)}, at most {seconds:g} s"
            self._announce(f"draining: {wait}; a second Ctrl-C or SIGTERM stops at once")
        until = time.monotonic() + seconds
        draining = asyncio.create_task(asyncio.to_thread(self._on_drain))
        ended = await asyncio.to_thread(self._worker.close, seconds)
        await draining
        if self.service.relaying:  # the engine does not know of these
            await self.service.wait_idle(max(0.0, until - time.monotonic()))
            self.service.end_relays()
        delivered = await self.service.wait_idle(_DELIVERY_SECONDS)
        await self._close_listener(_GRACE_SECONDS)
        left = max(_GRACE_SECONDS, until + _CLOSE_SECONDS - time.monotonic())
        flush = min(self._settings.telemetry.shutdown_seconds, left)
        flushed = await asyncio.to_thread(self._parts.telemetry.shutdown, flush)
        self._parts.flags.close()
        if n:
            cancelled = self._worker.status().finished.get(FinishReason.CANCELLED, 0) - cancelled
            self._announce(f"drained: {n - cancelled} of {n} requests answered, {cancelled} cut off")
        for what, well in (("the engine", ended), ("delivery to a client", delivered), ("telemetry", flushed)):
            if not well:
                log.warning("shutdown: %s did not finish in time", what)
        return ended and delivered

    async def _drain_unless_hurried(self) -> bool:
        with contextlib.suppress(NotServing):
            return await unless_set(self._hurry, self.drain())
        self._announce("stopping at once")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HURRY_SECONDS):
                # Ends every request within a step: clients get a status.
                await asyncio.to_thread(self._worker.close, 0.0)
                await self.service.wait_idle(_GRACE_SECONDS)
        await self._close_listener(0)
        self._parts.flags.close()
        return False

    async def _close_listener(self, grace: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._http is not None:
            await self._http.stop(grace)
        if self._server is not None:
            await self._server.stop(grace)
        self.service.close()
        await self.verification.close()
        if self._remote is not None:
            await self._remote.close()

    async def _watch_engine(self, server: GrpcServer) -> None:
        """Announces progress, sets health to SERVING while the engine accepts requests, and stops the daemon when the
        engine has ended."""
        said, serving = "", False
        while True:
            state = self._worker.state
            if self._stop.is_set() and state in (EngineState.LOADING, EngineState.READY):
                await asyncio.sleep(_WATCH_POLL_SECONDS)  # a model that loads during the stop is never served
            elif state is EngineState.LOADING:
                if serving:
                    serving = False
                    await self._serving(server, serving)
                if said != (said := self._worker.progress):
                    self._announce(said)
                await asyncio.sleep(_LOAD_POLL_SECONDS)
            elif state is EngineState.READY:
                if not serving:
                    serving = True
                    if not self._ready.is_set():
                        self.service.prepare()
                        self.verification.prepare()
                    await self._serving(server, serving)
                    self._ready.set()
                    with contextlib.suppress(NotServing):  # the engine has ended already
                        self._announce_model()
                await asyncio.sleep(_WATCH_POLL_SECONDS)
            else:
                if state is EngineState.FAILED and self._ready.is_set():  # otherwise serve_until_stopped raises it
                    log.error("%s", self._worker.error)
                self._stop.set()
                return

    def _announce_model(self) -> None:
        """Announces what will be drafted, the prefix cache, and the model. Raises NotServing."""
        info, most = self._worker.info, self._parts.planner.max_draft_tokens
        obstacle = ""
        if info.speculation_available and most:
            if self._parts.flags.state().default_variant == "off":
                obstacle = "off by the flag, else "
            elif self._parts.planner.ladder.level.kind is FallbackLevel.AUTOREGRESSIVE:
                obstacle = "none at level autoregressive, else "
        self._announce(f"speculation: {obstacle}{info.speculation(most)}")
        if limit := self._worker.status().prefix.limit_bytes:
            self._announce(f"prefix cache: {limit / 1e6:,.0f} MB, room for {info.prefix_room(limit)}")
        self._announce(f"serving {info.model} on {self.address}")

    async def _serving(self, server: GrpcServer, serving: bool) -> None:
        """Sets the health of both listeners."""
        await server.serving(serving)
        if self._http is not None:
            self._http.serving(serving)
