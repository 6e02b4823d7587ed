"""Runs a command on a pseudo-terminal: what it draws, what is typed to it, and how it leaves the terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.wait_until import until

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"

# Stands in for a shell: owns the terminal, runs the command in its foreground, compares the modes when it has ended.
_SHELL = """
import fcntl, json, signal, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, lambda number, frame: None)
before = termios.tcgetattr(0)
child = subprocess.Popen(sys.argv[2:])
def report(**what):
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps(what) + "\\n")
report(pid=child.pid)
code = child.wait()
report(code=code, restored=termios.tcgetattr(0) == before)
"""


@dataclass(frozen=True)
class Ended:
    """The command's end. `restored`: the terminal's modes are the same as before."""

    code: int
    restored: bool


class Terminal:
    """The command's terminal, seen from the other side."""

    def __init__(self, master: int, shell: subprocess.Popen[bytes], report: Path) -> None:
        self._master, self._shell, self._report = master, shell, report
        self._said = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def said(self) -> str:
        """All output, with escape sequences."""
        return bytes(self._said).decode(errors="replace")

    @property
    def words(self) -> str:
        """All output, without escape sequences."""
        return _ESCAPES.sub("", self.said)

    def shows(self, *words: str, seconds: float = 20.0) -> None:
        """Waits until all the words were written."""
        until(lambda: all(word in self.words for word in words), seconds, f"{words} on the screen")

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def signal(self, number: int) -> None:
        until(lambda: bool(self._reports()))
        os.kill(int(self._reports()[0]["pid"]), number)

    def end(self, seconds: float = 20.0) -> Ended:
        """Waits for the command's end."""
        self._shell.wait(seconds)
        self._reader.join(5)
        last = self._reports()[-1]
        return Ended(int(last["code"]), bool(last["restored"]))

    def _reports(self) -> list[Mapping[str, object]]:
        return [json.loads(line) for line in self._report.read_text().splitlines()] if self._report.exists() else []

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while said := os.read(self._master, 65536):
                self._said += said


@contextlib.contextmanager
def terminal(
    command: Sequence[str], tmp_path: Path, environ: Mapping[str, str], *, columns: int = 100, lines: int = 30
) -> Iterator[Terminal]:
    """Runs `command` on a terminal of that size until the block ends."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    report = tmp_path / "shell.jsonl"
    shell = subprocess.Popen(
        [sys.executable, "-c", _SHELL, str(report), *command],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        # Where these are set they stand for the terminal's size, and xdist sets them: here the terminal is to be asked.
        env={k: v for k, v in environ.items() if k not in ("LINES", "COLUMNS")} | {"TERM": "xterm-256color"},
    )
    os.close(slave)
    try:
        yield Terminal(master, shell, report)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        os.close(master)
