"""The composition root: builds a daemon from the settings, and serves until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from draftd.cli import logs
from draftd.cli.credentials import Credentials, Hangup
from draftd.cli.options import check_drafters
from draftd.cli.persistent_state import PersistentState, paths_of, quiet_transformers
from draftd.client.signals import handle_signals
from draftd.engine.drafters.registry import built_in_drafters
from draftd.engine.handle import EngineHandle, EngineState
from draftd.engine.limits import Limits, RemoteLimits
from draftd.engine.loop import EngineWorker
from draftd.engine.pair import LoadedModels, ModelPaths
from draftd.engine.remote.verifier_link import LinkState
from draftd.errors import ConfigError, NotServing
from draftd.fallback.assembly import Fallback
from draftd.fallback.probe_requests import probe_prompts
from draftd.fallback.signal_feed import RequestFeed
from draftd.fronts.daemon import Daemon
from draftd.fronts.grpc.control import DaemonParts
from draftd.fronts.grpc.server import port_error
from draftd.group import new_group_id
from draftd.hardware.descriptors import raise_limit
from draftd.hardware.monitor import HardwareMonitor
from draftd.hardware.state import HardwareSample, HardwareView, measured_watts, memory_share, takeable
from draftd.hardware.system import system_probe
from draftd.listening import try_listening
from draftd.planning.flag import FlagService
from draftd.planning.planner import Planner
from draftd.planning.router import EngineFigures, Router
from draftd.process.handle import EngineProcess
from draftd.ranks.followers import Followers
from draftd.ranks.plan import GroupPlan, plan_group
from draftd.settings import ModelSettings, ServerSettings, Settings
from draftd.strategies import QualityClass
from draftd.telemetry.setup import Sources, Telemetry
from draftd.verifier_client.link import GrpcLink

_HARDWARE_CLOSE_SECONDS = 1.0  # a reading that hangs longer is abandoned
_LINK_CLOSE_SECONDS = 2.0

Load = Callable[[Callable[[str], None]], LoadedModels]


def run_daemon(
    settings: Settings,
    *,
    announce: Callable[[str], None],
    load: Load | None = None,
    read: Callable[[], Settings] | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT, and returns the exit code: 0 if everything ended in order. On SIGHUP it drains if
    its terminal may have been closed; without a terminal it reloads credentials from the settings that `read` returns.

    `announce` takes one line for people at a time, such as "listening on HOST:PORT" and "serving MODEL on HOST:PORT";
    `draftd serve` logs them. `load` replaces the models of the settings. Raises ConfigError if it cannot listen,
    ModelLoadError if the model cannot be loaded.
    """
    log = logs.configure(settings.log, sys.stderr)
    raise_limit()
    drafters = built_in_drafters()
    check_drafters(settings, drafters)
    credentials = Credentials(settings, read or (lambda: settings))
    hung_up = Hangup(credentials, log.reopen)
    _check_port(settings.server)
    plan = group_plan_of(settings, os.environ)
    kept = PersistentState(settings, os.environ, named=load is None, shared=plan is not None)
    load = load or partial(served_models(settings.model, kept.head_trials), registry=drafters)
    engine = _make_engine(settings, kept, plan, load, log.write)
    engine.start()
    kept.learning.start(engine.handle.learnt)
    try:
        with handle_signals({signal.SIGHUP: hung_up}):
            code = asyncio.run(_serve(settings, kept, engine, credentials, hung_up, announce))
    finally:
        engine.close()
        kept.close()
    if engine.handle.state in (EngineState.LOADING, EngineState.READY):
        # The engine's thread is inside native code that cannot be interrupted, and would crash as the interpreter ends.
        _leave(code)
    return code


async def _serve(
    settings: Settings,
    kept: PersistentState,
    engine: _Engine,
    credentials: Credentials,
    hung_up: Hangup,
    announce: Callable[[str], None],
) -> int:
    """Serves, and returns the exit code."""
    telemetry, journal = engine.telemetry, kept.journal
    journal.listen(telemetry.fallback_recorder.log)
    with contextlib.ExitStack() as undo:  # if the start fails
        undo.callback(telemetry.shutdown, settings.telemetry.shutdown_seconds)
        flags = FlagService(
            settings.flag,
            file=kept.flag_file(settings.flag),
            strategy=settings.remote.default_strategy,
            hook=telemetry.flag_hook,
            journal=journal,
        )
        undo.callback(flags.close)
        fallback = _make_fallback(settings, kept, engine)
        daemon = _make_daemon(settings, kept, engine, flags, fallback, announce)
        telemetry.observe(_sources(kept, engine, flags, fallback, daemon, credentials))
        fallback.start(announce)
        undo.callback(fallback.close)
        hung_up.serving(daemon, fallback.reloading, daemon.reloading, engine.reloading)
        await daemon.start(signals=True)
        undo.pop_all()
    orderly = await daemon.serve_until_stopped()
    if daemon.hurried:
        _leave(1)
    return 0 if orderly else 1


@dataclass(frozen=True, slots=True)
class _Engine:
    """The engine with its sources and observers. `link` is None without a remote."""

    handle: EngineHandle
    hardware: HardwareMonitor
    link: GrpcLink | None
    telemetry: Telemetry
    requests: RequestFeed

    def start(self) -> None:
        """Starts all but the engine itself, which the daemon starts once it listens."""
        self.hardware.start({"mlx": self._memory})
        if self.link is not None:
            self.link.start(lambda: _unless_loading(lambda: self.handle.tokenizer))

    def close(self) -> None:
        """Closes all but the engine itself and telemetry."""
        if self.link is not None:
            self.link.close(_LINK_CLOSE_SECONDS)
        self.hardware.close(_HARDWARE_CLOSE_SECONDS)

    def reloading(self, settings: Settings) -> Callable[[], Awaitable[None]]:
        """Returns a function that puts the remote's credentials in `settings` into use for the next connection; see
        `Daemon.reloading`."""

        async def reload() -> None:
            if self.link is not None:
                self.link.reload(settings.remote)

        return reload

    def link_state(self) -> LinkState | None:
        return None if self.link is None else self.link.state

    def _memory(self) -> HardwareSample:
        memory = self.handle.memory
        if memory is None:
            return HardwareSample()
        return HardwareSample(
            mlx_active=memory.active, mlx_cache=memory.cache, mlx_peak=memory.peak, mlx_working_set=memory.working_set
        )


def _make_engine(
    settings: Settings, kept: PersistentState, plan: GroupPlan | None, load: Load, write_log: Callable[[str], None]
) -> _Engine:
    """Makes the engine: on a thread of this process or, with a `plan`, over ranks whose output goes to `write_log`."""
    hardware = HardwareMonitor(
        system_probe(),
        period_seconds=settings.hardware.period_seconds,
        memory_floor=settings.hardware.memory_floor_bytes,
    )
    group = "" if plan is None else new_group_id()
    telemetry = Telemetry.start(
        settings.telemetry,
        hardware,
        scraped=settings.server.http is not None,
        group=group,
        port=settings.server.port,
    )
    link = GrpcLink(settings.remote, journal=kept.journal) if settings.remote.enabled else None
    requests = RequestFeed()
    observers = (telemetry.observer, requests)
    limits, recall = _limits(settings, kept.prefixes, hardware), kept.learning.recall
    handle: EngineHandle
    if plan is None:
        handle = EngineWorker(
            load,
            observers=observers,
            limits=limits,
            recall=recall,
            link=link,
            fingerprints=kept.fingerprints,
            exactness_prompts=probe_prompts,
        )
    else:
        handle = EngineProcess(
            served_models(settings.model),
            Followers(settings, plan, os.environ, group, out=write_log),
            settings.distributed,
            group=group,
            observers=observers,
            limits=limits,
            recall=recall,
            fingerprints=kept.fingerprints,
        )
    return _Engine(handle, hardware, link, telemetry, requests)


def _limits(settings: Settings, prefixes: Path | None, hardware: HardwareView) -> Limits:
    remote = settings.remote
    return settings.engine.limits(
        gather_seconds=settings.verify.gather_seconds,
        part_of_peer=settings.verify.target_share_per_peer,
        prefix_folder=prefixes,
        memory_share=lambda: memory_share(hardware.state),
        headroom=lambda: takeable(hardware.state),
        available=lambda: None if hardware.state is None else hardware.state.available,
        remote=RemoteLimits(remote.max_draft_tokens, remote.in_flight, step_seconds=remote.step_seconds),
    )


def _make_fallback(settings: Settings, kept: PersistentState, engine: _Engine) -> Fallback:
    return Fallback(
        settings,
        engine.handle,
        engine.link,
        requests=engine.requests,
        hardware=engine.hardware,
        journal=kept.journal,
        store=kept.store,
        telemetry=engine.telemetry.fallback_recorder,
        instance=engine.telemetry.instance,
    )


def _make_daemon(
    settings: Settings,
    kept: PersistentState,
    engine: _Engine,
    flags: FlagService,
    fallback: Fallback,
    announce: Callable[[str], None],
) -> Daemon:
    router = Router(
        settings.remote,
        settings.cost,
        QualityClass.of(settings.model.quality),
        link=lambda: engine.link_state() or LinkState(),
        engine=lambda: EngineFigures.of(engine.handle),
        max_batch=settings.engine.max_batch,
        watts=lambda: measured_watts(engine.hardware.state),
        allowed=fallback.remote_level,
    )
    planner = Planner(flags, fallback.ladder, depth_mode=settings.engine.depth_mode, router=router)
    parts = DaemonParts(
        settings,
        engine.handle,
        planner,
        flags,
        engine.telemetry,
        kept.journal,
        engine.hardware,
        fallback.controller,
        engine.link_state,
    )
    return Daemon(parts, announce=announce, on_drain=fallback.close)


def _sources(
    kept: PersistentState,
    engine: _Engine,
    flags: FlagService,
    fallback: Fallback,
    daemon: Daemon,
    credentials: Credentials,
) -> Sources:
    """Returns the sources that telemetry reads."""

    def save_errors() -> dict[str, int]:
        """Returns failures to write, by file: prefixes if they are kept on disk, the flag's if this daemon writes
        it."""
        errors = kept.save_errors
        if flags.save_errors is not None:
            errors["flag"] = flags.save_errors
        if kept.prefixes is not None:
            prefix = engine.handle.status().prefix
            errors |= {"prefixes": prefix.disk_errors, "pins": prefix.pin_errors}
        return errors

    return Sources(
        info=lambda: _unless_loading(lambda: engine.handle.info),
        status=engine.handle.status,
        fallback=fallback.controller.state,
        flag_enabled=flags.default_value,
        save_errors=save_errors,
        state=lambda: daemon.state,
        link=engine.link_state,
        verification=lambda: daemon.verification.status() if daemon.verification.has_status else None,
        certificates=credentials.expiries,
    )


T = TypeVar("T")


def _unless_loading(ask: Callable[[], T]) -> T | None:
    """Returns what `ask` returns, or None while the model is not loaded."""
    try:
        return ask()
    except NotServing:
        return None


def _check_port(server: ServerSettings) -> None:
    """Raises ConfigError if another program listens on the port. Called before the state folder is opened, which that
    program may have locked. Other faults of the address are the server's to report."""
    try:
        try_listening(server.host, server.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise port_error(server) from None


def served_models(settings: ModelSettings, trials: Path | None = None) -> ModelPaths:
    """Returns the models that the settings name; the embedded pair if they name none. `trials`: a file that keeps what
    the trials of draft heads found."""
    model, draft = paths_of(settings)
    quiet_transformers()
    return ModelPaths(
        model,
        draft,
        settings.light_draft_path,
        settings.adapter_path,
        settings.prompt_lookup,
        settings.max_context,
        trials,
    )


def group_plan_of(settings: Settings, environ: Mapping[str, str]) -> GroupPlan | None:
    """Returns the plan of the ranks that share the target; None if it runs within the daemon. Raises ConfigError, also
    for settings that exclude several ranks."""
    plan = plan_group(settings.distributed, environ)
    if plan is None:
        return None
    alone = {
        "engine.prefix_dir": settings.engine.prefix_dir,
        "engine.prefix_disk_bytes": settings.engine.prefix_disk_bytes,
        "engine.exact": settings.engine.exact,
        "engine.idle_unload_seconds": settings.engine.idle_unload_seconds,
        "verify.enabled": settings.verify.enabled,
        "remote.enabled": settings.remote.enabled,
    }
    for name, value in alone.items():
        if value:
            raise ConfigError(name, str(value), "unset, where several ranks share the target (distributed)")
    return plan


def _leave(code: int) -> None:
    """Ends the process now, without waiting for its threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
