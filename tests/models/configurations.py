"""A tiny configuration for each architecture. It has two to four layers, so that every kind of layer occurs, a
vocabulary of 96 tokens, and windows, chunks and selections of eight positions, which a short text fills several times.

`COMMON` has the names that most architectures share; a table here has what else one needs, or needs differently. An
architecture that is in no table is tried with `COMMON` alone.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

WINDOW = 8  # positions of every sliding window, chunk and selection
VOCABULARY = 96

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
_ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
_YARN = {
    **_ROPE,
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_LLAMA_4 = {**_YARN, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}
_NTK = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
_BOTH_ROPES = {FULL: _ROPE, SLIDING: _ROPE}

COMMON: Config = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_layers": 3,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "layernorm_epsilon": 1e-5,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    "rope_scaling": None,
    "sliding_window": WINDOW,
    # experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    # latent attention, and the selection of positions
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "index_head_dim": 32,
    "index_n_heads": 2,
    "index_topk": WINDOW,
    # Granite's, MiniCPM's, Cohere's
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "attention_multiplier": 0.25,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "dim_model_base": 32,
    "scale_depth": 1.4,
    "scale_emb": 1.0,
    # Gemma's
    "query_pre_attn_scalar": 16,
    "sliding_window_pattern": 3,
}

# Attention to all positions, whatever lies behind it.
DENSE: dict[str, Config] = {
    "apertus": {"post_norm": True, "qk_norm": True},
    "bitnet": {},
    "cohere": {},
    "ernie4_5": {},
    "exaone": {},
    "gemma": {},
    "gemma2": {},
    "glm": {},
    "glm4": {},
    "gpt2": {"n_ctx": 512, "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 512, "num_key_value_heads": None},
    "gpt_bigcode": {
        "n_embd": 64,
        "n_layer": 3,
        "n_inner": 96,
        "n_head": 4,
        "n_positions": 512,
        "num_key_value_heads": None,
    },
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.5, "num_key_value_heads": None},
    "gptj": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "rotary_dim": 8},
    "granite": {"intermediate_size": 128},  # in 4 bits its groups have 64
    "helium": {},
    "hunyuan_v1_dense": {"rope_scaling": _NTK},
    "internlm2": {},
    "internlm3": {},
    "lille-130m": {"block_size": 512, "n_embd": 64, "n_head": 4, "n_kv_heads": 2, "n_layer": 3},
    "mimo": {},
    "minicpm": {},
    "nanbeige": {"num_hidden_layers": 2, "num_loops": 2},
    "nanochat": {"num_key_value_heads": 4},
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "num_hidden_layers": 4,
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"replace_with_linear": True}, "ffn": {"replace_with_linear": True}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
        ],
    },
    "olmo": {"d_model": 64, "n_layers": 3, "mlp_hidden_size": 96, "n_heads": 4, "embedding_size": VOCABULARY},
    "olmo2": {},
    "openelm": {
        "num_transformer_layers": 3,
        "model_dim": 64,
        "ffn_dim_divisor": 32,
        "num_query_heads": [2, 4, 4],
        "num_kv_heads": [1, 2, 2],
        "ffn_multipliers": [1.0, 1.5, 2.0],
    },
    "phi": {},
    "phi3": {"partial_rotary_factor": 1.0},
    # Its dummy tokens have fixed ids. The blocks of its sparse attention have at least 32 positions.
    "phi3small": {
        "vocab_size": 100352,
        "dense_attention_every_n_layers": 2,
        "ff_intermediate_size": 96,
        "gegelu_limit": 20.0,
        "blocksparse_block_size": 32,
        "blocksparse_num_local_blocks": 1,
        "blocksparse_vert_stride": 2,
    },
    "pixtral": {"text_config": {"model_type": "llama"}},
    "plamo": {"n_shared_head": 2},
    "qwen": {"kv_channels": 16},
    "qwen2": {},
    "qwen2_vl": {"text_config": {"model_type": "qwen2"}},
    "qwen3": {},
    "qwen3_vl": {"text_config": {"model_type": "qwen3"}},
    "seed_oss": {},
    "smollm3": {"no_rope_layer_interval": 2},
    "stablelm": {"use_qkv_bias": True, "qk_layernorm": True},
    "starcoder2": {},
    "talkie": {},
    "telechat3": {},
}

EXPERTS: dict[str, Config] = {
    "Klear": {"mlp_only_layers": [0]},
    "bailing_moe": {"moe_router_enable_expert_bias": True, "score_function": "sigmoid"},
    "dbrx": {
        "d_model": 64,
        "n_layers": 3,
        "n_heads": 4,
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek": {},
    "dots1": {},
    "ernie4_5_moe": {"moe_k": 2, "moe_layer_start_index": 1, "moe_num_shared_experts": 1},
    "glm4_moe": {},
    "granitemoe": {"intermediate_size": 128},
    "hunyuan": {
        "num_hidden_layers": 4,
        "num_shared_expert": 1,
        "use_mixed_mlp_moe": True,
        "use_cla": True,
        "cla_share_factor": 2,
        "rope_scaling": _NTK,
    },
    "llama4_text": {"num_hidden_layers": 4, "intermediate_size_mlp": 96, "no_rope_layers": [1, 1, 1, 0]},
    "minimax": {"rotary_dim": 8},
    "mixtral": {},
    "olmoe": {},
    "phimoe": {},
    "phixtral": {"num_vocab": VOCABULARY, "model_dim": 64, "num_heads": 4, "rotary_dim": 8},
    "qwen2_moe": {},
    "qwen3_moe": {"mlp_only_layers": [0]},
    "qwen3_vl_moe": {"text_config": {"model_type": "qwen3_moe"}},
    "solar_open": {},
}

# Keys and values as a latent; in some, selected positions of it.
LATENT: dict[str, Config] = {
    "deepseek_v2": {"topk_method": "group_limited_greedy", "n_group": 2, "rope_scaling": _YARN},
    "deepseek_v3": {"rope_scaling": _YARN},
    "deepseek_v32": {},
    "deepseek_v41": {
        "num_hidden_layers": 4,
        "head_dim": 32,
        "o_groups": 2,
        "o_lora_rank": 32,
        "compress_ratios": [0, 2, 2, 2],
        "kv_source_layer_ids": [1],
        "index_source_layer_ids": [1, 2],
        "candidate_source_layer_id": 1,
        "candidate_topk_blocks": 4,
        "candidate_block_size": 2,
        "index_topk": 4,
        "hc_mult": 2,
    },
    "glm4_moe_lite": {},
    "glm_moe_dsa": {"rope_parameters": _ROPE, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "kimi_k25": {"text_config": {"model_type": "deepseek_v3"}},
    "kimi_vl": {"text_config": {}},
    "longcat_flash": {
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 32,
        "zero_expert_num": 2,
        "num_layers": 2,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "longcat_flash_ngram": {
        "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 32,
        "zero_expert_num": 2,
        "num_layers": 2,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "ngram_vocab_size_ratio": 2,
        "emb_neighbor_num": 3,
        "emb_split_num": 2,
    },
    "minicpm3": {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}},
    "minimax_m3_vl": {
        "text_config": {
            "dense_intermediate_size": 96,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "layer_types": [FULL, "minimax_m3_sparse", "minimax_m3_sparse"],
            "moe_layer_freq": None,
            "rotary_dim": 8,
            "index_block_size": 4,
            "index_topk_blocks": 2,
        }
    },
    "mistral4": {"rope_parameters": _LLAMA_4},
    "youtu_llm": {},
}

# Some layers see a window or a chunk only, or share what others have stored.
WINDOWS: dict[str, Config] = {
    "afm7": {"hidden_dim": 64, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "num_kv_reuse_layers": 2},
    "afmoe": {"layer_types": [SLIDING, SLIDING, FULL], "num_dense_layers": 1},
    "cohere2": {},
    "exaone4": {"sliding_window_pattern": "LLG", "layer_types": [SLIDING, SLIDING, FULL]},
    "exaone_moe": {"layer_types": [SLIDING, SLIDING, FULL], "is_moe_layer": [False, True, True]},
    "gemma3": {"text_config": {"model_type": "gemma3_text"}},
    "gemma3_text": {},
    "gemma3n": {
        "text_config": {
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCABULARY,
            "rope_local_base_freq": 10000.0,
            "final_logit_softcapping": 30.0,
            "layer_types": [SLIDING, FULL, SLIDING, FULL],
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
            "hidden_size_per_layer_input": 32,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 32,
        }
    },
    "gemma4": {
        "text_config": {
            "num_hidden_layers": 4,
            "sliding_window_pattern": 2,
            "layer_types": [SLIDING, FULL, SLIDING, FULL],
            "num_kv_shared_layers": 2,
            "global_head_dim": 32,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 32,
        }
    },
    "gemma4_text": {
        "num_kv_shared_layers": 0,
        "global_head_dim": 32,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 32,
        "enable_moe_block": True,
        "top_k_experts": 2,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    },
    "gpt_oss": {"layer_types": [SLIDING, FULL, SLIDING]},
    "iquestloopcoder": {"num_hidden_layers": 2, "loop_window_size": WINDOW},
    "laguna": {"layer_types": [FULL, SLIDING, SLIDING], "rope_parameters": _BOTH_ROPES},
    "llama": {"layer_types": [FULL, SLIDING, FULL]},
    "llama4": {
        "text_config": {
            "num_hidden_layers": 4,
            "attention_chunk_size": WINDOW,
            "floor_scale": 8,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 96,
            "num_experts_per_tok": 1,
            "model_type": "llama4_text",
        }
    },
    "mellum": {"layer_types": [FULL, SLIDING, SLIDING], "rope_parameters": _BOTH_ROPES},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 1],
        "moe_layer_freq": [0, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "sliding_window_size": WINDOW,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "swa_rope_theta": 1000.0,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 16,
        "swa_v_head_dim": 16,
    },
    "ministral3": {"layer_types": [FULL, SLIDING, FULL], "rope_parameters": _LLAMA_4},
    "mistral3": {
        "text_config": {
            "model_type": "ministral3",
            "layer_types": [FULL, SLIDING, FULL],
            "rope_parameters": _LLAMA_4,
        }
    },
    "muse_glimmer": {"layer_types": [SLIDING, SLIDING, FULL]},
    "muse_spark": {
        "text_config": {
            "post_norm_eps": 1e-8,
            "rope_parameters": _ROPE,
            "layer_rope_theta": [10000.0, 10000.0, 0.0],
            "layer_types": [SLIDING, SLIDING, FULL],
            "final_logit_softcapping": 20.0,
            "output_multiplier": 1.0,
            "moe_hidden_size": 32,
            "num_shared_experts": 0,
        }
    },
    "olmo3": {"layer_types": [SLIDING, SLIDING, FULL]},
    "plamo3": {},
    "spark2_5": {"layer_types": [SLIDING, SLIDING, FULL], "rope_parameters": _BOTH_ROPES},
    "step3p5": {
        "num_attention_groups": 2,
        "layer_types": [FULL, SLIDING, SLIDING],
        "attention_other_setting": {"num_attention_heads": 2, "num_attention_groups": 1},
        "moe_top_k": 2,
        "share_expert_dim": 32,
        "moe_layers_enum": "1,2",
    },
}
