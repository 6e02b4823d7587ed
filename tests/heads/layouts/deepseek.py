"""Layouts of DeepSeek-V3 (also V3.1 and R1) and DeepSeek-V3.2.

The hub's files are in FP8 with a `weight_scale_inv` for each matrix; these have bf16, as DeepSeek's fp8_cast_bf16.py
writes them. Both repeat the target's embedding and output layer in the head.
"""

from __future__ import annotations

from tests.heads.layouts.configs import DENSE, EXPERT, HEADS, HIDDEN, VOCABULARY
from tests.heads.layouts.files import Config
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.nextn import (
    EXPERTS,
    IN_MODEL,
    LAYERS,
    Family,
    converted_checkpoint,
    random_head,
    raw_checkpoint,
    sidecar_layout,
)

_CONFIG: Config = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": DENSE,
    "kv_lora_rank": 64,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": EXPERT,
    "moe_layer_freq": 1,
    "n_group": 4,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts_per_tok": 3,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": HEADS,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 48,
    "vocab_size": VOCABULARY,
}
_V3 = Family("deepseek_v3", 21, _CONFIG)
_V32 = Family(
    "deepseek_v32",
    22,
    _CONFIG
    | {
        "architectures": ["DeepseekV32ForCausalLM"],
        "index_head_dim": 32,
        "index_n_heads": 2,
        "index_topk": 2048,
        "model_type": "deepseek_v32",
    },
)
_V3_HEAD, _V32_HEAD = random_head(_V3, repeats_target=True), random_head(_V32, repeats_target=True)

LAYOUTS = [
    # mlx-lm's sanitize of deepseek_v3 drops `model.layers.61` only, whatever num_hidden_layers is: use strict=False
    Layout("deepseek_v3_raw", "deepseek_v3", IN_MODEL, raw_checkpoint(_V3, repeats_target=True)),
    sidecar_layout(_V3, _V3_HEAD),
    Layout("deepseek_v32_raw", "deepseek_v32", IN_MODEL, raw_checkpoint(_V32, repeats_target=True)),
    Layout("deepseek_v32_mlx_embedded_raw", "deepseek_v32", IN_MODEL, converted_checkpoint(_V32, head=_V32_HEAD)),
    sidecar_layout(_V32, _V32_HEAD),
]
