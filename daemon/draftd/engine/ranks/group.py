"""A group of ranks in MLX, and the values that they agree on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from draftd.engine.ranks.channel import RanksLost
from draftd.errors import in_one_line
from draftd.group import Loss

_TRIES = 8


@dataclass(frozen=True, slots=True)
class RankGroup:
    """`handle`: MLX's group. `seconds`: duration of one collective of few bytes, measured at the start; 0 for a single
    rank."""

    handle: Any
    backend: str
    rank: int
    size: int
    seconds: float = 0.0

    def all(self, values: Sequence[int]) -> list[list[int]]:
        """Gathers `values` from all ranks: one list per rank, in the order of ranks. All ranks must call this with
        equally long `values`. Waits for all ranks. Raises RanksLost."""
        try:
            row = mx.array(values, dtype=mx.int64)[None]
            rows: list[list[int]] = mx.distributed.all_gather(row, group=self.handle).tolist()
            return rows
        except RuntimeError as error:
            raise lost_by(error, "the ranks could not agree") from error

    def most(self, values: Sequence[int]) -> list[int]:
        return [max(column) for column in zip(*self.all(values), strict=True)]

    def least(self, values: Sequence[int]) -> list[int]:
        return [min(column) for column in zip(*self.all(values), strict=True)]


def lost_by(error: Exception, what: str) -> RanksLost:
    """Converts an error to RanksLost, as DIED if the connection to a rank has ended, which MLX says only in its
    message."""
    if isinstance(error, RanksLost):
        return error
    died = isinstance(error, RuntimeError) and "connection" in str(error)
    return RanksLost(Loss.DIED if died else Loss.FAILED, f"{what}: {in_one_line(error)}")


def join_group(backend: str = "any") -> RankGroup:
    """Joins the ranks named by MLX's environment variables (MLX_RANK, MLX_HOSTFILE …), once per process; without them
    the group has one rank. Waits for all ranks, so callers first check that all have started. Raises RanksLost."""
    try:
        handle = mx.distributed.init(strict=False, backend=backend)
    except (RuntimeError, ValueError) as error:
        raise RanksLost(Loss.FAILED, f"the group cannot be joined: {in_one_line(error)}") from error
    alone = RankGroup(handle, backend, handle.rank(), handle.size())
    seconds = collective_seconds(alone, 1) if alone.size > 1 else 0.0
    return RankGroup(handle, backend, alone.rank, alone.size, seconds)


def collective_seconds(group: RankGroup, numbers: int, tries: int = _TRIES) -> float:
    """Measures the seconds of a sum of `numbers` fp32 numbers over all ranks, the median of several. All ranks must
    call it."""
    values, taken = mx.zeros(numbers), []
    mx.eval(values)
    for _ in range(tries + 1):  # the first opens connections
        began = time.perf_counter()
        mx.eval(mx.distributed.all_sum(values, group=group.handle))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def backends() -> list[str]:
    """Returns the backends of this machine's MLX; they may still find no network."""
    return [name for name in ("ring", "jaccl", "nccl") if mx.distributed.is_available(name)]
