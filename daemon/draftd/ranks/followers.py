"""Follower processes that rank 0's daemon starts: on this machine, or on others over SSH as `mlx.launch` does.

Each ends with its standard input, which this process holds: none stays behind where this one is killed, either. What
it writes goes on to this process's log, but for its last words, which say why it ended.
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
    """`code`: -N if signal N ended it. `last`: its last words."""

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
    """The arguments of `draftd` for a follower with the settings that concern it."""
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
    arguments = ["follow", "--address", address, "--rank", str(rank), "--ranks", str(ranks)]
    for name, value in named.items():
        if value is not None:
            arguments += ["--set", f"{name}={value}"]
    arguments += ["--patience", f"{patience:g}"] if patience is not None else []
    return arguments + ["--once"] * once + ["--with-input"] * with_input


class Followers:
    """The followers of one plan, as `OtherRanks` of an engine's process, and the socket that they connect to: it is
    kept from one start of the group to the next, so that they may wait there. One thread, but for `exits`."""

    def __init__(
        self,
        settings: Settings,
        plan: GroupPlan,
        environ: Mapping[str, str],
        group: str,
        *,
        out: Callable[[str], None],
    ) -> None:
        """`group`: its id. `out` takes each line that a follower writes. Raises ConfigError if it cannot listen."""
        self._settings, self._plan, self._environ, self._group, self._out = settings, plan, dict(environ), group, out
        token, starts = settings.distributed.token, plan.start in (Start.LOCAL, Start.SSH)
        own_key = secrets.token_hex(32) if starts else ""
        self.key = (own_key if token is None else token.get_secret_value()).encode()
        self.listener = listen_for_followers(plan)
        self._running = dict[int, _Process]()

    def start(self) -> GroupShare:
        """Starts those that do not run; none if others start them. Raises OSError."""
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
        """The followers that have ended since they were started."""
        for rank, running in sorted(self._running.items()):
            if (code := running.process.poll()) is not None:
                yield FollowerExit(rank, self._plan.hosts[rank].ssh, code, running.reap())

    def describe_exit(self) -> str:
        return next((str(ended) for ended in self.exits()), "")

    def stop(self, grace_seconds: float = _GRACE_SECONDS) -> None:
        """Ends them: none is left on this machine when this returns; others' end with the connection to them."""
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


def write_key(process: subprocess.Popen[bytes], key: bytes) -> None:
    """Hands the group's key to a follower, which reads it with `read_key`."""
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
            start_new_session=True,  # Ctrl-C is for this process, which lets running requests end first
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
        """The last words of one that has ended."""
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
    """The last error that a process wrote, or else its last line."""
    messages = [_message(line) for line in lines if line]
    errors = [text for text, is_error in messages if is_error]
    return (errors or [text for text, _ in messages] or [""])[-1]


def _message(line: str) -> tuple[str, bool]:
    """The text of a line of the log, and whether it is an error."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            return str(event.get("message", line)), event.get("level") == "error"
    text, errors = _ERROR.subn("", line)
    return text, bool(errors)
