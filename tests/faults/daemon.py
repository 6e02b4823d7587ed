"""The daemon as the fault suite has it: started, stopped and killed again and again, its state folder outlives it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

import psutil

from tests import forked_daemon
from tests.faults import child
from tests.faults.clock import Clock
from tests.faults.credentials import Access, Credentials
from tests.webhook import SECRET, TOKEN

HANG_SECONDS = float(os.environ.get("FAULTS_HANG_SECONDS", "60"))  # what takes longer hangs; no other bound is there
_LOOK_SECONDS = 0.01
_DISK_BYTES = 8 * 1024 * 1024
_ALERTS = re.compile(r"draftd: alerts are taken on port (\d+) of ")
_SERVING = re.compile(r"draftd: serving ")


class Gone(Exception):
    """The daemon gave no answer to the test."""


class Disk:
    """The state folder's own file system: a small tmpfs where one may be mounted. `small` says whether it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES},mode=700", "draftd-faults", str(path)]
        self.small = False
        with contextlib.suppress(OSError):
            self.small = subprocess.run(mount, capture_output=True).returncode == 0
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """To the last byte."""
        piece = b"\0" * 65536
        with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(piece)

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        if self.small:
            subprocess.run(["umount", "-l", str(self.path)], capture_output=True)


class LogFile:
    """The lines that are added to a log, until it is closed, also where the file is renamed and another one begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open(errors="replace") if path.exists() else None
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, lines: list[str]) -> None:
        """Adds them to `lines`, on a thread."""
        self._thread = threading.Thread(target=self._run, args=(lines,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        if self._file is not None:
            self._file.close()

    def _run(self, lines: list[str]) -> None:
        part, last = "", False
        while not last:
            last = self._closing.wait(_LOOK_SECONDS)
            following = self._following()  # first: where there is one, the former one is complete
            part += "" if self._file is None else self._file.read()
            *whole, part = part.split("\n")
            lines.extend(whole)
            if following is not None:
                if self._file is not None:
                    self._file.close()
                self._file, last = following, False

    def _following(self) -> TextIO | None:
        """The file that has the name now, unless it is read already."""
        try:
            found = self.path.open(errors="replace")
        except OSError:
            return None
        if self._file is not None and os.path.sameopenfile(found.fileno(), self._file.fileno()):
            found.close()
            return None
        return found


class Daemon:
    """One at a time; each process of it is a life, counted from 1. The main thread starts and ends them."""

    def __init__(self, folder: Path, environ: Mapping[str, str], broken: str = "") -> None:
        self.disk = Disk(folder / "state")
        self.conditions: dict[str, Any] = {}  # what the next life begins with, too
        self.life = 0
        self.address = "127.0.0.1:1"
        self.clock = Clock(folder / "clock")
        self.credentials = Credentials(folder / "credentials")
        self.token = self.credentials.tokens[0]  # the one that clients send
        self.webhook_port = 0
        self.lines: list[str] = []
        self._log = LogFile(folder / "draftd.log")
        self._broken = broken
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DRAFTD_", "OTEL_"))},
            "DRAFTD_FALLBACK__STATE_DIR": str(self.disk.path),
            "DRAFTD_FLAG__FILE": str(self.disk.path / "flags.json"),
            **self.credentials.environ,
            "DRAFTD_LOG__FILE": str(self._log.path),
            "DRAFTD_LOG__FILE_BYTES": "20000",
            "DRAFTD_WEBHOOK__PORT": "0",
            "DRAFTD_WEBHOOK__TOKEN": TOKEN,
            "DRAFTD_WEBHOOK__SECRET": SECRET,
            **_HURRIED,
            **environ,
        }
        self._running = ExitStack()
        self._child: forked_daemon.Child | None = None
        self._control: Connection | None = None
        self._numbers = itertools.count(1)

    def point(self, environ: Mapping[str, str]) -> None:
        """More of its environment, before it is started."""
        self._environ |= environ

    def start(self) -> None:
        """Returns when it listens; raises AssertionError, with what it said, where it ended instead."""
        assert self._child is None
        self._log = LogFile(self._log.path)
        ours, theirs = Pipe()
        files = str(self.clock.file), str(self.credentials.settings)
        arguments = (theirs, self._environ, dict(self.conditions), self._broken, *files)
        context = forked_daemon.daemon(child.main, *arguments, environ=self._environ, until="listening")
        try:
            running = self._running.enter_context(context)
        finally:
            theirs.close()
        alerts = [found for line in running.lines if (found := _ALERTS.match(line))]
        self._child, self._control, self.lines = running.child, ours, running.lines
        self._log.follow(self.lines)
        self.webhook_port, self.address = int(alerts[0][1]), running.address
        self.life += 1

    @property
    def access(self) -> Access:
        """What its clients need now. They trust both authorities: which one it has is what faults look at."""
        return Access(self.address, self.token, self.credentials.both)

    def move_log(self) -> None:
        """As `logrotate` does, which sends SIGHUP next. Until then the daemon writes where it did."""
        with contextlib.suppress(FileNotFoundError):
            self._log.path.rename(self._log.path.with_suffix(".moved"))

    @property
    def log(self) -> str:
        """What the log file has now."""
        return self._log.path.read_text(errors="replace") if self._log.path.exists() else ""

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def fate(self) -> str:
        """Its exit code, -N where signal N ended it."""
        return f"exit code {None if self._child is None else self._child.poll()}"

    @property
    def loaded(self) -> bool:
        """It has said that it serves."""
        return any(_SERVING.match(line) for line in self.lines)

    @property
    def process(self) -> psutil.Process:
        assert self._child is not None
        return psutil.Process(self._child.pid)

    def signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)

    def kill(self) -> None:
        """With SIGKILL; nothing of it is left when this returns."""
        self._running.close()
        self._log.close()
        self._child = None
        if self._control is not None:
            self._control.close()
        self._control = None

    def ended(self) -> int:
        """Waits for its end, and returns the exit code. Raises Gone where it does not end."""
        assert self._child is not None
        try:
            return self._child.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            raise Gone(f"it did not end within {HANG_SECONDS:g} s") from None
        finally:
            self.kill()

    def condition(self, name: str, value: Any) -> None:
        """In force from now on, in this life and the next ones; None ends it."""
        if value is None:
            self.conditions.pop(name, None)
        else:
            self.conditions[name] = value

    def tell(self, name: str, *arguments: Any) -> None:
        """Has the seam of that name do it. A daemon that is gone does not."""
        with contextlib.suppress(OSError):
            if self._control is not None:
                self._control.send((0, name, arguments))

    def ask(self, name: str, *arguments: Any) -> Any:
        """The same, and what it answers. Raises Gone."""
        number, deadline = next(self._numbers), time.monotonic() + HANG_SECONDS
        try:
            if self._control is None:
                raise Gone("there is no daemon")
            self._control.send((number, name, arguments))
            while self._control.poll(max(0.0, deadline - time.monotonic())):
                answered, found = self._control.recv()
                if answered == number:
                    return found
        except (EOFError, OSError) as error:
            raise Gone(f"{name}: {error!r}") from None
        raise Gone(f"{name}: no answer within {HANG_SECONDS:g} s")

    def close(self) -> None:
        self.kill()
        self.disk.close()


# What takes minutes in production takes seconds here; nothing is judged that depends on how fast the machine is.
_HURRIED = {
    "DRAFTD_SERVER__DRAIN_SECONDS": "2",
    "DRAFTD_SERVER__WRITE_STALL_SECONDS": "2",
    "DRAFTD_ENGINE__QUEUE_CAPACITY": "32",
    "DRAFTD_ENGINE__PREFIX_CACHE_BYTES": str(8 * 2**20),
    "DRAFTD_HARDWARE__PERIOD_SECONDS": "0.2",
    "DRAFTD_FALLBACK__BLOCKS": "2",
    "DRAFTD_FALLBACK__COOLDOWN_SECONDS": "0.3",
    "DRAFTD_FALLBACK__LONGEST_WAIT_SECONDS": "1",
    "DRAFTD_FALLBACK__WINDOW_SECONDS": "2",
    "DRAFTD_FALLBACK__LEAST_REQUESTS": "1000000",
    "DRAFTD_FALLBACK__CRITICAL_SECONDS": "0.3",
    "DRAFTD_FALLBACK__PROBE_SHARE": "0.3",
    "DRAFTD_FALLBACK__CANARY_PERIOD_SECONDS": "0",
    "DRAFTD_WEBHOOK__MAX_PER_SECOND": "50",
    "DRAFTD_WEBHOOK__POLL_SECONDS": "0.5",
    "DRAFTD_TELEMETRY__SHUTDOWN_SECONDS": "1",
    "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
}
