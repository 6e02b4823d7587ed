"""What MLX says of its own memory."""

from __future__ import annotations

import gc
import sys
import threading

import psutil
import pytest

from draftd.engine.memory import MlxMemory, give_back, mlx_memory
from draftd.models.blas import load_blas


def test_mlx_memory_counts_arrays_from_any_thread() -> None:
    load_blas()
    import mlx.core as mx

    gc.collect()  # or what an earlier test left would be freed meanwhile
    before = mlx_memory()
    array = mx.zeros((1024, 1024), dtype=mx.float32)
    mx.eval(array)
    answers: list[MlxMemory] = []
    asking = threading.Thread(target=lambda: answers.append(mlx_memory()))
    asking.start()
    asking.join()
    (found,) = answers
    assert found.active >= before.active + 4 * 1024 * 1024
    assert found.peak >= found.active
    assert found.cache >= 0
    assert found.working_set is None or found.working_set > 0
    del array


@pytest.mark.skipif(sys.platform != "linux", reason="what the C library keeps is asked for on Linux only")
def test_freed_small_allocations_are_returned_to_operating_system() -> None:
    load_blas()
    pieces = [bytearray(100_000) for _ in range(1000)]  # too small for a mapping of its own
    last = pieces.pop()  # what lies before it is not given back by itself
    process = psutil.Process()
    pieces.clear()
    kept = process.memory_info().rss
    give_back()
    assert kept - process.memory_info().rss > 50 << 20
    assert len(last) == 100_000
