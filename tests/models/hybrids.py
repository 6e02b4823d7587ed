"""The tiny configurations of architectures that keep a state: convolutions, linear attention, Mamba, RWKV."""

from __future__ import annotations

from tests.models.configurations import FULL, LINEAR, SLIDING, WINDOW, Config

_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
_MAMBA = {
    "mamba_expand": 1,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_proj_bias": False,
    "mamba_conv_bias": True,
}
_KDA = {
    "num_heads": 2,
    "head_dim": 32,
    "short_conv_kernel_size": 4,
    "kda_layers": [1, 3],
    "full_attn_layers": [2],
}
_CONV = {
    "layer_types": ["conv", FULL, "conv"],
    "conv_bias": True,
    "conv_L_cache": 3,
    "block_dim": 64,
    "block_multiple_of": 32,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
}
_QWEN_3_5 = {
    **_DELTA,
    "num_experts": 0,
    "full_attention_interval": 2,
    "rope_parameters": {"type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}

HYBRIDS: dict[str, Config] = {
    "baichuan_m1": {"sliding_window_layers": [1], "conv_window": 2},
    "bailing_hybrid": {"layer_group_size": 2, "group_norm_size": 2},
    "bailing_moe_linear": {"layer_group_size": 2, "group_norm_size": 2, "score_function": "sigmoid"},
    "bailing_moe_v3": {"layer_group_size": 2, "short_conv_kernel_size": 4},
    "falcon_h1": {"mamba_d_ssm": 64, **_MAMBA, "tie_word_embeddings": True},
    "gear": {"layer_types": ["conv_mixer", FULL, SLIDING], "tie_word_embeddings": True},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba"], **_MAMBA},
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_expand": 2,
    },
    "kimi_k3": {
        "text_config": {
            "model_type": "kimi_linear",
            "linear_attn_config": {**_KDA, "gate_lower_bound": -5.0},
            "attn_res_block_size": 2,
            "mla_use_output_gate": True,
            "routed_expert_hidden_size": 32,
            "latent_moe_use_norm": True,
        }
    },
    "kimi_linear": {"linear_attn_config": _KDA, "model_max_length": 512},
    "lfm2": _CONV,
    "lfm2-vl": {"text_config": {"model_type": "lfm2", **_CONV}},
    "lfm2_moe": {**_CONV, "use_expert_bias": True, "num_dense_layers": 1},
    "mamba": {"intermediate_size": 128, "state_size": 16, "conv_kernel": 4, "use_conv_bias": True, "time_step_rank": 4},
    "mamba2": {
        "num_heads": 8,
        "intermediate_size": 128,
        "state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "use_conv_bias": True,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": 4,
    },
    "nemotron_h": {
        "hybrid_override_pattern": ["M", "*", "-", "E"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "use_conv_bias": True,
        "moe_latent_size": 32,
    },
    "olmo_hybrid": {
        **_DELTA,
        "linear_num_key_heads": 4,
        "linear_allow_neg_eigval": True,
        "layer_types": [LINEAR, FULL, LINEAR],
    },
    "plamo2": {"hidden_size_per_head": 16, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_num_heads": 4},
    # A pack of weights with two bits, some of them rotated: its widths are multiples of 128, or of 512.
    "prism_hadamard_qwen35": {
        "schema_version": 1,
        "tensor_namespace": "mlx-lm-text",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [
            {"path": "model.layers.0.mlp.gate_proj", "embedding": False, "dtype": "float16", "block": 0},
            {"path": "model.layers.1.mlp.down_proj", "embedding": False, "dtype": "float16", "block": 512},
        ],
        "text_config": {"model_type": "qwen3_5", "hidden_size": 128, "intermediate_size": 512, **_QWEN_3_5},
    },
    "qwen3_5": {"text_config": {"model_type": "qwen3_5", **_QWEN_3_5}},
    "qwen3_5_moe": {"text_config": {"model_type": "qwen3_5_moe", **_QWEN_3_5, "num_experts": 4}},
    "qwen3_next": {**_DELTA, "mlp_only_layers": [0], "full_attention_interval": 2},
    "recurrent_gemma": {
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "num_key_value_heads": 1,
        "attention_window_size": WINDOW,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "rwkv7": {"a_low_rank_dim": 64, "v_low_rank_dim": 64, "gate_low_rank_dim": 64, "decay_low_rank_dim": 64},
}
