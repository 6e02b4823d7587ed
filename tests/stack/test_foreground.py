"""Whatever ends `make stack` ends its parts in order: here with small programs as parts, below a real make."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.wait_until import until

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
# Each part appends its name when it is told to end; the third one leaves a process of its own behind.
PROGRAM = """
import sys
from scripts.foreground import Part, in_foreground, run_parts, say

part = 'trap "echo $0 >>ended; exit 0" TERM; echo $$ >$0.pid; echo ready; while :; do sleep 0.05; done'
texts = {"first": part, "second": part, "third": "sleep 600 & " + part, "fourth": "exit 3"}

def run(stop):
    names = sys.argv[2:]
    shells = [["sh", "-c", f"cd {sys.argv[1]}; {texts[name]}", name] for name in names]
    parts = [Part(name, shell, {"PATH": "/usr/bin:/bin"}, says="ready") for name, shell in zip(names, shells)]
    return run_parts(parts, stop, lambda: say("all are ready"))

sys.exit(in_foreground(run))
"""
# As a shell starts it: its input is its controlling terminal, and no signal is ignored.
ON_TERMINAL = """
import fcntl, os, signal, sys, termios

os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execvp("make", sys.argv[1:])
"""


@dataclass
class Run:
    """One run below make, and the processes that it consists of."""

    folder: Path
    make: subprocess.Popen[bytes]
    keyboard: int
    processes: list[psutil.Process] = field(default_factory=list)

    def started(self) -> bool:
        """All of it; then `processes` are make, the front, the one behind, and the parts with theirs."""
        if not (self.folder / "third.pid").exists():
            return False
        make = psutil.Process(self.make.pid)
        self.processes = [make, *make.children(recursive=True)]
        return True

    @property
    def front(self) -> psutil.Process:
        return self.processes[1]

    @property
    def behind(self) -> psutil.Process:
        return self.processes[2]

    def part(self, name: str) -> psutil.Process:
        return psutil.Process(int((self.folder / f"{name}.pid").read_text()))

    @property
    def ended(self) -> list[str]:
        """The parts that were told to end, in that order."""
        file = self.folder / "ended"
        return file.read_text().split() if file.exists() else []

    @property
    def left(self) -> list[str]:
        return [" ".join(one.cmdline()) for one in self.processes if alive(one)]


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def start(folder: Path, *names: str) -> Run:
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    (folder / "Makefile").write_text(f"run:\n\t@exec {sys.executable} program.py {folder} {' '.join(names)}\n")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    keyboard, screen = pty.openpty()
    command = [sys.executable, "-c", ON_TERMINAL, "make", "-s", "run"]
    make = subprocess.Popen(command, cwd=folder, env=environ, stdin=screen, stdout=screen, stderr=screen)
    os.close(screen)
    return Run(folder, make, keyboard)


@contextlib.contextmanager
def closed(runs: list[Run]) -> Iterator[None]:
    try:
        yield
    finally:
        for run in runs:
            for process in run.processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            run.make.kill()
            run.make.wait()
            with contextlib.suppress(OSError):
                os.close(run.keyboard)


CAUSES: dict[str, Callable[[Run], object]] = {
    "Ctrl-C, twice": lambda run: os.write(run.keyboard, b"\x03\x03"),
    "the terminal is closed": lambda run: os.close(run.keyboard),
    "SIGTERM": lambda run: run.front.terminate(),
    "SIGHUP": lambda run: run.front.send_signal(signal.SIGHUP),
    "SIGKILL": lambda run: run.front.kill(),
    "SIGTERM to make": lambda run: run.make.terminate(),
    "SIGKILL to make": lambda run: run.make.kill(),
}


def test_stack_stops_parts_in_reverse_order_after_signal_dead_part_or_failed_start(tmp_path: Path) -> None:
    names = ("first", "second", "third")
    runs = {cause: start(tmp_path / f"{number}", *names) for number, cause in enumerate(CAUSES)}
    runs["a part dies"] = start(tmp_path / "part", *names)
    runs["SIGKILL to the process behind"] = start(tmp_path / "behind", *names)
    runs["a part does not start"] = start(tmp_path / "fails", "first", "second", "third", "fourth")
    with closed(list(runs.values())):
        for cause, run in runs.items():
            if cause != "a part does not start":
                until(run.started, 60, f"{cause}: all parts run")
        for cause, act in CAUSES.items():
            act(runs[cause])
        runs["a part dies"].part("second").kill()
        runs["SIGKILL to the process behind"].behind.kill()
        for cause, run in runs.items():
            until(lambda run=run: run.make.poll() is not None and not run.left, 60, f"{cause}: {run.left}")  # type: ignore[misc]
        found = {cause: run.ended for cause, run in runs.items()}
    found.pop("SIGKILL to the process behind")  # what wrote the log is gone: they may end by writing to it
    assert found.pop("a part dies") == ["third", "first"]
    assert found == {cause: ["third", "second", "first"] for cause in found}
