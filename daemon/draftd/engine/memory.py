"""Reads how much memory MLX's allocator holds, and returns freed memory to the system."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class MlxMemory:
    """Bytes. `cache` is freed memory kept for reuse; `working_set` is the most that Metal recommends to hold."""

    active: int
    cache: int
    peak: int
    working_set: int | None


def mlx_memory() -> MlxMemory:
    """Returns MLX's present memory use. Any thread may call this, unlike other functions of MLX, but only once a model
    is loaded: loading chooses the BLAS library before MLX is first imported."""
    import mlx.core as mx

    return MlxMemory(
        active=mx.get_active_memory(),
        cache=mx.get_cache_memory(),
        peak=mx.get_peak_memory(),
        working_set=mx.device_info().get("max_recommended_working_set_size"),
    )


def free_bytes() -> int:
    """Bytes that this process may still take for arrays: available on the machine, and recommended by Metal."""
    available, memory = psutil.virtual_memory().available, mlx_memory()
    return max(0, available if memory.working_set is None else min(available, memory.working_set - memory.active))


def give_back() -> None:
    """Returns freed memory to the system: what MLX keeps for reuse, and on Linux what the C library keeps too.

    glibc may keep up to 64 MB of freed memory at the end of each thread's heap. Arrays of 32 MB and more are not in a
    heap: freeing them returns their memory at once. Engine thread only; takes milliseconds."""
    import mlx.core as mx

    mx.clear_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other C libraries keep less
        if trim is not None:
            trim(0)
