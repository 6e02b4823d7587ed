"""Files that are replaced in one step: who reads one sees the old or the new, and never a part."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def remove_leftovers(path: Path, older_than: float = 0.0) -> None:
    """Removes what processes that were killed in `replace_file` have left of `path`, where it has not changed for so
    many seconds."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime >= older_than:
                leftover.unlink()


def replace_file(path: Path, text: str, finish: Callable[[str], None] = lambda name: None) -> None:
    """Replaces `path` in one step; it is on the disk when this returns. `finish` sees the new file, of mode 0600,
    before it takes the name. Raises OSError; then the one before is whole, and nothing else is left."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        finish(name)
        take_name(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def take_name(name: str, path: Path) -> None:
    """Gives the file `name`, which is on the disk, the name `path`. Raises OSError."""
    os.replace(name, path)
    with contextlib.suppress(OSError):  # so that the new name survives a power cut, where the file system can
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
