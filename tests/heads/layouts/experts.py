"""Changes the form of experts: one by one (Qwen3-Next), two stacks (Qwen3.5), or three stacks (mlx-lm)."""

from __future__ import annotations

import numpy as np

from tests.heads.layouts.configs import EXPERTS
from tests.heads.layouts.files import Tensors


def stack_experts(tensors: Tensors) -> Tensors:
    """Returns tensors whose experts are in three stacks, as mlx-lm has them."""
    stacked: Tensors = {}
    for name, tensor in tensors.items():
        prefix, separator, rest = name.partition(".experts.")
        if not separator:
            stacked[name] = tensor
        elif rest == "gate_up_proj":
            gate, up = np.split(tensor, 2, axis=1)
            stacked[f"{prefix}.switch_mlp.gate_proj.weight"] = gate
            stacked[f"{prefix}.switch_mlp.up_proj.weight"] = up
        elif rest == "down_proj":
            stacked[f"{prefix}.switch_mlp.down_proj.weight"] = tensor
        elif rest.startswith("0."):
            projection = rest.removeprefix("0.")
            experts = [tensors[f"{prefix}.experts.{number}.{projection}"] for number in range(EXPERTS)]
            stacked[f"{prefix}.switch_mlp.{projection}"] = np.stack(experts)
    return stacked


def fuse_experts(tensors: Tensors) -> Tensors:
    """Returns tensors whose experts are in two stacks, gate and up in one, as Qwen3.5 publishes them."""
    stacked = stack_experts(tensors)
    fused = {name: tensor for name, tensor in stacked.items() if ".switch_mlp." not in name}
    for name, tensor in stacked.items():
        prefix, _, projection = name.partition(".switch_mlp.")
        if projection == "gate_proj.weight":
            up = stacked[f"{prefix}.switch_mlp.up_proj.weight"]
            fused[f"{prefix}.experts.gate_up_proj"] = np.concatenate([tensor, up], axis=1)
        elif projection == "down_proj.weight":
            fused[f"{prefix}.experts.down_proj"] = tensor
    return fused


def separate_experts(tensors: Tensors) -> Tensors:
    """Returns tensors whose experts are one by one, as Qwen3-Next publishes them."""
    separate: Tensors = {}
    for name, tensor in stack_experts(tensors).items():
        prefix, separator, projection = name.partition(".switch_mlp.")
        if separator:
            separate |= {f"{prefix}.experts.{number}.{projection}": expert for number, expert in enumerate(tensor)}
        else:
            separate[name] = tensor
    return separate
