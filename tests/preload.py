"""Compiles libraries that are loaded into a test's daemon before all others, on Linux with a C compiler."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_BUILD = Path(__file__).parents[1] / "build"


@functools.cache
def library(source: Path) -> Path | None:
    """Returns the path for LD_PRELOAD: `source` compiled, and kept until it changes. None if it cannot be compiled."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    made = _BUILD / f"{source.stem}.so"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        _BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_BUILD) as folder:
            fresh = Path(folder) / made.name
            command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(fresh), str(source), "-ldl", "-lm"]
            subprocess.run(command, check=True, timeout=60)
            fresh.replace(made)
    return made
