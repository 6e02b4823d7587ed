"""Runs a test's daemon as a process of its own, without the seconds that an interpreter takes to import it.

It is forked from a server that has imported it already, one for each of xdist's workers. On macOS, whose frameworks do
not survive a fork, it is spawned and imports as usual.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

from tests.preload import library

CLOCK = Path(__file__).parent / "faults" / "clock.c"
_STOP_SECONDS = 60.0


@dataclass
class Child:
    """A process with the interface of subprocess.Popen. `stderr` is all that it writes."""

    process: Any
    stderr: TextIO

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def poll(self) -> int | None:
        return None if self.process.exitcode is None else int(self.process.exitcode)

    def wait(self, seconds: float | None = None) -> int:
        """Returns the exit code, -N if signal N ended it. Raises TimeoutExpired."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.process.name, seconds or 0.0)
        return int(self.process.exitcode)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and that was not told yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def heed_signals() -> None:
    """Undoes ignored SIGINT and SIGHUP, which this process and its children inherit from nohup or a shell's background
    job: tests stop what they start by these signals."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may, and it did
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


_STARTING = threading.Lock()  # two daemons are often started at once, and the server takes this process's environment


def start(main: Callable[..., object], *arguments: object, environ: Mapping[str, str]) -> Child:
    """Runs `main`, a module's function, in a child process whose whole environment is `environ`."""
    heed_signals()
    context: Any = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "forkserver")
    if sys.platform != "darwin":
        with _STARTING:
            _start_server()
    ours, theirs = os.pipe()
    written = Connection(theirs, readable=False)
    process = context.Process(target=_run, args=(main, arguments, dict(environ), written), name="daemon", daemon=True)
    process.start()
    written.close()
    return Child(process, os.fdopen(ours, encoding="utf-8", errors="replace"))


def _start_server() -> None:
    """Starts the server unless it runs, with clocks that a child can step (tests.faults.clock): a library must be
    loaded before others."""
    forkserver.set_forkserver_preload(["tests.forked_imports"])
    made, before = library(CLOCK), os.environ.get("LD_PRELOAD")
    if made is not None:
        os.environ["LD_PRELOAD"] = f"{made}:{before}" if before else str(made)
    try:
        forkserver.ensure_running()
    finally:
        if made is not None:
            del os.environ["LD_PRELOAD"]
            os.environ |= {"LD_PRELOAD": before} if before else {}


def _run(main: Callable[..., object], arguments: tuple[object, ...], environ: dict[str, str], out: Connection) -> None:
    os.dup2(out.fileno(), 2)
    out.close()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 1)  # a daemon prints nothing: it fails where it does
    # Others than the server's: those believe to write what the server writes to.
    sys.stdout, sys.stderr = (open(n, "w", buffering=1, encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environ)
    sys.exit(main(*arguments))  # type: ignore[arg-type]


@dataclass
class Daemon:
    """A daemon that has announced itself. `lines` are its output so far."""

    child: Child
    address: str
    lines: list[str] = field(default_factory=list)
    _reader: threading.Thread | None = None

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def read_on(self) -> None:
        """Reads its output on a thread: a full pipe would block it."""
        self._reader = threading.Thread(
            target=lambda: self.lines.extend(line.rstrip("\n") for line in self.child.stderr), daemon=True
        )
        self._reader.start()

    def wait(self, seconds: float) -> int:
        """Returns the exit code. Then `lines` has all its output."""
        code = self.child.wait(seconds)
        assert self._reader is not None
        self._reader.join(10)
        return code


@contextlib.contextmanager
def daemon(
    main: Callable[..., object], *arguments: object, environ: Mapping[str, str], until: str = "serving"
) -> Iterator[Daemon]:
    """Runs a daemon while the block does, once it has announced that it is `until`: listening or serving."""
    child = start(main, *arguments, environ=environ)
    try:
        lines: list[str] = []
        for line in child.stderr:
            lines.append(line.rstrip("\n"))
            if found := re.match(rf"(?:\S+ )?draftd: {until}.* on (\S+:\d+)$", line):
                break
        else:
            raise AssertionError(f"it ended with {child.wait()}: {lines}")
        running = Daemon(child, found[1], lines)
        running.read_on()
        yield running
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def serving(main: Callable[..., object], *arguments: object, environ: Mapping[str, str]) -> Iterator[Daemon]:
    """Runs a daemon, and stops it if the block ends well: it must then exit with 0."""
    with daemon(main, *arguments, environ=environ) as running:
        yield running
        running.child.terminate()
        assert running.wait(_STOP_SECONDS) == 0, running.lines


def program(text: str) -> None:
    """Runs a program's text, which ends in `run_daemon`; for use as `main`."""
    exec(compile(text, "<daemon>", "exec"), {"__name__": "__main__"})


def command(*arguments: str) -> None:
    """Runs `draftd` with these arguments; for use as `main`."""
    from draftd.cli.main import main

    sys.argv = ["draftd", *arguments]
    main()
