"""Starts the ranks of a group as processes on this machine, and ends them for certain: a rank whose peer is gone may
wait for ever. Imports no MLX."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.ranks import ring

Result = dict[str, Any]  # tests.ranks.scene.Found, as JSON has it


def run(
    names: Sequence[str],
    ranks: int,
    *,
    seconds: float,
    told: Callable[[Result], None] = lambda found: None,
    options: Sequence[str] = (),
) -> list[Result]:
    """Examines one model after the other in one group, each within `seconds`. If a model ends its group, the next one
    gets a new group. `options` are those of tests.ranks.process."""
    found = list[Result]()
    while len(found) < len(names):
        left = names[len(found) :]
        with started(left, ranks, options) as lines:
            for name in left:
                line = lines(seconds)
                if line is None:
                    found.append({"name": name, "failed": f"nothing came of it within {seconds:g} s, or it ended"})
                else:
                    found.append(json.loads(line))
                told(found[-1])
                if line is None or found[-1].get("failed"):
                    break
    return found


@contextmanager
def started(
    names: Sequence[str], ranks: int, options: Sequence[str] = (), module: str = "tests.ranks.process"
) -> Iterator[Callable[[float], str | None]]:
    """Yields a function that waits so many seconds for rank 0's next line; it returns None if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        hosts, environ = Path(folder, "hosts.json"), ring.environ()
        *ports, port = _free_ports(ranks + 1)
        hosts.write_text(json.dumps([[f"127.0.0.1:{one}"] for one in ports]), encoding="utf-8")
        command = [sys.executable, "-m", module, "--port", str(port), "--models", ",".join(names), *options]
        processes = [
            subprocess.Popen(
                command,
                env={**environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            for rank in range(ranks)
        ]
        try:
            assert processes[0].stdout is not None
            lines = _lines(processes[0].stdout)

            def following(seconds: float) -> str | None:
                try:
                    return lines.get(timeout=seconds)
                except queue.Empty:
                    return None

            yield following
        finally:
            for one in processes:
                if one.poll() is None:
                    os.killpg(one.pid, signal.SIGKILL)
            for one in processes:
                one.wait(10)


def _lines(stream: IO[str]) -> queue.SimpleQueue[str | None]:
    """Returns a queue of the stream's lines, with None at its end."""
    found: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            if line.startswith("{"):
                found.put(line)
        found.put(None)

    threading.Thread(target=read, name="rank-0-lines", daemon=True).start()
    return found


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
