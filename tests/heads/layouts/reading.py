"""Reads the weights of a written layout back, as float64, for the reference."""

from __future__ import annotations

from pathlib import Path

from tests.heads.layouts.conversions import ZERO_CENTRED
from tests.heads.layouts.experts import fuse_experts
from tests.heads.layouts.files import Array, Tensors, read_safetensors
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.quantization import dequantize


def raw_head(layout: Layout, folder: Path) -> Tensors:
    """Returns the head of a written layout with the vendor's names and values.

    Experts are one by one or fused, as they were stored; MLX's stacks become fused.
    """
    stored, _ = read_safetensors(folder / layout.head.file)
    prefix = layout.head.prefix
    head = {
        f"mtp.{name.removeprefix(prefix)}": tensor
        for name, tensor in dequantize(stored).items()
        if name.startswith(prefix)
    }
    if layout.head.norms_shifted:
        head = {name: tensor - 1.0 if name.endswith(ZERO_CENTRED) else tensor for name, tensor in head.items()}
    has_stacks = any(".switch_mlp." in name for name in head)
    return fuse_experts(head) if has_stacks else head


def embedding_and_lm_head(layout: Layout, folder: Path) -> tuple[Array, Array]:
    """Returns the target's embedding and the matrix that makes logits, both (vocabulary, hidden)."""
    tensors: Tensors = {}
    for file in sorted(layout.target_folder(folder).glob("model*.safetensors")):
        tensors |= dequantize(read_safetensors(file)[0])
    embedding = next(tensor for name, tensor in tensors.items() if name.endswith("embed_tokens.weight"))
    lm_head = next((tensor for name, tensor in tensors.items() if name.endswith("lm_head.weight")), embedding)
    return embedding, lm_head
