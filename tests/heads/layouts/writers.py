"""Makes the writers of layouts: a raw or a converted checkpoint, and a head beside it or in a drafter's repository."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.heads.layouts.configs import model_config, text_config
from tests.heads.layouts.conversions import convert_target
from tests.heads.layouts.experts import separate_experts
from tests.heads.layouts.files import (
    MLX,
    TORCH,
    Config,
    Tensors,
    write_config,
    write_model,
    write_safetensors,
    write_sharded_model,
)
from tests.heads.layouts.layout import DRAFTER, Writer
from tests.heads.layouts.quantization import QUANTIZATION_CONFIG, quantize
from tests.heads.layouts.weights import random_head, random_target


def raw_checkpoint(family: str, *, tied: bool = False, separate: bool = False, sharded: bool = False) -> Writer:
    """Returns the writer of a raw checkpoint with its head: experts one by one if `separate`, the head in a second
    shard if `sharded`."""

    def write(folder: Path) -> None:
        head = random_head(family)
        if separate:
            head = separate_experts(head)
        target, config = random_target(family, tied), model_config(family, tied)
        if sharded:
            write_sharded_model(folder, config, [target, head], TORCH)
        else:
            write_model(folder, config, target | head, TORCH)

    return write


def converted_checkpoint(
    family: str, *, head: Tensors | None = None, quantized: bool = False, more_config: Config | None = None
) -> Writer:
    """Returns the writer of a target as mlx-lm converts it, with the tensors of `head` in the same file."""

    def write(folder: Path) -> None:
        config = model_config(family) | (more_config or {})
        target = convert_target(random_target(family))
        if quantized:
            config |= QUANTIZATION_CONFIG
            target = quantize(target)
        write_model(folder, config, target | (head or {}), MLX)

    return write


def with_sidecar(write_target: Writer, file: str, head: Tensors, metadata: Mapping[str, str] | None = None) -> Writer:
    """Returns the writer of a target with the head in a file of its own beside it."""

    def write(folder: Path) -> None:
        write_target(folder)
        write_safetensors(folder / file, head, metadata)

    return write


def with_drafter(write_target: Writer, family: str, head: Tensors, quantized: bool = False) -> Writer:
    """Returns the writer of a target, and of a drafter's repository as mlx-vlm splits it from a raw checkpoint."""

    def write(folder: Path) -> None:
        write_target(folder / "target")
        config = {
            "block_size": 3,
            "model_type": "qwen3_5_mtp",
            "text_config": text_config(family),
            "tie_word_embeddings": False,
        }
        if quantized:
            config |= QUANTIZATION_CONFIG
        write_config(folder / "drafter", config)
        write_safetensors(folder / DRAFTER.file, head, MLX)

    return write
