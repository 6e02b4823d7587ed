"""The fault suite's daemon: started, stopped and killed repeatedly, with a state folder that survives."""

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
    """The daemon did not answer the test."""


class Disk:
    """File system of the state folder: a small tmpfs if one can be mounted, which `small` says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES},mode=700", "draftd-faults", str(path)]
        self.small = False
        with contextlib.suppress(OSError):
            self.small = subprocess.run(mount, capture_output=True).returncode == 0
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Fills the disk to its last byte."""
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
    """Follows the lines added to a log until it is closed, also when the file is renamed and a new one begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open(errors="replace") if path.exists() else None
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, lines: list[str]) -> None:
        """Adds new lines to `lines`, on a thread."""
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
        """Opens the file that has the name now, unless it is being read already."""
        try:
            found = self.path.open(errors="replace")
        except OSError:
            return None
        if self._file is not None and os.path.sameopenfile(found.fileno(), self._file.fileno()):
            found.close()
            return None
        return found


class Daemon:
    """A daemon of which one process runs at a time. Each process is a life, counted from 1. The main thread starts and
    ends them."""

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
        """Adds environment variables, before it is started."""
        self._environ |= environ

    def start(self) -> None:
        """Returns when the daemon listens. Raises AssertionError with its output if it ends instead."""
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
        """Returns what its clients need now. They trust both authorities: faults check which one is used."""
        return Access(self.address, self.token, self.credentials.both)

    def move_log(self) -> None:
        """Renames the log, as `logrotate` does before it sends SIGHUP. Until then the daemon writes to the renamed
        file."""
        with contextlib.suppress(FileNotFoundError):
            self._log.path.rename(self._log.path.with_suffix(".moved"))

    @property
    def log(self) -> str:
        """Returns the text of the log file."""
        return self._log.path.read_text(errors="replace") if self._log.path.exists() else ""

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def fate(self) -> str:
        """Returns its exit code as text, -N if signal N ended it."""
        return f"exit code {None if self._child is None else self._child.poll()}"

    @property
    def loaded(self) -> bool:
        """Returns True if it has announced that it serves."""
        return any(_SERVING.match(line) for line in self.lines)

    @property
    def process(self) -> psutil.Process:
        assert self._child is not None
        return psutil.Process(self._child.pid)

    def signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)

    def kill(self) -> None:
        """Kills it with SIGKILL, and returns when all its processes are gone."""
        self._running.close()
        self._log.close()
        self._child = None
        if self._control is not None:
            self._control.close()
        self._control = None

    def ended(self) -> int:
        """Waits for its end and returns the exit code. Raises Gone if it does not end."""
        assert self._child is not None
        try:
            return self._child.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            raise Gone(f"it did not end within {HANG_SECONDS:g} s") from None
        finally:
            self.kill()

    def condition(self, name: str, value: Any) -> None:
        """Sets a condition for this life and the next ones; None ends it."""
        if value is None:
            self.conditions.pop(name, None)
        else:
            self.conditions[name] = value

    def tell(self, name: str, *arguments: Any) -> None:
        """Calls the seam of that name. Does nothing if the daemon is gone."""
        with contextlib.suppress(OSError):
            if self._control is not None:
                self._control.send((0, name, arguments))

    def ask(self, name: str, *arguments: Any) -> Any:
        """Calls the seam of that name and returns its answer. Raises Gone."""
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
