"""The environment of ranks that share this machine. Imports no MLX."""

from __future__ import annotations

import os
from pathlib import Path

from tests.preload import library

_SOURCE = Path(__file__).with_name("ring_waits.c")


def environ() -> dict[str, str]:
    """This process's, with one thread for products, and a ring that waits where a compiler can make it wait: four ranks
    on two cores are about fifty times as fast with it."""
    preload = {} if (made := library(_SOURCE)) is None else {"LD_PRELOAD": str(made)}
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", **preload}
