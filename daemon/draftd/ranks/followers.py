"""Follower processes that rank 0's daemon starts: on this machine, or on others over SSH like `mlx.launch`.

Each exits when its standard input closes, which this process holds open, so none is left behind even if this process is
killed. Its output goes to this process's log; its last lines say why it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from draftd.ranks.form import listen_for_followers
from draftd.ranks.plan import GroupPlan, GroupShare, Start
from draftd.settings import Settings

_GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
_REAP_SECONDS = 10.0
_SSH_OPTIONS = {
    "BatchMode": "yes",  # ssh must not ask for a password
    "LogLevel": "ERROR",
    "ConnectTimeout": "5",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
}
_PATIENCE_SECONDS = 5.0  # seconds that a follower waits for rank 0, which listens before followers start
_ERROR = re.compile(r"^(?:\S+ )?draftd: error: ")


@dataclass(frozen=True, slots=True)
class FollowerExit:
    """A follower's exit. `code`: -N if signal N ended it. `last`: its last lines."""

    rank: int
    host: str
    code: int
    last: str

    @property
    def why(self) -> str:
        how = f"was ended by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"
        return self.last.removeprefix(f"rank {self.rank}: ") or how

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}: {self.why}"


def follow_arguments(
    settings: Settings, rank: int, ranks: int, address: str, *, once: bool, with_input: bool, patience: float | None
) -> list[str]:
    """Returns `draftd`'s arguments for a follower, with the settings that concern it."""
    model, group, log = settings.model, settings.distributed, settings.log
    named: dict[str, object] = {
        "model.path": model.path,
        "model.adapter_path": model.adapter_path,
        "distributed.trusted_network": str(group.trusted_network).lower(),
        "distributed.timeout_seconds": group.timeout_seconds,
        "distributed.start_seconds": group.start_seconds,
        "log.level": log.level,
        "log.format": log.format,
        "log.file": "",  # its log goes to the daemon that started it: two processes cannot rotate one file
    }
    arguments = ["follow", "--address", address, "--rank", str(rank), "--ranks", str(ranks)]
    for name, value in named.items():
        if value is not None:
            arguments += ["--set", f"{name}={value}"]
    arguments += ["--patience", f"{patience:g}"] if patience is not None else []
    return arguments + ["--once"] * once + ["--with-input"] * with_input


class Followers:
    """The followers of one plan, and the socket that they connect to; an engine's process uses them as `OtherRanks`.
    The socket stays open between starts of the group, so that followers can wait there. One thread, except for
    `exits`."""

    def __init__(
        self,
        settings: Settings,
        plan: GroupPlan,
        environ: Mapping[str, str],
        group: str,
        *,
        out: Callable[[str], None],
    ) -> None:
        """`group`: its id. `out` receives each line that a follower writes. Raises ConfigError if it cannot listen."""
        self._settings, self._plan, self._environ, self._group, self._out = settings, plan, dict(environ), group, out
        token, starts = settings.distributed.token, plan.start in (Start.LOCAL, Start.SSH)
        own_key = secrets.token_hex(32) if starts else ""
        self.key = (own_key if token is None else token.get_secret_value()).encode()
        self.listener = listen_for_followers(plan)
        self._running = dict[int, _Process]()

    def start(self) -> GroupShare:
        """Starts the followers that are not running, unless others start them. Raises OSError."""
        host, port = self.listener.getsockname()[:2]
        starts = self._plan.start in (Start.LOCAL, Start.SSH)
        for rank in range(1, self._plan.size) if starts else ():
            running = self._running.get(rank)
            if running is not None and running.process.poll() is None:
                continue
            if running is not None:
                running.reap()
            command = self._command(rank, f"{host}:{port}")
            self._running[rank] = _Process(command, self._environ, self.key, self._out)
        return GroupShare(self._plan, self._group, self.key, self.listener.fileno(), self._settings.distributed)

    def exits(self) -> Iterator[FollowerExit]:
        """Yields the followers that have exited since they were started."""
        for rank, running in sorted(self._running.items()):
            if (code := running.process.poll()) is not None:
                yield FollowerExit(rank, self._plan.hosts[rank].ssh, code, running.reap())

    def describe_exit(self) -> str:
        return next((str(ended) for ended in self.exits()), "")

    def stop(self, grace_seconds: float = _GRACE_SECONDS) -> None:
        """Ends them: none is running on this machine on return; those elsewhere end with their connection."""
        for running in self._running.values():
            running.end()
        deadline = time.monotonic() + grace_seconds
        for running in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(max(0.0, deadline - time.monotonic()))
            running.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(_REAP_SECONDS)
            running.reap()
        self._running.clear()

    def close(self) -> None:
        self.listener.close()

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


def ssh_command(host: str, draftd: str | None, arguments: list[str], environ: Mapping[str, str]) -> list[str]:
    """Returns the command that runs `draftd` with `arguments` on `host`, in this process's working folder if `host` has
    a folder of that path. `draftd`: the command's name there in shell syntax; None: as here. All arguments are quoted,
    so settings cannot inject commands."""
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


def write_key(process: subprocess.Popen[bytes], key: bytes) -> None:
    """Sends the group's key to a follower, which reads it with `read_key`."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has ended
        process.stdin.write(key + b"\n")
        process.stdin.flush()


class _Process:
    def __init__(self, command: list[str], environ: Mapping[str, str], key: bytes, out: Callable[[str], None]) -> None:
        self._out, self._lines = out, deque[str](maxlen=20)
        self.process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must only reach this process, which lets running requests end first
        )
        write_key(self.process, key)
        assert self.process.stderr is not None
        args = (self.process.stderr,)
        self._reader = threading.Thread(target=self._read, args=args, name="draftd-rank-stderr", daemon=True)
        self._reader.start()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        self.process.terminate()

    def reap(self) -> str:
        """Returns the last lines of a process that has exited."""
        self._reader.join(1.0)
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        return last_words(list(self._lines))

    def _read(self, stream: IO[bytes]) -> None:
        with contextlib.closing(stream):
            for raw in stream:
                line = raw.decode(errors="replace").rstrip()
                self._lines.append(line)
                if not _message(line)[1]:
                    self._out(line)


def last_words(lines: list[str]) -> str:
    """Returns the last error that a process wrote, or else its last line."""
    messages = [_message(line) for line in lines if line]
    errors = [text for text, is_error in messages if is_error]
    return (errors or [text for text, _ in messages] or [""])[-1]


def _message(line: str) -> tuple[str, bool]:
    """Returns the text of a log line, and whether it is an error."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            return str(event.get("message", line)), event.get("level") == "error"
    text, errors = _ERROR.subn("", line)
    return text, bool(errors)
