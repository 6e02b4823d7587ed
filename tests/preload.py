"""Libraries that are loaded into a daemon of a test before all others, on Linux, where there is a C compiler."""

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
    """What LD_PRELOAD takes: `source` compiled, kept until it changes. None where it cannot be made."""
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
