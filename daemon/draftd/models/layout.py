"""The layout of a matrix in memory for products on a CPU: by rows, as in MLX, or by columns if that is faster here.

BLAS copies a matrix into blocks for each product. For few tokens that takes as long as the product, and which layout is
copied faster depends on the shape and on BLAS's kernels for this processor. So it is measured.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Mapping
from typing import Any

_WIDTHS = (1, 2, 5)  # tokens of a forward: a plain step, and two that verify drafts
_REPETITIONS = 4
_TIMED_BYTES = 6 << 20  # for one layout of a shape: several matrices, so that they exceed the caches
_MOST_TIMED = 8  # matrices
_LARGEST_BYTES = 32 << 20  # larger matrices are read from memory, equally fast in both layouts
_WORTH = 0.95  # the most, of the seconds by rows, over all widths together
_NO_WORSE = 1.02  # the most at each width


def lay_out(model: Any) -> None:
    """Stores each matrix of `model` in this machine's fastest layout. Shapes and numbers stay; nothing is read. A
    matrix by columns is a transposed view of a contiguous array, so none is stored twice."""
    import mlx.core as mx
    from mlx import nn

    for module in model.modules():
        matrix = isinstance(module, nn.Linear | nn.Embedding | nn.AllToShardedLinear | nn.ShardedToAllLinear)
        if matrix and by_columns(*module.weight.shape):
            module.weight = mx.contiguous(module.weight.T).T


@functools.cache
def by_columns(rows: int, columns: int) -> bool:
    """Whether fp32 products of one to five tokens with a matrix of this shape are faster by columns. Measured once for
    each shape, in about ten milliseconds."""
    if 4 * rows * columns > _LARGEST_BYTES:
        return False
    return columns_win(*_time(rows, columns))


def columns_win(by_rows: Mapping[int, float], by_columns: Mapping[int, float]) -> bool:
    """Whether columns are clearly faster in the sum over all widths (tokens of a forward), and noticeably slower at
    none. Both arguments: seconds by width."""
    if any(by_columns[width] > _NO_WORSE * by_rows[width] for width in by_rows):
        return False
    return sum(by_columns.values()) < _WORTH * sum(by_rows.values())


def _time(rows: int, columns: int) -> tuple[dict[int, float], dict[int, float]]:
    """Returns seconds by width, the least of several, of products with matrices by rows and by columns. The layouts
    alternate, so that a busy moment of the machine affects both."""
    import mlx.core as mx

    count = max(1, min(_MOST_TIMED, _TIMED_BYTES // (4 * rows * columns)))
    stored = [mx.full((rows, columns), 0.5) for _ in range(count)]
    layouts = [stored, [mx.contiguous(weight.T).T for weight in stored]]
    tokens = {width: mx.full((1, width, columns), 0.5) for width in _WIDTHS}
    mx.eval(layouts, tokens)
    least: list[dict[int, float]] = [dict.fromkeys(_WIDTHS, math.inf) for _ in layouts]
    turns = [(layout, width) for layout in range(2) for width in _WIDTHS]
    order = random.Random(rows * columns)
    for _ in range(_REPETITIONS):
        for layout, width in order.sample(turns, len(turns)):
            began = time.perf_counter()
            mx.eval([tokens[width] @ weight.T for weight in layouts[layout]])
            least[layout][width] = min(least[layout][width], time.perf_counter() - began)
    return least[0], least[1]
