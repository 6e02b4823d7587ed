"""A real daemon in the test's own process: a gRPC server on loopback, the real engine, a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from draftd.client.client import CallError, DraftdClient
from draftd.core import DepthMode
from draftd.engine.loop import EngineWorker
from draftd.engine.pair import LoadedModels
from draftd.engine.remote.verifier_link import LinkState
from draftd.fallback.ladder import Ladder, configured_ladder
from draftd.fronts.daemon import Daemon
from draftd.fronts.grpc.control import DaemonParts
from draftd.hardware.state import HardwareView
from draftd.journal import Journal
from draftd.planning.flag import FlagService
from draftd.planning.planner import Planner
from draftd.planning.router import Router
from draftd.settings import (
    CostSettings,
    EngineSettings,
    FlagSettings,
    RemoteSettings,
    ServerSettings,
    Settings,
    VerifySettings,
)
from draftd.telemetry.setup import Telemetry
from draftd.v1 import inference_pb2 as pb
from tests.fake_fallback import FakeController
from tests.recording_telemetry import RecordingTelemetry
from tests.scripted import scripted_models
from tests.wait_until import until


def models() -> LoadedModels:
    """Returns a scripted pair with a context of a few thousand tokens."""
    return scripted_models(0.7, context_length=4096)


class Served:
    """A daemon on a thread of its own, with a client."""

    def __init__(
        self,
        tmp_path: Path,
        models: Callable[[], LoadedModels],
        *,
        server: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        verify: dict[str, Any] | None = None,
        token: str | None = None,
        client: dict[str, Any] | None = None,
        wait: bool = True,
        hardware: HardwareView | None = None,
        controller: FakeController | None = None,
        telemetry: Callable[[Callable[[], EngineWorker]], Telemetry] | None = None,
        remote: dict[str, Any] | None = None,
        cost: dict[str, Any] | None = None,
        link: Callable[[], LinkState] = LinkState,
    ) -> None:
        self._link = link
        self.hardware, self.controller = hardware or HardwareView(), controller or FakeController()
        self.settings = Settings(
            server=ServerSettings(**{"port": 0, "drain_seconds": 2.0, "token": token, **(server or {})}),
            # What tests say of drafts, they say of a depth that is always the same; no test is the next one's prompt.
            engine=EngineSettings(**{"depth_mode": DepthMode.FIXED, "prefix_cache_bytes": 0, **(engine or {})}),
            flag=FlagSettings(file=tmp_path / "flags.json"),
            remote=RemoteSettings(**(remote or {})),
            cost=CostSettings(**(cost or {})),
            verify=VerifySettings(**(verify or {})),
        )
        self.telemetry = RecordingTelemetry()
        self._told: Telemetry = self.telemetry if telemetry is None else telemetry(lambda: self.worker)
        self.worker = EngineWorker(
            lambda progress: models(),
            observers=(self._told.observer,),
            limits=self.settings.engine.limits(prefix_folder=self.settings.engine.prefix_dir),
        )
        self.lines: list[str] = []
        self.orderly: bool | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="served", daemon=True)
        self._thread.start()
        assert self._started.wait(30)
        if self._failure is not None:
            raise self._failure
        self.target = f"localhost:{self.port}"
        self.client = DraftdClient(self.target, token, **(client or {}))
        if wait:
            until(self.client.serving, 60)

    def _run(self) -> None:
        with contextlib.suppress(BaseException):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        try:
            self.loop = asyncio.get_running_loop()
            self.journal = Journal()
            self.flags = FlagService(self.settings.flag, journal=self.journal)
            mode = self.settings.engine.depth_mode
            self.ladder = Ladder(configured_ladder(self.settings), self.journal)
            router = Router(self.settings.remote, self.settings.cost, link=self._link)
            self.planner = Planner(self.flags, self.ladder, depth_mode=mode, router=router)
            parts = DaemonParts(
                self.settings,
                self.worker,
                self.planner,
                self.flags,
                self._told,
                self.journal,
                self.hardware,
                self.controller,
            )
            self.daemon = Daemon(parts, announce=self.lines.append)
            self.port = await self.daemon.start()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._started.set()
        self.orderly = await self.daemon.serve_until_stopped()
        self.tasks_left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    def stop(self) -> None:
        """Begins to drain."""
        self.loop.call_soon_threadsafe(self.daemon.stop)

    def join(self, seconds: float = 30.0) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the daemon did not stop"

    def close(self) -> None:
        if self._thread.is_alive():
            self.stop()
            self.join()
        self.client.close()

    def settle(self, seconds: float = 10.0) -> None:
        """Waits until the engine has no request and telemetry has seen every one."""
        until(lambda: self.daemon.service.open_requests == 0, seconds)
        until(lambda: all(h.outcomes or h.refusals for h in self.telemetry.heard), seconds)

    def channel(self, options: list[tuple[str, int]] | None = None) -> grpc.Channel:
        return grpc.insecure_channel(self.target, options or [])


@contextlib.contextmanager
def serving(tmp_path: Path, models: Callable[[], LoadedModels], **options: Any) -> Iterator[Served]:
    served = Served(tmp_path, models, **options)
    try:
        yield served
    finally:
        served.close()


@dataclass
class Answer:
    """One whole stream."""

    started: pb.Started
    chunks: list[pb.Chunk]
    finished: pb.Finished | None
    error: CallError | None = None

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]


def collect(stream: Iterator[pb.GenerateResponse]) -> Answer:
    """Reads a stream to its end. Checks the order of events."""
    events: list[pb.GenerateResponse] = []
    error = None
    try:
        events.extend(stream)
    except CallError as caught:
        if not events:
            raise
        error = caught
    assert events[0].HasField("started"), events[0]
    finished = events.pop().finished if events[-1].HasField("finished") else None
    assert all(event.HasField("chunk") for event in events[1:])
    return Answer(events[0].started, [event.chunk for event in events[1:]], finished, error)
