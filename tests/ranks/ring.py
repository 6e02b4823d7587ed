"""Environment of ranks that share this machine. Imports no MLX."""

from __future__ import annotations

import os
from pathlib import Path

from tests.preload import library

_SOURCE = Path(__file__).with_name("ring_waits.c")


def environ() -> dict[str, str]:
    """Returns this process's environment with one thread for products and, if a compiler is available, a ring with
    blocking sockets: with it four ranks on two cores are about fifty times as fast."""
    preload = {} if (made := library(_SOURCE)) is None else {"LD_PRELOAD": str(made)}
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", **preload}
