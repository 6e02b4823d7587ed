"""Layouts of GLM-4.5 to 4.7 (and 4.5-Air), GLM-4.7-Flash and GLM-5.

GLM-4.5, 4.5-Air and 4.7-Flash repeat the target's embedding and output layer in the head; 4.6, 4.7 and 5 do not.
"""

from __future__ import annotations

from tests.heads.layouts.configs import DENSE, EXPERT, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, VOCABULARY
from tests.heads.layouts.files import TORCH, Config
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.nextn import (
    BF16_IN_HEAD,
    EXPERTS,
    IN_MODEL,
    LAYERS,
    SIDECAR,
    Family,
    convert,
    converted_checkpoint,
    random_head,
    raw_checkpoint,
    sidecar_layout,
)
from tests.heads.layouts.quantization import quantize
from tests.heads.layouts.writers import with_sidecar

_SHARED: Config = {
    "attention_dropout": 0.0,
    "eos_token_id": [1, 2],
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": DENSE,
    "max_position_embeddings": 202752,
    "moe_intermediate_size": EXPERT,
    "n_group": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts_per_tok": 3,
    "num_hidden_layers": LAYERS,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_cache": True,
    "vocab_size": VOCABULARY,
}
_GLM4_MOE: Config = _SHARED | {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "head_dim": HEAD_DIM,
    "model_type": "glm4_moe",
    "num_key_value_heads": KV_HEADS,
    "partial_rotary_factor": 0.5,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "torch_dtype": "bfloat16",
    "use_qk_norm": True,
}
_LATENT: Config = _SHARED | {
    "attention_bias": False,
    "dtype": "bfloat16",
    "kv_lora_rank": 64,
    "num_key_value_heads": HEADS,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "topk_method": "noaux_tc",
}
_LITE_CONFIG: Config = _LATENT | {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "partial_rotary_factor": 1.0,
    "qk_nope_head_dim": 64,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.8,
    "v_head_dim": 48,
}
_DSA_CONFIG: Config = _LATENT | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "head_dim": 16,
    "index_head_dim": 32,
    "index_n_heads": 2,
    "index_topk": 2048,
    "indexer_rope_interleave": True,
    "model_type": "glm_moe_dsa",
    "moe_layer_freq": 1,
    "qk_head_dim": 64,
    "qk_nope_head_dim": 48,
    "rope_interleave": True,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "scoring_func": "sigmoid",
    "v_head_dim": 64,
}
_MOE = Family("glm4_moe", 23, _GLM4_MOE)
_AIR = Family("glm4_moe_air", 24, _GLM4_MOE | {"routed_scaling_factor": 1.0, "use_qk_norm": False})
_LITE = Family("glm4_moe_lite", 25, _LITE_CONFIG)
_DSA = Family("glm_moe_dsa", 26, _DSA_CONFIG)
_MOE_HEAD, _AIR_HEAD = random_head(_MOE, repeats_target=False), random_head(_AIR, repeats_target=True)
_LITE_HEAD, _DSA_HEAD = random_head(_LITE, repeats_target=True), random_head(_DSA, repeats_target=False)
_LITE_HEAD_4BIT = quantize(convert(_LITE_HEAD, _LITE_CONFIG), BF16_IN_HEAD)

_GLM4_MOE_LAYOUTS = [
    Layout("glm4_moe_raw", "glm4_moe", IN_MODEL, raw_checkpoint(_MOE, repeats_target=True)),
    Layout("glm4_moe_raw_shared", "glm4_moe", IN_MODEL, raw_checkpoint(_MOE, repeats_target=False)),
    sidecar_layout(_MOE, _MOE_HEAD),
    Layout(
        "glm4_moe_mlx_4bit_sidecar_4bit",
        "glm4_moe_4bit",
        SIDECAR,
        with_sidecar(
            converted_checkpoint(_MOE, quantized=True), SIDECAR.file, quantize(_MOE_HEAD, BF16_IN_HEAD), TORCH
        ),
    ),
    Layout("glm4_moe_air_raw", "glm4_moe_air", IN_MODEL, raw_checkpoint(_AIR, repeats_target=True)),
    Layout("glm4_moe_air_mlx_embedded_raw", "glm4_moe_air", IN_MODEL, converted_checkpoint(_AIR, head=_AIR_HEAD)),
]
_LATENT_LAYOUTS = [
    Layout("glm4_moe_lite_raw", "glm4_moe_lite", IN_MODEL, raw_checkpoint(_LITE, repeats_target=True)),
    sidecar_layout(_LITE, _LITE_HEAD),
    # the head converted as the target's layers are: embed_q, unembed_out and stacks of experts
    Layout(
        "glm4_moe_lite_mlx_4bit_embedded_4bit",
        "glm4_moe_lite_4bit",
        IN_MODEL,
        converted_checkpoint(_LITE, head=_LITE_HEAD_4BIT, quantized=True),
    ),
    Layout("glm_moe_dsa_raw", "glm_moe_dsa", IN_MODEL, raw_checkpoint(_DSA, repeats_target=False)),
    sidecar_layout(_DSA, _DSA_HEAD),
]

LAYOUTS = [*_GLM4_MOE_LAYOUTS, *_LATENT_LAYOUTS]
