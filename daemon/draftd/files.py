"""Atomically replaced files: readers see the old or the new one, never a part."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def remove_leftovers(path: Path, older_than: float = 0.0) -> None:
    """Deletes temporary files of `path` left by processes killed in `replace_file`, if unchanged for `older_than`
    seconds."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime >= older_than:
                leftover.unlink()


def replace_file(path: Path, text: str, finish: Callable[[str], None] = lambda name: None) -> None:
    """Replaces `path` atomically; it is on disk on return. `finish` receives the new file, of mode 0600, before it is
    renamed. Raises OSError; then the old file is intact and nothing else is left."""
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
    """Renames the file `name` to `path`. The caller has synced its contents to disk. Raises OSError."""
    os.replace(name, path)
    with contextlib.suppress(OSError):  # makes the new name survive a power cut, if the file system supports that
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
