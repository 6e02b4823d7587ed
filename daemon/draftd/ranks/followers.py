"""Follower processes that rank 0's daemon starts: on this machine, or on others over SSH as `mlx.launch` does.

Each ends with its standard input, which this process holds: none stays behind where this one is killed, either. What
it writes goes on to this process's log, but for its last words, which say why it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO

from draftd.ranks.handshake import listen_for_followers
from draftd.ranks.plan import GroupPlan, GroupShare, Start
from draftd.settings import Settings

_GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
_REAP_SECONDS = 10.0
_SSH_OPTIONS = {
    "BatchMode": "yes",  # it must not ask for a password
    "LogLevel": "ERROR",
    "ConnectTimeout": "5",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
}
_PATIENCE_SECONDS = 5.0  # of a follower, for rank 0, which listens before it is started
_ERROR = re.compile(r"^(?:\S+ )?draftd: error: ")


@dataclass(frozen=True, slots=True)
class FollowerExit:
    """`code`: -N where signal N ended it. `why`: its last words."""

    rank: int
    host: str
    code: int
    why: str

    def __str__(self) -> str:
        how = f"was ended by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"
        return f"rank {self.rank} on {self.host}: {self.why.removeprefix(f'rank {self.rank}: ') or how}"


def follow_arguments(
    settings: Settings, rank: int, ranks: int, address: str, *, once: bool, with_input: bool, patience: float | None
) -> list[str]:
    """Of `draftd`: a follower with the settings that are a follower's."""
    model, group, log = settings.model, settings.distributed, settings.log
    named: dict[str, object] = {
        "model.path": model.path,
        "model.adapter_path": model.adapter_path,
        "distributed.trusted_network": str(group.trusted_network).lower(),
        "distributed.timeout_seconds": group.timeout_seconds,
        "distributed.start_seconds": group.start_seconds,
        "log.level": log.level,
        "log.format": log.format,
        "log.file": "",  # its lines go to the daemon that started it: two programs cannot rename one file
    }
    found = ["follow", "--address", address, "--rank", str(rank), "--ranks", str(ranks)]
    for name, value in named.items():
        if value is not None:
            found += ["--set", f"{name}={value}"]
    found += ["--patience", f"{patience:g}"] if patience is not None else []
    return found + ["--once"] * once + ["--with-input"] * with_input


class Followers:
    """Of one plan. One thread, but for `ended`."""

    def __init__(
        self,
        settings: Settings,
        plan: GroupPlan,
        environ: Mapping[str, str],
        *,
        out: Callable[[str], None] | None = None,
    ) -> None:
        """`out` takes each line that a follower writes; unset: stderr."""
        self._settings, self._plan, self._environ = settings, plan, dict(environ)
        self._out = out or (lambda line: print(line, file=sys.stderr, flush=True))
        self._running = dict[int, _Process]()

    def start(self, address: str) -> None:
        """Those that do not run; none where others start them. `address`: rank 0's HOST:PORT. Raises OSError."""
        if self._plan.start not in (Start.LOCAL, Start.SSH):
            return
        for rank in range(1, self._plan.size):
            one = self._running.get(rank)
            if one is not None and one.process.poll() is None:
                continue
            if one is not None:
                one.reaped()
            self._running[rank] = _Process(self._command(rank, address), self._environ, self._out)

    def ended(self) -> FollowerExit | None:
        """The first that has ended since it was started."""
        for rank, one in sorted(self._running.items()):
            if (code := one.process.poll()) is not None:
                return FollowerExit(rank, self._plan.hosts[rank].ssh, code, one.reaped())
        return None

    def stop(self, grace_seconds: float = _GRACE_SECONDS) -> None:
        """None is left when this returns, on this machine; others' end with the connection to them."""
        for one in self._running.values():
            one.end()
        deadline = time.monotonic() + grace_seconds
        for one in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, deadline - time.monotonic()))
            one.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(_REAP_SECONDS)
            one.reaped()
        self._running.clear()

    def _command(self, rank: int, address: str) -> list[str]:
        here = self._plan.here(rank)
        arguments = follow_arguments(
            self._settings,
            rank,
            self._plan.size,
            address,
            once=here,
            with_input=True,
            patience=_PATIENCE_SECONDS,
        )
        if here:
            return [sys.executable, "-m", "draftd", *arguments]
        return ssh_command(
            self._plan.hosts[rank].ssh, self._settings.distributed.command, arguments, self._plan.environment
        )


class StartedRanks:
    """The followers of one plan, as `OtherRanks` of an engine's process, and the socket that they connect to: kept from
    one start of the group to the next, so that followers may wait there."""

    def __init__(
        self,
        settings: Settings,
        plan: GroupPlan,
        environ: Mapping[str, str],
        group: str,
        out: Callable[[str], None] | None = None,
    ) -> None:
        """`out`: of `Followers`. Raises ConfigError if it cannot listen."""
        self._settings, self._plan, self._group = settings, plan, group
        self._followers = Followers(settings, plan, environ, out=out)
        self._listener = listen_for_followers(plan)

    def start(self) -> GroupShare:
        host, port = self._listener.getsockname()[:2]
        self._followers.start(f"{host}:{port}")
        return GroupShare(self._plan, self._group, self._listener.fileno(), self._settings.distributed)

    def describe_exit(self) -> str:
        ended = self._followers.ended()
        return "" if ended is None else str(ended)

    def stop(self) -> None:
        self._followers.stop()

    def close(self) -> None:
        self._listener.close()


def ssh_command(host: str, draftd: str | None, arguments: list[str], environ: Mapping[str, str]) -> list[str]:
    """Runs `draftd` with `arguments` on `host`, in the same folder where there is one of that name. `draftd`: how it is
    called there, as a shell spells it; None: as here. Every argument is quoted: what a setting holds is no command."""
    called = draftd or shlex.join([sys.executable, "-m", "draftd"])
    variables = "".join(f"export {name}={shlex.quote(value)}; " for name, value in environ.items())
    folder = shlex.quote(os.getcwd())
    options = [word for name, value in _SSH_OPTIONS.items() for word in ("-o", f"{name}={value}")]
    return [
        "ssh",
        "-T",
        *options,
        "--",
        host,
        f"cd {folder} 2>/dev/null; {variables}exec {called} {shlex.join(arguments)}",
    ]


class _Process:
    def __init__(self, command: list[str], environ: Mapping[str, str], out: Callable[[str], None]) -> None:
        self._out, self._said = out, deque[str](maxlen=20)
        self.process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which lets running requests end first
        )
        assert self.process.stderr is not None
        args = (self.process.stderr,)
        self._reader = threading.Thread(target=self._read, args=args, name="draftd-rank-stderr", daemon=True)
        self._reader.start()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        self.process.terminate()

    def reaped(self) -> str:
        """Of one that has ended: its last words."""
        self._reader.join(1.0)
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        return last_words(list(self._said))

    def _read(self, stream: IO[bytes]) -> None:
        with contextlib.closing(stream):
            for raw in stream:
                line = raw.decode(errors="replace").rstrip()
                self._said.append(line)
                if not _message(line)[1]:
                    self._out(line)


def last_words(lines: list[str]) -> str:
    """Of what a process wrote: its last error, or else its last line."""
    said = [_message(line) for line in lines if line]
    errors = [text for text, is_error in said if is_error]
    return (errors or [text for text, _ in said] or [""])[-1]


def _message(line: str) -> tuple[str, bool]:
    """Of a line of the log: what it says, and whether it is an error."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            return str(event.get("message", line)), event.get("level") == "error"
    text, found = _ERROR.subn("", line)
    return text, bool(found)
