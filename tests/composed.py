"""A daemon of a test's own composition, as a process: a program's text that ends in `run_daemon`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path


@contextlib.contextmanager
def composed(program: str, tmp_path: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Runs `program` and gives its host:port once it serves. Told to stop when the block ends, it must exit 0."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), **environ},
        text=True,
    )
    try:
        assert process.stderr is not None
        address = next(f[1] for line in process.stderr if (f := re.search(r"serving \S+ on (\S+:\d+)", line)))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
