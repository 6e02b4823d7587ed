"""What MLX says of its own memory."""

from __future__ import annotations

import threading

from draftd.engine.blas import load_blas
from draftd.engine.memory import MlxMemory, mlx_memory


def test_an_array_is_counted_whichever_thread_asks() -> None:
    load_blas()
    import mlx.core as mx

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
