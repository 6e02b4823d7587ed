"""Converts raw weights as mlx-lm and its like do: norms, names, the convolution, and stacks of experts."""

from __future__ import annotations

import numpy as np

from tests.heads.layouts.experts import stack_experts
from tests.heads.layouts.files import Tensors, bf16, float64

# Ends of the names of norms that hold w of (1 + w) in a raw checkpoint.
ZERO_CENTRED = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
    "model.norm.weight",
    "language_model.norm.weight",
    "mtp.norm.weight",
    ".pre_fc_norm_embedding.weight",
    ".pre_fc_norm_hidden.weight",
)


def convert_target(raw: Tensors) -> Tensors:
    """Returns a target as mlx-lm's conversion writes it."""
    converted = {}
    for name, tensor in stack_experts(_shift_norms(raw)).items():
        if name.startswith("model.visual"):
            continue
        if ".conv1d." in name:
            tensor = np.moveaxis(tensor, 2, 1)
        if tensor.dtype == np.float32 and not name.endswith("A_log"):
            tensor = bf16(tensor)
        if "model.language_model.embed_tokens.weight" in raw:
            name = "language_model." + name.replace("model.language_model.", "model.", 1)
        converted[name] = tensor
    return converted


def convert_head(raw: Tensors, prefix: str = "mtp.") -> Tensors:
    """Returns a head with shifted norms and stacked experts, and `prefix` in place of `mtp.`."""
    converted = stack_experts(_shift_norms(raw))
    return {prefix + name.removeprefix("mtp."): tensor for name, tensor in converted.items()}


def _shift_norms(tensors: Tensors) -> Tensors:
    """Returns tensors with 1 added to each zero-centred norm, rounded to bf16 as a converter does."""
    return {
        name: bf16(float64(tensor) + 1.0) if name.endswith(ZERO_CENTRED) else tensor for name, tensor in tensors.items()
    }
