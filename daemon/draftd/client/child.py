"""Runs a daemon as a child process: starts it, reads its output until it serves, and stops it."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from draftd.errors import DraftdError

_LINE = re.compile(r"^(?:\S+ )?draftd: (?:error: )?")  # the time and the program's name, before what it says
_SERVING = re.compile(r"^serving (?P<model>.+) on (?P<address>\S+:\d+)$")
_STOP_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Serving:
    """The model and the address that a child daemon announced when it began to serve."""

    model: str
    address: str


@contextlib.contextmanager
def serving(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    timeout: float,
    on_line: Callable[[str], None] = lambda line: None,
) -> Iterator[Serving]:
    """Runs the daemon `command` while the block runs.

    Raises DraftdError if the daemon ends, or prints nothing for `timeout` seconds, before it serves."""
    process = subprocess.Popen(
        command, env=dict(environ), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
    )
    assert process.stderr is not None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    # A thread empties the pipe while the child lives: a full pipe would block the child.
    reader = threading.Thread(target=_read, args=(process.stderr, lines), name="draftd-child", daemon=True)
    reader.start()
    try:
        yield _wait(process, lines, timeout, on_line)
    finally:
        _stop(process)
        reader.join(timeout=5)


def serve_command(*arguments: str) -> list[str]:
    """`draftd serve` in this interpreter."""
    return [sys.executable, "-m", "draftd", "serve", *arguments]


def _read(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line.rstrip("\n"))
    lines.put(None)


def _wait(
    process: subprocess.Popen[str],
    lines: queue.SimpleQueue[str | None],
    timeout: float,
    on_line: Callable[[str], None],
) -> Serving:
    last = "no output"  # the last line of a traceback names the error
    while True:
        try:
            line = lines.get(timeout=timeout)
        except queue.Empty:
            raise DraftdError(f"the daemon said nothing for {timeout:.0f} s: {last}") from None
        if line is None:
            raise DraftdError(f"the daemon ended with exit code {process.wait()}: {last}")
        last = _LINE.sub("", line)
        if match := _SERVING.match(last):
            return Serving(match["model"], match["address"])
        on_line(last)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def clean_environ(flag_file: str) -> dict[str, str]:
    """This process's environment without the variables that a demo's child must not inherit."""
    sections = ("SERVER", "FLAG", "LOG", "FALLBACK", "WEBHOOK", "ANNOTATIONS", "DISTRIBUTED")
    foreign = (*(f"DRAFTD_{name}__" for name in sections), "DRAFTD_CONFIG", "MLX_RANK", "MLX_HOSTFILE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {"DRAFTD_FLAG__FILE": flag_file}
