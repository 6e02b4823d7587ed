"""Layouts of LongCat-Flash: a head of one ordinary layer, dense, where each of the target's is double and mixed.

Norms hold the factor itself. mlx-lm's conversion stacks the experts, and splits each `kv_b_proj` of the target in two.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.heads.layouts.configs import DENSE, EXPERT, EXPERTS, HEADS, HIDDEN, VOCABULARY
from tests.heads.layouts.experts import stack_experts
from tests.heads.layouts.files import MLX, MODEL_FILE, TORCH, Array, Config, Tensors, bf16, write_model
from tests.heads.layouts.layout import Layout, StoredHead
from tests.heads.layouts.weights import RandomWeights
from tests.heads.layouts.writers import with_sidecar

_FAMILY = "longcat_flash"
LAYERS, IDENTITY_EXPERTS = 2, 2
QUERY_RANK, KEY_RANK = 48, 32
UNROTATED, ROTATED, VALUE = 32, 16, 24  # parts of a head: of queries and keys, and of values
_TARGET_SEED, _HEAD_SEED = 44, 54

RAW_IN_MODEL = StoredHead(MODEL_FILE, "model.mtp.", norms_shifted=False)
RAW_SIDECAR = StoredHead("mtp.safetensors", "model.mtp.", norms_shifted=False)


def longcat_config() -> Config:
    """Returns the config.json of a raw checkpoint."""
    return {
        "architectures": ["LongcatFlashForCausalLM"],
        "model_type": _FAMILY,
        "torch_dtype": "bfloat16",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_method": "MLA",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "expert_ffn_hidden_size": EXPERT,
        "ffn_hidden_size": DENSE,
        "hidden_size": HIDDEN,
        "kv_lora_rank": KEY_RANK,
        "max_position_embeddings": 4096,
        "mla_scale_kv_lora": True,
        "mla_scale_q_lora": True,
        "moe_topk": 2,
        "n_routed_experts": EXPERTS,
        "norm_topk_prob": False,
        "num_attention_heads": HEADS,
        "num_layers": LAYERS,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": QUERY_RANK,
        "qk_nope_head_dim": UNROTATED,
        "qk_rope_head_dim": ROTATED,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000000.0,
        "routed_scaling_factor": 6.0,
        "router_bias": False,
        "use_cache": True,
        "v_head_dim": VALUE,
        "vocab_size": VOCABULARY,
        "zero_expert_num": IDENTITY_EXPERTS,
        "zero_expert_type": "identity",
    }


def random_target() -> Tensors:
    """Returns a raw target."""
    random = RandomWeights(_TARGET_SEED)
    tensors = {"model.embed_tokens.weight": random.matrix(VOCABULARY, HIDDEN, gain=2.0)}
    for layer in range(LAYERS):
        tensors |= _double_layer(random, f"model.layers.{layer}")
    tensors["model.norm.weight"] = _norm(random, HIDDEN)
    tensors["lm_head.weight"] = random.matrix(VOCABULARY, HIDDEN, gain=2.0)
    return tensors


def random_head() -> Tensors:
    """Returns a raw head.

    Its embedding is the target's in numbers: no public engine reads it, so that no code says what another one means.
    """
    random = RandomWeights(_HEAD_SEED)
    prefix = "model.mtp.layers.0"
    tensors = {"model.mtp.embed_tokens.weight": random_target()["model.embed_tokens.weight"]}
    tensors |= {f"{prefix}.{name}.m.weight": _norm(random, HIDDEN) for name in ("enorm", "hnorm")}
    tensors[f"{prefix}.eh_proj.weight"] = random.matrix(HIDDEN, 2 * HIDDEN)
    tensors |= {f"{prefix}.{place}_layernorm.weight": _norm(random, HIDDEN) for place in ("input", "post_attention")}
    tensors |= _attention(random, f"{prefix}.self_attn")
    tensors |= _glu(random, f"{prefix}.transformer_layer.mlp", DENSE)
    return tensors | {"model.mtp.norm.weight": _norm(random, HIDDEN)}


def convert_target(raw: Tensors) -> Tensors:
    """Returns a target as mlx-lm's conversion writes it."""
    converted = {}
    for name, tensor in stack_experts(raw).items():
        if not name.endswith("kv_b_proj.weight"):
            converted[name] = tensor
            continue
        by_head = tensor.reshape(HEADS, UNROTATED + VALUE, KEY_RANK)
        prefix = name.removesuffix("kv_b_proj.weight")
        converted[f"{prefix}embed_q.weight"] = by_head[:, :UNROTATED].swapaxes(-1, -2)
        converted[f"{prefix}unembed_out.weight"] = by_head[:, UNROTATED:]
    return converted


def _norm(random: RandomWeights, size: int) -> Array:
    return bf16(random.normal(size, deviation=0.15, mean=1.0))


def _double_layer(random: RandomWeights, prefix: str) -> Tensors:
    tensors = {
        f"{prefix}.mlp.router.classifier.weight": random.matrix(EXPERTS + IDENTITY_EXPERTS, HIDDEN),
        f"{prefix}.mlp.router.e_score_correction_bias": random.normal(
            EXPERTS + IDENTITY_EXPERTS, deviation=0.02
        ).astype(np.float32),
    }
    for expert in range(EXPERTS):
        tensors |= _glu(random, f"{prefix}.mlp.experts.{expert}", EXPERT)
    for half in range(2):
        tensors |= _attention(random, f"{prefix}.self_attn.{half}")
        tensors |= _glu(random, f"{prefix}.mlps.{half}", DENSE)
        for place in ("input", "post_attention"):
            tensors[f"{prefix}.{place}_layernorm.{half}.weight"] = _norm(random, HIDDEN)
    return tensors


def _attention(random: RandomWeights, prefix: str) -> Tensors:
    return {
        f"{prefix}.q_a_proj.weight": random.matrix(QUERY_RANK, HIDDEN),
        f"{prefix}.q_a_layernorm.weight": _norm(random, QUERY_RANK),
        f"{prefix}.q_b_proj.weight": random.matrix(HEADS * (UNROTATED + ROTATED), QUERY_RANK),
        f"{prefix}.kv_a_proj_with_mqa.weight": random.matrix(KEY_RANK + ROTATED, HIDDEN),
        f"{prefix}.kv_a_layernorm.weight": _norm(random, KEY_RANK),
        f"{prefix}.kv_b_proj.weight": random.matrix(HEADS * (UNROTATED + VALUE), KEY_RANK),
        f"{prefix}.o_proj.weight": random.matrix(HIDDEN, HEADS * VALUE, gain=2.0),
    }


def _glu(random: RandomWeights, prefix: str, inner: int) -> Tensors:
    return {
        f"{prefix}.gate_proj.weight": random.matrix(inner, HIDDEN),
        f"{prefix}.up_proj.weight": random.matrix(inner, HIDDEN),
        f"{prefix}.down_proj.weight": random.matrix(HIDDEN, inner, gain=2.0),
    }


def _write_raw(folder: Path) -> None:
    write_model(folder, longcat_config(), random_target() | random_head(), TORCH)


def _write_converted(folder: Path) -> None:
    write_model(folder, longcat_config(), convert_target(random_target()), MLX)


LAYOUTS: list[Layout] = [
    Layout("longcat_flash_raw", "longcat_flash", RAW_IN_MODEL, _write_raw),
    Layout(
        "longcat_flash_mlx_sidecar_raw",
        "longcat_flash",
        RAW_SIDECAR,
        with_sidecar(_write_converted, RAW_SIDECAR.file, random_head(), TORCH),
    ),
]
