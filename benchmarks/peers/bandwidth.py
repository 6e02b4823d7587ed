"""Measures the machine's memory bandwidth, and computes the bytes that a decode step must read.

They bound the speed of a model that is larger than the processor's cache: what stays in the cache between two steps is
read faster.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_BYTES = 1 << 30  # size of the matrix: larger than any processor's cache
_REPEATS = 10


def measured(total: int = _BYTES, repeats: int = _REPEATS) -> float:
    """Returns memory bandwidth in bytes per second: the best of `repeats` products of a vector with a matrix of `total`
    bytes.

    The cores share the matrix, so that each number is read once in a product. Decoding reads its weights the same way:
    each number once, with one multiplication and one addition.
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
    """Bytes that a decode step of the target reads: its weights once, and the keys and values of every sequence's
    tokens."""

    weight_bytes: int
    kv_bytes_a_token: int

    @classmethod
    def of(cls, model: Path, number_bytes: int) -> Reading:
        """Computes the fields from a model's folder. A number of the weights or the KV cache takes `number_bytes` bytes
        in memory."""
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        heads = config.get("num_key_value_heads", config["num_attention_heads"])
        size = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        numbers = sum(_numbers(file) for file in model.glob("*.safetensors"))
        return cls(numbers * number_bytes, 2 * config["num_hidden_layers"] * heads * size * number_bytes)

    def bytes_a_step(self, context: float, batch: int) -> float:
        return self.weight_bytes + batch * context * self.kv_bytes_a_token

    def tokens_per_second(self, bandwidth: float, context: float, batch: int, tokens_a_step: float) -> float:
        """Returns the upper bound that memory sets on tokens per second of a batch. `bandwidth` is bytes per second,
        `context` tokens of each sequence, and `tokens_a_step` the output tokens of a sequence's step."""
        return bandwidth / self.bytes_a_step(context, batch) * batch * tokens_a_step


def _numbers(file: Path) -> int:
    """Returns how many numbers a safetensors file holds, according to its header."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return sum(int(np.prod(one["shape"])) for name, one in header.items() if name != "__metadata__")
