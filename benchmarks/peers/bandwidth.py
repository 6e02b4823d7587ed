"""How fast this machine reads memory, and how much of it a decode step must read.

It is a bound where a model is larger than the processor's cache: what stays in the cache from one step to the next is
read faster than this."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_BYTES = 1 << 30  # of the matrix: larger than any processor's cache
_REPEATS = 10


def measured(total: int = _BYTES, repeats: int = _REPEATS) -> float:
    """Bytes a second, the best of a few: all cores read a matrix of `total` bytes once, for a product with a vector.

    That is what decoding does with its weights, two operations for each number read, and as fast as memory gives them.
    """
    side = int((total / 4) ** 0.5)
    matrix, vector = np.ones((side, side), np.float32), np.ones(side, np.float32)
    matrix @ vector
    best = 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        matrix @ vector
        best = max(best, matrix.nbytes / (time.perf_counter() - began))
    return best


@dataclass(frozen=True, slots=True)
class Reading:
    """What a step of the target reads: its weights once, and every row's keys and values."""

    weight_bytes: int
    kv_bytes_a_token: int

    @classmethod
    def of(cls, model: Path, number_bytes: int) -> Reading:
        """Of a model's folder, a number of its weights and caches being of so many bytes in memory."""
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        heads = config.get("num_key_value_heads", config["num_attention_heads"])
        size = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        numbers = sum(_numbers(file) for file in model.glob("*.safetensors"))
        return cls(numbers * number_bytes, 2 * config["num_hidden_layers"] * heads * size * number_bytes)

    def bytes_a_step(self, context: float, batch: int) -> float:
        return self.weight_bytes + batch * context * self.kv_bytes_a_token

    def tokens_per_second(self, bandwidth: float, context: float, batch: int, tokens_a_step: float) -> float:
        """The most that memory allows of the target, `tokens_a_step` coming of each row's step."""
        return bandwidth / self.bytes_a_step(context, batch) * batch * tokens_a_step


def _numbers(file: Path) -> int:
    """How many numbers a safetensors file holds, from its header."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return sum(int(np.prod(one["shape"])) for name, one in header.items() if name != "__metadata__")
