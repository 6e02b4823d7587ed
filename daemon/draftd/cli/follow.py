"""Assembles a follower: its process, and the supervisor that starts it again after its group was lost."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from draftd.cli import logs
from draftd.cli.persistent_state import paths_of, quiet_transformers
from draftd.client.signals import hangup_reloads
from draftd.errors import ConfigError
from draftd.ranks.follower import LOST, beat, end_with_input, read_key, run_follower
from draftd.ranks.followers import follow_arguments
from draftd.ranks.join import FollowerPlace
from draftd.ranks.plan import plan_group
from draftd.ranks.supervisor import Supervisor
from draftd.settings import Settings

_LAUNCHED_PATIENCE_SECONDS = 60.0  # rank 0 starts together with this, and listens as long as its daemon lives
_SILENT_SECONDS = 5.0  # imports may take this long, and no thread of draftd's runs meanwhile
_PARENT_SECONDS = 0.5  # between two checks


def run_once(settings: Settings, place: FollowerPlace, *, with_input: bool, announce: Callable[[str], None]) -> int:
    """Follows one group; returns the exit code. `with_input`: ends when standard input does."""
    logs.configure(settings.log, sys.stderr)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the process that started this one answers it
    key = _key(settings, with_input)
    if with_input:
        end_with_input(lambda: os._exit(LOST))
    beat()
    quiet_transformers()
    model, _ = paths_of(settings.model)
    adapter, group = settings.model.adapter_path, settings.distributed
    return run_follower(model, adapter, group, place, key=key, environ=os.environ, announce=announce)


def run(settings: Settings, place: FollowerPlace, *, with_input: bool, announce: Callable[[str], None]) -> int:
    """Follows one group after the other, each in a process of its own; returns the exit code."""
    log = logs.configure(settings.log, sys.stderr)
    supervisor = _supervisor(settings, place, _key(settings, with_input), announce, log)
    if with_input:
        end_with_input(supervisor.stop)
    return supervisor.run()


def run_launched(settings: Settings, announce: Callable[[str], None]) -> int:
    """Follows groups as a rank above 0 that a launcher started with `draftd serve`; ends when the launcher does."""
    log = logs.configure(settings.log, sys.stderr)
    plan = plan_group(settings.distributed, os.environ)
    if plan is None or plan.rank == 0:
        raise ConfigError("MLX_RANK", os.environ.get("MLX_RANK"), "a rank from 1 on: rank 0 runs `draftd serve`")
    address = f"{plan.address}:{plan.port}"
    place = FollowerPlace(address, plan.rank, plan.size, _LAUNCHED_PATIENCE_SECONDS)
    supervisor = _supervisor(settings, place, _key(settings), announce, log)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        supervisor.stop()

    threading.Thread(target=watch, name="draftd-launcher", daemon=True).start()
    return supervisor.run()


def _key(settings: Settings, with_input: bool = False) -> bytes:
    """Returns the group's key: from standard input with `with_input`, else from the settings."""
    if with_input:
        return read_key()
    token = settings.distributed.token
    return b"" if token is None else token.get_secret_value().encode()


def _supervisor(
    settings: Settings, place: FollowerPlace, key: bytes, announce: Callable[[str], None], log: logs.LogSink
) -> Supervisor:
    arguments = follow_arguments(
        settings, place.rank, place.ranks, place.address, once=True, with_input=True, patience=place.patience
    )
    command = [sys.executable, "-m", "draftd", *arguments]
    silent = max(settings.distributed.timeout_seconds, _SILENT_SECONDS)
    out = log.write if settings.log.file is not None else None
    supervisor = Supervisor(command, silent, announce, out, key=key)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    _answer_hangup(supervisor.stop, log.reopen)
    return supervisor


def _answer_hangup(stop: Callable[[], None], reopen: Callable[[], None]) -> None:
    """Makes SIGHUP reopen the log if this process has no terminal or ignored SIGHUP (`nohup`). Otherwise SIGHUP stops
    the follower, because its terminal may have been closed. A follower has no credentials to reload."""
    reloads = hangup_reloads()

    def reopen_log() -> None:
        reopen()
        logging.getLogger(__name__).info("SIGHUP: the log was reopened")

    def act(*_: object) -> None:
        if reloads:  # on a thread: the interrupted one may be logging
            threading.Thread(target=reopen_log, name="draftd-reopen", daemon=True).start()
        else:
            stop()

    signal.signal(signal.SIGHUP, act)
