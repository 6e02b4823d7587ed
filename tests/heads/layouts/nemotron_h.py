"""Layouts of Nemotron-H with a draft head: an attention layer, which the head's input enters, and a mixture of experts.

`nemotron_h` is as Nemotron 3.5 Lightning (kinds of layers in lists), `nemotron_h_latent` as Nemotron 3 Super: kinds of
layers in patterns, and experts of a smaller, latent size. The target has one layer of each kind. Norms hold the factor
itself; only the convolution and the experts differ between a raw and a converted checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.heads.layouts.configs import (
    DENSE,
    EXPERT,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KERNEL,
    KV_HEADS,
    VOCABULARY,
)
from tests.heads.layouts.experts import stack_experts
from tests.heads.layouts.files import MLX, MODEL_FILE, TORCH, Array, Config, Tensors, bf16, write_model
from tests.heads.layouts.layout import RAW_IN_MODEL, RAW_SIDECAR, Layout, StoredHead, Writer
from tests.heads.layouts.weights import RandomWeights
from tests.heads.layouts.writers import with_sidecar

LATENT = 32  # size of the experts' inputs and outputs in `nemotron_h_latent`
_STATE_HEADS, _STATE_HEAD_DIM, _STATE, _GROUPS = 4, 32, 16, 2
_INNER = _STATE_HEADS * _STATE_HEAD_DIM
_CONVOLVED = _INNER + 2 * _GROUPS * _STATE
_KINDS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
_PATTERN, _HEAD_PATTERN = "ME*-", "*E"
_TARGET_SEEDS = {"nemotron_h": 42, "nemotron_h_latent": 43}
_HEAD_SEEDS = {"nemotron_h": 52, "nemotron_h_latent": 53}

RAW_IN_CONVERTED_MODEL = StoredHead(MODEL_FILE, "mtp.", norms_shifted=False)


def nemotron_config(family: str) -> Config:
    """Returns the config.json of a raw checkpoint."""
    config: Config = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "torch_dtype": "bfloat16",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "chunk_size": 128,
        "conv_kernel": KERNEL,
        "eos_token_id": 1,
        "expand": 2,
        "head_dim": HEAD_DIM,
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE,
        "layer_norm_epsilon": 1e-5,
        "mamba_head_dim": _STATE_HEAD_DIM,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": _STATE_HEADS,
        "mamba_proj_bias": False,
        "max_position_embeddings": 4096,
        "mlp_bias": False,
        "mlp_hidden_act": "relu2",
        "moe_intermediate_size": EXPERT,
        "moe_latent_size": None,
        "moe_shared_expert_intermediate_size": DENSE,
        "n_group": 1,
        "n_groups": _GROUPS,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": HEADS,
        "num_experts_per_tok": 2,
        "num_hidden_layers": len(_PATTERN),
        "num_key_value_heads": KV_HEADS,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 1.0,
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "sliding_window": None,
        "ssm_state_size": _STATE,
        "tie_word_embeddings": False,
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "topk_group": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "vocab_size": VOCABULARY,
    }
    if family == "nemotron_h":
        return config | {
            "layers_block_type": [_KINDS[kind] for kind in _PATTERN],
            "mtp_layers_block_type": [_KINDS[kind] for kind in _HEAD_PATTERN],
        }
    return config | {
        "hybrid_override_pattern": _PATTERN,
        "moe_latent_size": LATENT,
        "mtp_hybrid_override_pattern": _HEAD_PATTERN,
        "routed_scaling_factor": 5.0,
    }


def random_target(family: str) -> Tensors:
    """Returns a raw target."""
    random = RandomWeights(_TARGET_SEEDS[family])
    tensors = {"backbone.embeddings.weight": random.matrix(VOCABULARY, HIDDEN, gain=2.0)}
    for layer, kind in enumerate(_PATTERN):
        tensors |= _layer(random, f"backbone.layers.{layer}", kind, family)
    tensors["backbone.norm_f.weight"] = _norm(random, HIDDEN)
    tensors["lm_head.weight"] = random.matrix(VOCABULARY, HIDDEN, gain=2.0)
    return tensors


def random_head(family: str) -> Tensors:
    """Returns a raw head: its input's norms and projection in its first layer, its final norm in its last."""
    random = RandomWeights(_HEAD_SEEDS[family])
    tensors = {f"mtp.layers.0.{name}.weight": _norm(random, HIDDEN) for name in ("enorm", "hnorm")}
    tensors["mtp.layers.0.eh_proj.weight"] = random.matrix(HIDDEN, 2 * HIDDEN)
    for layer, kind in enumerate(_HEAD_PATTERN):
        tensors |= _layer(random, f"mtp.layers.{layer}", kind, family)
    tensors[f"mtp.layers.{len(_HEAD_PATTERN) - 1}.final_layernorm.weight"] = _norm(random, HIDDEN)
    return tensors


def convert_target(raw: Tensors) -> Tensors:
    """Returns a target as mlx-lm's conversion writes it."""
    converted = {}
    for name, tensor in stack_experts(raw).items():
        if name.endswith("conv1d.weight"):
            tensor = np.moveaxis(tensor, 2, 1)
        name = name.replace(".switch_mlp.up_proj.", ".switch_mlp.fc1.")
        converted[name.replace(".switch_mlp.down_proj.", ".switch_mlp.fc2.")] = tensor
    return converted


def _norm(random: RandomWeights, size: int) -> Array:
    return bf16(random.normal(size, deviation=0.15, mean=1.0))


def _layer(random: RandomWeights, prefix: str, kind: str, family: str) -> Tensors:
    mixer = f"{prefix}.mixer"
    if kind == "M":
        tensors = _state_space(random, mixer)
    elif kind == "*":
        tensors = _attention(random, mixer)
    elif kind == "E":
        tensors = _mixture(random, mixer, LATENT if family == "nemotron_h_latent" else HIDDEN)
    else:
        tensors = _mlp(random, mixer, HIDDEN, DENSE)
    return tensors | {f"{prefix}.norm.weight": _norm(random, HIDDEN)}


def _state_space(random: RandomWeights, prefix: str) -> Tensors:
    return {
        f"{prefix}.in_proj.weight": random.matrix(_INNER + _CONVOLVED + _STATE_HEADS, HIDDEN),
        f"{prefix}.conv1d.weight": random.matrix(_CONVOLVED, 1, KERNEL),
        f"{prefix}.conv1d.bias": bf16(random.normal(_CONVOLVED, deviation=0.1)),
        f"{prefix}.A_log": bf16(random.normal(_STATE_HEADS, deviation=0.3)),
        f"{prefix}.D": bf16(random.normal(_STATE_HEADS, deviation=0.1, mean=1.0)),
        f"{prefix}.dt_bias": bf16(random.normal(_STATE_HEADS, deviation=0.3)),
        f"{prefix}.norm.weight": _norm(random, _INNER),
        f"{prefix}.out_proj.weight": random.matrix(HIDDEN, _INNER, gain=2.0),
    }


def _attention(random: RandomWeights, prefix: str) -> Tensors:
    return {
        f"{prefix}.q_proj.weight": random.matrix(HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.k_proj.weight": random.matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.v_proj.weight": random.matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.o_proj.weight": random.matrix(HIDDEN, HEADS * HEAD_DIM, gain=2.0),
    }


def _mlp(random: RandomWeights, prefix: str, size: int, inner: int) -> Tensors:
    return {
        f"{prefix}.up_proj.weight": random.matrix(inner, size),
        f"{prefix}.down_proj.weight": random.matrix(size, inner),
    }


def _mixture(random: RandomWeights, prefix: str, size: int) -> Tensors:
    tensors = {
        f"{prefix}.gate.weight": random.matrix(EXPERTS, HIDDEN),
        f"{prefix}.gate.e_score_correction_bias": random.normal(EXPERTS, deviation=0.05).astype(np.float32),
        **_mlp(random, f"{prefix}.shared_experts", HIDDEN, DENSE),
    }
    if size != HIDDEN:
        tensors[f"{prefix}.fc1_latent_proj.weight"] = random.matrix(size, HIDDEN)
        tensors[f"{prefix}.fc2_latent_proj.weight"] = random.matrix(HIDDEN, size)
    for expert in range(EXPERTS):
        tensors |= _mlp(random, f"{prefix}.experts.{expert}", size, EXPERT)
    return tensors


def _raw(family: str) -> Writer:
    return lambda folder: write_model(
        folder, nemotron_config(family), random_target(family) | random_head(family), TORCH
    )


def _converted(family: str, *, with_head: bool = False) -> Writer:
    def write(folder: Path) -> None:
        head = random_head(family) if with_head else {}
        write_model(folder, nemotron_config(family), convert_target(random_target(family)) | head, MLX)

    return write


def _layouts(family: str) -> list[Layout]:
    sidecar = with_sidecar(_converted(family), RAW_SIDECAR.file, random_head(family), TORCH)
    return [
        Layout(f"{family}_raw", family, RAW_IN_MODEL, _raw(family)),
        Layout(f"{family}_mlx_sidecar_raw", family, RAW_SIDECAR, sidecar),
        Layout(f"{family}_mlx_embedded_raw", family, RAW_IN_CONVERTED_MODEL, _converted(family, with_head=True)),
    ]


LAYOUTS: list[Layout] = [*_layouts("nemotron_h"), *_layouts("nemotron_h_latent")]
