"""Runs a follower's process, and another one whenever the group was lost, until rank 0 ends the group normally or
`stop` is called."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

from draftd.ranks.environment import JOIN_SECONDS
from draftd.ranks.follower import JOINS, LOST, REFUSED
from draftd.ranks.followers import write_key
from draftd.ranks.watchdog import Vitals, Watchdog

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
_STABLE_SECONDS = 60.0  # after this long, a loss does not count as a repetition
_START_SECONDS = 60.0  # to the first sign of life
_GRACE_SECONDS = 2.0
_LOOK_SECONDS = 0.2


class Supervisor:
    """Runs follower processes, on one thread."""

    def __init__(
        self,
        command: Sequence[str],
        silent_seconds: float,
        announce: Callable[[str], None],
        out: Callable[[str], None] | None = None,
        *,
        key: bytes = b"",
    ) -> None:
        """`command`: the follower's, which reads `key` from its standard input and exits when that closes. It is killed
        after `silent_seconds` without a sign of life. `out` receives each line of its stderr; by default these go to
        this process's stderr."""
        self._command, self._bound, self._announce = list(command), silent_seconds, announce
        self._stopped, self._out, self._key = threading.Event(), out, key

    def stop(self) -> None:
        """Stops; may be called on any thread or in a signal handler."""
        self._stopped.set()

    def run(self) -> int:
        """Returns the exit code, 0 after a normal end or `stop`."""
        pause, joined = _FIRST_PAUSE_SECONDS, False
        while True:
            began = time.monotonic()
            code = self._run_process()
            if self._stopped.is_set():
                return 0
            if code == REFUSED and not joined:
                return 1
            if code >= 0 and code not in (LOST, REFUSED):
                return code
            joined = True  # later refusals may be temporary: rank 0 tries again, too
            if time.monotonic() - began > _STABLE_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            how = f" (its process was ended by signal {-code})" if code < 0 else ""
            self._announce(f"the group was lost{how}: it is joined again in {pause:g} s")
            if self._stopped.wait(pause):
                return 0
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _run_process(self) -> int:
        """Runs one process to its end. Returns its exit code."""
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self._out is None else subprocess.PIPE,
            start_new_session=True,
        )
        write_key(process, self._key)
        if process.stderr is not None:
            threading.Thread(target=self._read, args=[process.stderr], name="draftd-rank-stderr", daemon=True).start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            self._watch(process, process.stdout.fileno())
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_SECONDS)
                process.kill()
            process.wait()
            process.stdout.close()
        return process.returncode

    def _read(self, stream: IO[bytes]) -> None:
        assert self._out is not None
        with contextlib.closing(stream):
            for line in stream:
                self._out(line.decode(errors="replace").rstrip())

    def _watch(self, process: subprocess.Popen[bytes], out: int) -> None:
        """Returns when the process has exited, was silent for too long, or `stop` was called."""
        vitals, watchdog = Vitals("its process", heard=time.monotonic()), Watchdog(_START_SECONDS)
        while not self._stopped.is_set():
            if select.select([out], [], [], _LOOK_SECONDS)[0]:
                if not (signs := os.read(out, 4096)):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_GRACE_SECONDS)
                    return
                vitals.heard = time.monotonic()
                watchdog = Watchdog(self._bound + JOIN_SECONDS * signs.endswith(JOINS))
            if (lost := watchdog.find_loss([vitals], time.monotonic())) is not None:
                self._announce(f"{lost[1]}, and is killed")
                process.kill()
                return
