"""The composition root: settings in, a daemon that serves until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from draftd.cli import logs
from draftd.cli.credentials import Credentials
from draftd.cli.hangup import Hangup
from draftd.cli.state import Kept, Learning, paths_of, quiet_transformers
from draftd.client.signals import answered
from draftd.engine.drafters.registry import DrafterRegistry, built_in_drafters
from draftd.engine.handle import EngineHandle, EngineState
from draftd.engine.limits import RemoteLimits
from draftd.engine.loop import EngineWorker
from draftd.engine.pair import LoadedModels, ModelPaths
from draftd.engine.remote.verifier_link import LinkState
from draftd.errors import ConfigError, NotServing
from draftd.fallback.annotations import Annotator
from draftd.fallback.controller import Controller
from draftd.fallback.ladder import LevelInForce, configured_ladder
from draftd.fallback.loaded_drafters import LoadedDrafters
from draftd.fallback.probe_runner import ProbeRunner
from draftd.fallback.remote import RemoteSwitch, streaming_pace
from draftd.fallback.signal_feed import RequestFeed
from draftd.fronts.daemon import Daemon
from draftd.fronts.grpc.control import DaemonParts
from draftd.fronts.grpc.server import taken
from draftd.group import new_group_id
from draftd.hardware.descriptors import raise_limit
from draftd.hardware.monitor import HardwareMonitor
from draftd.hardware.state import HardwareSample, HardwareView, measured_watts, memory_share, takeable
from draftd.hardware.system import system_probe
from draftd.listening import try_listening
from draftd.model_info import ModelInfo
from draftd.models.tokenizer import Tokenizer
from draftd.planning.flag import FlagService
from draftd.planning.planner import Planner
from draftd.planning.router import EngineNow, Router
from draftd.process.handle import EngineProcess
from draftd.ranks.followers import Followers
from draftd.ranks.plan import GroupPlan, plan_group
from draftd.remote.link import GrpcLink
from draftd.settings import ModelSettings, ServerSettings, Settings
from draftd.strategies import QualityClass, RemoteLevel, VerificationStatus
from draftd.telemetry.setup import Sources, Telemetry

if TYPE_CHECKING:
    from draftd.fallback.alerts.poller import Poller
    from draftd.fallback.alerts.webhook import WebhookListener

_HARDWARE_CLOSE_SECONDS = 1.0  # a reading that hangs longer is left behind
_LINK_CLOSE_SECONDS = 2.0
_FALLBACK_CLOSE_SECONDS = 5.0  # for all of it together; each part takes a fraction of a second where nothing hangs
_ANNOTATIONS_SECONDS = 2.0  # of them, for what was not marked in Grafana yet

Load = Callable[[Callable[[str], None]], LoadedModels]


def run_daemon(
    settings: Settings,
    *,
    announce: Callable[[str], None],
    load: Load | None = None,
    read: Callable[[], Settings] | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT, and returns the exit code: 0 when everything ended in order. On SIGHUP it drains
    if its terminal may have been closed; without one it reloads credentials, from the settings that `read` returns.

    `announce` takes one line for people at a time, such as "listening on HOST:PORT" and "serving MODEL on HOST:PORT";
    `draftd serve` logs them. `load` replaces the models of the settings. Raises ConfigError where it cannot listen,
    ModelLoadError where the model cannot be loaded.
    """
    log = logs.configure(settings.log, sys.stderr)
    raise_limit()
    drafters = built_in_drafters()
    check_drafters(settings, drafters)
    credentials = Credentials(settings, read or (lambda: settings))
    hung_up = Hangup(credentials, log.reopen)
    _check_port(settings.server)
    plan = shared_by(settings, os.environ)
    group = "" if plan is None else new_group_id()
    parts, requests, kept = _Parts(), RequestFeed(), Kept(settings, os.environ)
    prefixes = kept.prefix_folder(settings) if plan is None else None
    learning = Learning(settings, kept.path if load is None else None)  # what is loaded otherwise has no name
    hardware = HardwareMonitor(
        system_probe(parts.mlx),
        period_seconds=settings.hardware.period_seconds,
        memory_floor=settings.hardware.memory_floor_bytes,
    )
    sources = Sources(
        info=parts.info,
        status=lambda: None if parts.worker is None else parts.worker.status(),
        fallback=lambda: None if parts.fallback is None else parts.fallback.controller.state(),
        flag_enabled=lambda: None if parts.flags is None else parts.flags.default_value(),
        save_errors=lambda: {**kept.save_errors, **learning.save_errors, **parts.save_errors(prefixes is not None)},
        hardware=hardware,
        address=lambda: None if parts.daemon is None else parts.daemon.listens_on,
        state=lambda: None if parts.daemon is None else parts.daemon.state,
        link=parts.link_state,
        verification=parts.verification,
        certificates=credentials.expiries,
    )
    telemetry = Telemetry.start(
        settings.telemetry,
        sources,
        scraped=settings.server.http is not None,
        group=group,
        port=settings.server.port,
    )
    link = None
    if settings.remote.enabled:
        link = parts.verifier = GrpcLink(settings.remote, parts.tokenizer, journal=kept.journal)
    observers = (telemetry.observer, requests)
    limits = settings.engine.limits(
        gather_seconds=settings.verify.gather_seconds,
        part_of_peer=settings.verify.target_share_per_peer,
        prefix_folder=prefixes,
        memory_share=lambda: memory_share(hardware.state),
        headroom=lambda: takeable(hardware.state),
        available=lambda: None if hardware.state is None else hardware.state.available,
        remote=RemoteLimits(
            settings.remote.max_draft_tokens, settings.remote.in_flight, step_seconds=settings.remote.step_seconds
        ),
    )
    worker: EngineHandle
    if plan is None:
        loaded = load or models_of(settings.model, drafters)
        worker = EngineWorker(loaded, observers=observers, limits=limits, recall=learning.recall, link=link)
    else:
        ranks = Followers(settings, plan, os.environ, group, out=log.write)
        worker = EngineProcess(
            served_models(settings.model),
            ranks,
            settings.distributed,
            group=group,
            observers=observers,
            limits=limits,
            recall=learning.recall,
        )
    parts.worker = worker

    async def serve() -> int:
        kept.journal.listen(telemetry.fallback_recorder.log)
        with contextlib.ExitStack() as undo:  # where it cannot be started
            undo.callback(telemetry.shutdown, settings.telemetry.shutdown_seconds)
            flags = FlagService(
                settings.flag,
                file=kept.flag_file(settings.flag),
                strategy=settings.remote.default_strategy,
                hook=telemetry.flag_hook,
                journal=kept.journal,
            )
            undo.callback(flags.close)
            in_force = LevelInForce(configured_ladder(settings), kept.journal)
            remote = None
            if link is not None:
                remote = RemoteSwitch(
                    lambda: link.state,
                    lambda: streaming_pace(worker.status()),
                    settings.fallback,
                    kept.journal,
                    telemetry.fallback_recorder,
                )
            router = Router(
                settings.remote,
                settings.cost,
                QualityClass.of(settings.model.quality),
                link=parts.link,
                engine=lambda: EngineNow.of(worker),
                max_batch=settings.engine.max_batch,
                watts=lambda: measured_watts(hardware.state),
                allowed=lambda: RemoteLevel.SPECULATIVE if remote is None else remote.level,
            )
            planner = Planner(flags, in_force, depth_mode=settings.engine.depth_mode, router=router)
            fallback = Fallback(settings, worker, in_force, requests, kept, telemetry, hardware, remote)
            parts.flags, parts.fallback = flags, fallback
            controller, state = fallback.controller, parts.link_state
            made = DaemonParts(settings, worker, planner, flags, telemetry, kept.journal, hardware, controller, state)
            parts.daemon = daemon = Daemon(made, announce=announce, on_drain=fallback.close)
            fallback.start(announce)
            undo.callback(fallback.close)
            hung_up.serving(daemon, fallback.reloading, daemon.reloading, parts.reloading)
            await daemon.start(signals=True)
            undo.pop_all()
        orderly = await daemon.serve_until_stopped()
        if daemon.hurried:
            _leave(1)
        return 0 if orderly else 1

    hardware.start()
    learning.start(worker.learnt)
    if link is not None:
        link.start()
    try:
        with answered({signal.SIGHUP: hung_up}):
            code = asyncio.run(serve())
    finally:
        if link is not None:
            link.close(_LINK_CLOSE_SECONDS)
        hardware.close(_HARDWARE_CLOSE_SECONDS)
        learning.close()
        kept.close()
    if worker.state in (EngineState.LOADING, EngineState.READY):
        # Its thread is inside native code that cannot be interrupted, and must not meet a dying interpreter.
        _leave(code)
    return code


@dataclass
class _Parts:
    """Telemetry and the hardware monitor ask parts that are made after them, some of which need them in turn: until
    then nothing is known yet."""

    worker: EngineHandle | None = None
    flags: FlagService | None = None
    fallback: Fallback | None = None
    daemon: Daemon | None = None
    verifier: GrpcLink | None = None

    def reloading(self, settings: Settings) -> Callable[[], Awaitable[None]]:
        async def reload() -> None:
            if self.verifier is not None:
                self.verifier.reload(settings.remote)

        return reload

    def link(self) -> LinkState:
        return self.link_state() or LinkState()

    def link_state(self) -> LinkState | None:
        return None if self.verifier is None else self.verifier.state

    def verification(self) -> VerificationStatus | None:
        found = None if self.daemon is None else self.daemon.verification
        return found.status() if found is not None and found.asked else None

    def save_errors(self, prefixes: bool) -> dict[str, int]:
        """Failures to write the flag's file, and prefixes where they are kept on disk."""
        flag = None if self.flags is None else self.flags.save_errors
        found = {} if flag is None else {"flag": flag}
        if prefixes and self.worker is not None:
            status = self.worker.status().prefix
            found |= {"prefixes": status.disk_errors, "pins": status.pin_errors}
        return found

    def tokenizer(self) -> Tokenizer | None:
        try:
            return self.worker.tokenizer if self.worker is not None else None
        except NotServing:
            return None

    def info(self) -> ModelInfo | None:
        try:
            return self.worker.info if self.worker is not None else None
        except NotServing:
            return None

    def mlx(self) -> HardwareSample:
        held = None if self.worker is None else self.worker.memory
        if held is None:
            return HardwareSample()
        return HardwareSample(
            mlx_active=held.active, mlx_cache=held.cache, mlx_peak=held.peak, mlx_working_set=held.working_set
        )


class Fallback:
    """The controller, and all that it hears and tells."""

    def __init__(
        self,
        settings: Settings,
        worker: EngineHandle,
        in_force: LevelInForce,
        requests: RequestFeed,
        kept: Kept,
        telemetry: Telemetry,
        hardware: HardwareView,
        remote: RemoteSwitch | None,
    ) -> None:
        """Raises ConfigError for settings that cannot be met. Nothing runs before `start`."""
        recorder = telemetry.fallback_recorder
        drafters = LoadedDrafters(worker)
        self._runner = ProbeRunner(worker, drafters.borrow, settings.fallback, recorder, in_force=in_force)
        self.controller = Controller(
            in_force,
            worker,
            runner=self._runner,
            drafters=drafters,
            requests=requests,
            hardware=hardware,
            settings=settings.fallback,
            lease_seconds=settings.webhook.lease_seconds,
            journal=kept.journal,
            telemetry=recorder,
            store=kept.store,
            remote=remote,
        )
        self._webhook = webhook = settings.webhook
        notices, polled, marks = self.controller.notices, self.controller.polled, settings.annotations

        self._listener: WebhookListener | None = None
        self._poller: Poller | None = None
        if webhook.listens:  # each brings aiohttp in, which takes a while
            from draftd.fallback.alerts.webhook import WebhookListener

            self._listener = WebhookListener(
                webhook, notices, recorder, lambda: telemetry.instance, unsaved=lambda: self.controller.state().unsaved
            )
        if webhook.poll_url:
            from draftd.fallback.alerts.poller import Poller

            self._poller = Poller(webhook, polled, recorder, lambda: telemetry.instance)
        self._annotator = None
        if marks.grafana_url:  # alerts know no host, but people do
            self._annotator = Annotator(
                marks, kept.journal, recorder, lambda: telemetry.instance or socket.gethostname()
            )

    def reloading(self, settings: Settings) -> Callable[[], Awaitable[None]]:
        """As `Daemon.reloading`, of what alerts arrive with and what annotations are sent with."""
        context = None
        if self._listener is not None:
            from draftd.fallback.alerts.connections import tls

            context = tls(settings.webhook)

        async def reload() -> None:
            if self._listener is not None:
                self._listener.reload(settings.webhook, context)
            if self._poller is not None:
                self._poller.reload(settings.webhook)
            if self._annotator is not None:
                self._annotator.reload(settings.annotations)

        return reload

    def start(self, announce: Callable[[str], None]) -> None:
        """Raises ConfigError where the webhook cannot listen; then nothing runs."""
        state = self.controller.state()
        if state.position or state.hold is not None:
            held = f", held {state.hold.evidence}" if state.hold is not None else ""
            why = f": {state.signal.text}" if state.signal is not None and state.hold is None else ""
            announce(f"level {state.ladder[state.position].label}, as before the restart{held}{why}")
        if self._listener is not None:
            port = self._listener.start()
            announce(f"alerts are taken on port {port} of {self._webhook.host}")
        if self._annotator is not None:
            self._annotator.start()
        self.controller.start()
        if self._poller is not None:
            self._poller.start()

    def close(self) -> bool:
        """Hears no more, moves no more, has told what it did. True when nothing of it is left."""
        deadline = time.monotonic() + _FALLBACK_CLOSE_SECONDS
        parts = (self._listener, self._poller, self._runner, self.controller)
        ended = [part.close(max(0.0, deadline - time.monotonic())) for part in parts if part is not None]
        if self._annotator is not None:  # the last to hear; a Grafana that hangs is no fault of this daemon's
            self._annotator.close(min(_ANNOTATIONS_SECONDS, max(0.0, deadline - time.monotonic())))
        return all(ended)


def check_drafters(settings: Settings, drafters: DrafterRegistry) -> None:
    """Raises ConfigError for a setting that names a drafter which is not registered."""
    if settings.model.drafter is not None:
        drafters.get(settings.model.drafter, "model.drafter")
    for name in settings.fallback.lighter:
        drafters.get(name, "fallback.lighter")


def _check_port(server: ServerSettings) -> None:
    """Raises ConfigError where another program listens there, which may be the daemon that has the state folder: before
    that is looked at. Whatever else keeps the server from listening, it says itself."""
    try:
        try_listening(server.host, server.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise taken(server) from None


def models_of(settings: ModelSettings, drafters: DrafterRegistry) -> Load:
    """How to load what the settings name; nothing named is the embedded pair."""
    return partial(served_models(settings), registry=drafters)


def served_models(settings: ModelSettings) -> ModelPaths:
    model, draft = paths_of(settings)
    quiet_transformers()
    return ModelPaths(
        model,
        draft,
        settings.light_draft_path,
        settings.adapter_path,
        settings.prompt_lookup,
        settings.max_context,
    )


def shared_by(settings: Settings, environ: Mapping[str, str]) -> GroupPlan | None:
    """The ranks that share the target; None where it runs within the daemon. Raises ConfigError, also for what does not
    go together with several ranks."""
    plan = plan_group(settings.distributed, environ)
    if plan is None:
        return None
    alone = {
        "engine.prefix_dir": settings.engine.prefix_dir,
        "engine.prefix_disk_bytes": settings.engine.prefix_disk_bytes,
        "engine.idle_unload_seconds": settings.engine.idle_unload_seconds,
        "verify.enabled": settings.verify.enabled,
        "remote.enabled": settings.remote.enabled,
    }
    for name, value in alone.items():
        if value:
            raise ConfigError(name, str(value), "unset, where several ranks share the target (distributed)")
    return plan


def _leave(code: int) -> None:
    """Ends the process now: what is left are threads that are not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
