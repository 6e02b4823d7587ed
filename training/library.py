"""The standard library's sources: training text that every machine has."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

# Tests, interactive tools and data tables teach a small model nothing useful.
_LEFT_OUT = (
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "encodings",
    "pydoc_data",
    "lib2to3",
    "idlelib",
    "turtledemo",
    "tkinter",
    "ensurepip",
    "msilib",
)
_MAX_FILE = 120_000


def library_files(held_out: bool) -> list[Path]:
    """Returns the standard library's modules: the held-out ones, about one in thirty by a hash of their path, or the
    others."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if any(part in _LEFT_OUT or part.startswith("config-") for part in parts) or path.stat().st_size > _MAX_FILE:
            continue
        digest = hashlib.blake2b("/".join(parts).encode(), digest_size=4).digest()
        if (int.from_bytes(digest, "big") % 30 == 0) == held_out:
            files.append(path)
    return files


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").replace("\t", "    ")
