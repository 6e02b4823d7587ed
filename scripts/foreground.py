"""Runs several programs (parts) in the foreground with one log, and ends all of them, whatever ends this program.

It uses two processes. The front process is the one that the terminal and make know; it only waits. The back process, in
a session of its own, starts the parts and writes their log. The back process ends the parts when its standard input
ends. The front process holds that input open, so that the parts end even if the front process is killed. If the back
process is killed, the front process ends its process group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
_BEHIND = "STACK_BEHIND"  # set in the back process's environment
_READY_SECONDS = 120.0  # the daemon may have a large model to load
_STOP_SECONDS = 45.0  # longer than the daemon takes to drain and to flush
_LOOK_SECONDS = 0.2


@dataclass
class Stop:
    """A flag that asks the program to end. It is no threading.Event: signal handlers set it, and must not wait for a
    lock."""

    asked: bool = False

    def ask(self, *_: object) -> None:
        self.asked = True


@dataclass(frozen=True)
class Part:
    """A program to start. It is ready when its output has contained `says` and `ready()` returns True."""

    name: str
    command: list[str]
    environ: Mapping[str, str]
    ready: Callable[[], bool] = lambda: True
    says: str = ""


class Running:
    """A part that was started. Its output lines are written to the log under its name."""

    def __init__(self, part: Part, stop: Stop) -> None:
        self.part, self._stop = part, stop
        self.process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            env=part.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._said = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def ready(self) -> bool:
        return (not self.part.says or self._said.is_set()) and self.part.ready()

    def end(self) -> int:
        """Terminates the process, or kills it if it does not end in time. Returns its exit code."""
        if not self.ended():
            self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            say(f"{self.part.name} did not stop in time and was killed")
            self.process.kill()
            self.process.wait()
        self._reader.join(5)
        return self.process.returncode

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not say(line.rstrip(), self.part.name):
                self._stop.ask()
            if self.part.says and self.part.says in line:
                self._said.set()


def say(line: str, name: str = "stack") -> bool:
    """Writes a line to the log. Returns False if the log's reader is gone; the parts' output must still be read
    then."""
    try:
        os.write(1, f"{name:<12} | {line}\n".encode())
    except OSError as error:
        return not isinstance(error, BrokenPipeError)
    return True


def in_foreground(run: Callable[[Stop], int]) -> int:
    """Starts this program again as the back process: a child in a session of its own, which calls `run`. This process,
    the front one, only waits and passes on a request to end. Returns the exit code of `run`. `run` must return soon
    after `asked` of its argument is set."""
    return _behind(run) if os.environ.pop(_BEHIND, "") else _in_front()


def _in_front() -> int:
    # A killed make sends no signal, so its end must be noticed. A shell that ended after `nohup … &` does not count.
    parent = os.getppid() if "MAKELEVEL" in os.environ else None
    behind = subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env={**os.environ, _BEHIND: "1"},
        stdin=subprocess.PIPE,
        bufsize=0,  # signal handlers close it
        start_new_session=True,
    )
    held = behind.stdin
    assert held is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as after nohup
            signal.signal(number, lambda *_: held.close())
    # A closed terminal signals only its session's first process, which may be a make that waits for this one.
    terminal = os.isatty(0) and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = behind.wait(_LOOK_SECONDS)
            break
        if parent not in (None, os.getppid()) or (terminal and not os.isatty(0)):
            held.close()
    if code < 0:
        _end_group(behind.pid)
    return max(code, 0) or int(code < 0)


def _end_group(group: int) -> None:
    """Terminates the remaining processes of a group, and kills those that do not end in time. Parts end in no fixed
    order: the process that read their output is gone, so that some may have ended already at an attempt to write."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while _alive(group) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        os.killpg(group, signal.SIGKILL)


def _alive(group: int) -> bool:
    """Returns True if the group has a process that is no zombie; a container's first process may never reap those."""
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError, PermissionError):
            if process.info["status"] != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == group:
                return True
    return False


def _behind(run: Callable[[Stop], int]) -> int:
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop.ask)

    def await_front() -> None:
        os.read(0, 1)
        stop.ask()

    threading.Thread(target=await_front, daemon=True).start()
    try:
        return run(stop)
    finally:  # ends processes that a part or a build has left behind
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


def output_of(command: Sequence[str], stop: Stop) -> str:
    """Runs a command of this project and returns its output. Raises SystemExit if the command fails, after the command
    itself has printed why, or if `stop` is asked."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    while True:
        try:
            found, _ = process.communicate(timeout=_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if stop.asked:
                raise SystemExit(0) from None
        else:
            if process.returncode:
                raise SystemExit(1)
            return found.strip()


def run_parts(parts: Sequence[Part], stop: Stop, ready: Callable[[], None]) -> int:
    """Starts the parts one after the other, calls `ready`, and waits until `stop` is asked or a part ends. Then ends
    all in the reverse order. Returns 0 if none failed or ended by itself, else 1."""
    running: list[Running] = []
    try:
        for part in parts:
            if stop.asked:
                break
            running.append(Running(part, stop))
            if not _until_ready(running[-1], stop):
                break
        else:
            ready()
        while not stop.asked and not any(one.ended() for one in running):
            time.sleep(_LOOK_SECONDS)
    finally:
        by_itself = [one.part.name for one in running if one.ended()]
        codes = [one.end() for one in reversed(running)]
    for name in by_itself:
        say(f"{name} ended by itself")
    return 1 if by_itself or any(codes) else 0


def _until_ready(one: Running, stop: Stop) -> bool:
    deadline = time.monotonic() + _READY_SECONDS
    while not one.ready():
        if stop.asked or one.ended():
            return False
        if time.monotonic() > deadline:
            say(f"{one.part.name} is not ready after {_READY_SECONDS:.0f} s")
            stop.ask()
            return False
        time.sleep(_LOOK_SECONDS)
    return True
