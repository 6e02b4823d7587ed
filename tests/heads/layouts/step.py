"""Layouts of Step-3.5-Flash: three chained heads, stored as the layers after the target's.

A raw checkpoint holds w of (1 + w) for every norm, the router as `moe.gate`, and experts in stacks below `moe`. The
target has four layers here: full and sliding attention, dense and mixed. The heads are dense and sliding, as published.
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
    KV_HEADS,
    VOCABULARY,
)
from tests.heads.layouts.files import MLX, MODEL_FILE, TORCH, Array, Config, Tensors, bf16, float64, write_model
from tests.heads.layouts.layout import Layout, StoredHead
from tests.heads.layouts.quantization import QUANTIZATION_CONFIG, quantize
from tests.heads.layouts.weights import RandomWeights
from tests.heads.layouts.writers import with_sidecar

_FAMILY = "step3p5"
LAYERS, CHAINED_HEADS = 4, 3
WINDOW = 8  # shorter than the texts of the fixtures, so that a head without a window differs
_SLIDING_HEADS = 6
_FULL, _SLIDING = "full_attention", "sliding_attention"
_LAYER_TYPES = [_FULL, _SLIDING, _SLIDING, _FULL, *[_SLIDING] * CHAINED_HEADS]
_MIXED_LAYERS = (2, 3)
_TARGET_SEED, _HEAD_SEED = 41, 51
# From mlx-lm's sanitize of step3p5: the vendor's part of a name, and mlx-lm's.
_RENAMED = {
    ".moe.gate.": ".mlp.gate.gate.",
    ".moe.router_bias": ".mlp.gate.router_bias",
    ".moe.": ".mlp.switch_mlp.",
    ".share_expert.": ".mlp.share_expert.",
}
_ROUTER = ("mlp.gate.gate.weight",)  # mlx-lm keeps it in 8 bit

_FIRST, *_OTHERS = (f"model.layers.{LAYERS + head}." for head in range(CHAINED_HEADS))
RAW_IN_MODEL = StoredHead(MODEL_FILE, _FIRST, norms_shifted=False, other_prefixes=tuple(_OTHERS))
RAW_SIDECAR = StoredHead("mtp.safetensors", _FIRST, norms_shifted=False, other_prefixes=tuple(_OTHERS))


def step_config() -> Config:
    """Returns the config.json of a raw checkpoint. Its lists by layer have entries for the heads too."""
    is_full = [kind == _FULL for kind in _LAYER_TYPES]
    return {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": _FAMILY,
        "torch_dtype": "bfloat16",
        "att_impl_type": "GQA",
        "attention_other_setting": {
            "attention_type": _SLIDING,
            "num_attention_heads": _SLIDING_HEADS,
            "num_attention_groups": KV_HEADS,
            "head_dim": HEAD_DIM,
            "true_head_dim": HEAD_DIM,
        },
        "bos_token_id": 0,
        "eos_token_id": [1],
        "head_dim": HEAD_DIM,
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE,
        "layer_types": _LAYER_TYPES,
        "max_position_embeddings": 4096,
        "max_seq_len": 4096,
        "moe_every_n_layer": 1,
        "moe_intermediate_size": EXPERT,
        "moe_layer_offset": 0,
        "moe_layers_enum": ",".join(map(str, _MIXED_LAYERS)),
        "moe_num_experts": EXPERTS,
        "moe_router_activation": "sigmoid",
        "moe_router_scaling_factor": 3.0,
        "moe_top_k": 2,
        "need_fp32_gate": True,
        "norm_expert_weight": True,
        "num_attention_groups": KV_HEADS,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": CHAINED_HEADS,
        "partial_rotary_factors": [0.5 if full else 1.0 for full in is_full],
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 2.0,
            "original_max_position_embeddings": 2048,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
        "rope_theta": [5000000.0 if full else 10000.0 for full in is_full],
        "share_expert_dim": EXPERT,
        "sink": False,
        "sliding_window": WINDOW,
        "swiglu_limits": [7.0 if layer == LAYERS - 1 else 0.0 for layer in range(len(_LAYER_TYPES))],
        "swiglu_limits_shared": [16.0 if layer == LAYERS - 1 else 0.0 for layer in range(len(_LAYER_TYPES))],
        "tie_word_embeddings": False,
        "use_head_wise_attn_gate": True,
        "use_moe_router_bias": True,
        "use_qk_norm": True,
        "use_rope_layers": [],
        "vocab_size": VOCABULARY,
        "yarn_only_types": [_FULL],
        "zero_centered": True,
    }


def random_target() -> Tensors:
    """Returns a raw target."""
    random = RandomWeights(_TARGET_SEED)
    tensors = {"model.embed_tokens.weight": random.matrix(VOCABULARY, HIDDEN, gain=2.0)}
    for layer in range(LAYERS):
        tensors |= _layer(random, layer)
    tensors["model.norm.weight"] = _norm(random, HIDDEN)
    tensors["lm_head.weight"] = random.matrix(VOCABULARY, HIDDEN, gain=2.0)
    return tensors


def random_heads() -> Tensors:
    """Returns the raw heads, each with a norm and an output layer of its own below `transformer`."""
    random = RandomWeights(_HEAD_SEED)
    tensors: Tensors = {}
    for layer in range(LAYERS, LAYERS + CHAINED_HEADS):
        prefix = f"model.layers.{layer}"
        tensors |= {f"{prefix}.{name}.weight": _norm(random, HIDDEN) for name in ("enorm", "hnorm")}
        tensors[f"{prefix}.eh_proj.weight"] = random.matrix(HIDDEN, 2 * HIDDEN)
        tensors |= _layer(random, layer)
        tensors[f"{prefix}.transformer.shared_head.norm.weight"] = _norm(random, HIDDEN)
        tensors[f"{prefix}.transformer.shared_head.output.weight"] = random.matrix(VOCABULARY, HIDDEN, gain=2.0)
    return tensors


def convert_target(raw: Tensors) -> Tensors:
    """Returns a target as mlx-lm's conversion writes it."""
    converted = {}
    for name, tensor in raw.items():
        if name.endswith("norm.weight"):
            tensor = bf16(float64(tensor) + 1.0)
        for vendors, mlx_lms in _RENAMED.items():
            if vendors in name:
                name = name.replace(vendors, mlx_lms)
                break
        converted[name] = tensor
    return converted


def _norm(random: RandomWeights, size: int) -> Array:
    return bf16(random.normal(size, deviation=0.15, mean=0.1))


def _layer(random: RandomWeights, layer: int) -> Tensors:
    prefix = f"model.layers.{layer}"
    heads = HEADS if _LAYER_TYPES[layer] == _FULL else _SLIDING_HEADS
    attention = {
        "q_proj": random.matrix(heads * HEAD_DIM, HIDDEN),
        "k_proj": random.matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        "v_proj": random.matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        "g_proj": random.matrix(heads, HIDDEN),
        "o_proj": random.matrix(HIDDEN, heads * HEAD_DIM, gain=2.0),
        "q_norm": _norm(random, HEAD_DIM),
        "k_norm": _norm(random, HEAD_DIM),
    }
    tensors = {f"{prefix}.self_attn.{name}.weight": tensor for name, tensor in attention.items()}
    tensors |= {f"{prefix}.{place}_layernorm.weight": _norm(random, HIDDEN) for place in ("input", "post_attention")}
    return tensors | (_mixture(random, prefix) if layer in _MIXED_LAYERS else _glu(random, f"{prefix}.mlp", DENSE))


def _glu(random: RandomWeights, prefix: str, inner: int) -> Tensors:
    return {
        f"{prefix}.gate_proj.weight": random.matrix(inner, HIDDEN),
        f"{prefix}.up_proj.weight": random.matrix(inner, HIDDEN),
        f"{prefix}.down_proj.weight": random.matrix(HIDDEN, inner, gain=2.0),
    }


def _mixture(random: RandomWeights, prefix: str) -> Tensors:
    return {
        f"{prefix}.moe.gate.weight": random.matrix(EXPERTS, HIDDEN),
        f"{prefix}.moe.router_bias": random.normal(EXPERTS, deviation=0.05).astype(np.float32),
        f"{prefix}.moe.gate_proj.weight": random.matrix(EXPERTS, EXPERT, HIDDEN),
        f"{prefix}.moe.up_proj.weight": random.matrix(EXPERTS, EXPERT, HIDDEN),
        f"{prefix}.moe.down_proj.weight": random.matrix(EXPERTS, HIDDEN, EXPERT, gain=2.0),
        **_glu(random, f"{prefix}.share_expert", EXPERT),
    }


def _write_raw(folder: Path) -> None:
    write_model(folder, step_config(), random_target() | random_heads(), TORCH)


def _write_converted(folder: Path) -> None:
    write_model(folder, step_config(), convert_target(random_target()), MLX)


def _write_converted_4bit(folder: Path) -> None:
    write_model(folder, step_config() | QUANTIZATION_CONFIG, quantize(convert_target(random_target()), _ROUTER), MLX)


LAYOUTS: list[Layout] = [
    Layout("step3p5_raw", "step3p5", RAW_IN_MODEL, _write_raw),
    Layout(
        "step3p5_mlx_sidecar_raw",
        "step3p5",
        RAW_SIDECAR,
        with_sidecar(_write_converted, RAW_SIDECAR.file, random_heads(), TORCH),
    ),
    # the vendor's names and norms, with eh_proj and the heads' own output layers in 4 bit too
    Layout(
        "step3p5_mlx_4bit_sidecar_raw_4bit",
        "step3p5_4bit",
        RAW_SIDECAR,
        with_sidecar(_write_converted_4bit, RAW_SIDECAR.file, quantize(random_heads()), TORCH),
    ),
]
