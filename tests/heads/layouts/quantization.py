"""Packs matrices into MLX's affine 4 bit, and unpacks them."""

from __future__ import annotations

import numpy as np

from tests.heads.layouts.files import Config, Tensors, bf16, float64

GROUP, BITS = 64, 4
_LARGEST = 2**BITS - 1
_PER_WORD = 32 // BITS
_SHIFTS = np.arange(0, 32, BITS, dtype=np.uint32)
_QUANTIZATION = {"group_size": GROUP, "bits": BITS, "mode": "affine"}
QUANTIZATION_CONFIG: Config = {"quantization": _QUANTIZATION, "quantization_config": _QUANTIZATION}
# Ends of the names of matrices that most published 4 bit heads leave in bf16.
USUALLY_BF16 = ("fc.weight", ".gate.weight", ".shared_expert_gate.weight")


def quantize(tensors: Tensors, bf16_names: tuple[str, ...] = ()) -> Tensors:
    """Returns tensors with each matrix in 4 bit, except those whose name ends as one of `bf16_names`."""
    quantized: Tensors = {}
    for name, tensor in tensors.items():
        is_matrix = name.endswith(".weight") and tensor.ndim > 1 and tensor.shape[-1] % GROUP == 0
        if not is_matrix or name.endswith(bf16_names):
            quantized[name] = tensor
            continue
        groups = float64(tensor).reshape(*tensor.shape[:-1], -1, GROUP)
        low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
        scales, biases = bf16((high - low) / _LARGEST), bf16(low)
        levels = np.rint((groups - float64(biases)) / np.maximum(float64(scales), 1e-12))
        levels = np.clip(levels, 0, _LARGEST).astype(np.uint32).reshape(*tensor.shape[:-1], -1, _PER_WORD)
        words = np.bitwise_or.reduce(levels << _SHIFTS, axis=-1)
        stem = name.removesuffix(".weight")
        quantized |= {name: words, f"{stem}.scales": scales[..., 0], f"{stem}.biases": biases[..., 0]}
    return quantized


def dequantize(tensors: Tensors) -> Tensors:
    """Returns tensors as float64, with the values that those in 4 bit stand for."""
    values = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if f"{stem}.scales" not in tensors:
            values[name] = float64(tensor)
            continue
        levels = (tensor[..., None] >> _SHIFTS) & _LARGEST
        groups = levels.reshape(*tensor.shape[:-1], -1, GROUP)
        scales, biases = (float64(tensors[f"{stem}.{part}"])[..., None] for part in ("scales", "biases"))
        values[name] = (groups * scales + biases).reshape(*tensor.shape[:-1], -1)
    return values
