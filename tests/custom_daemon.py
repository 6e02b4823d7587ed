"""Runs a daemon that a test composes itself, as a process. The test gives the text of a program that ends in
`run_daemon`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests import forked_daemon


@contextlib.contextmanager
def composed(program: str, tmp_path: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Runs `program` and yields its host:port once it serves. Stops it when the block ends; it must then exit with
    0."""
    whole = {**os.environ, "XDG_STATE_HOME": str(tmp_path), **environ}
    with forked_daemon.serving(forked_daemon.program, program, environ=whole) as running:
        yield running.address
