"""Measures the maximum resident memory of another process while a block runs, by sampling it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

_LOOK_SECONDS = 0.05


@dataclass(slots=True)
class Resident:
    """Maximum resident memory so far, in bytes; 0 before the first sample."""

    most: int = 0


@contextlib.contextmanager
def watched(pid: int) -> Iterator[Resident]:
    found, over, process = Resident(), threading.Event(), psutil.Process(pid)

    def look() -> None:
        found.most = max(found.most, process.memory_info().rss)

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            look()

    look()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        look()
