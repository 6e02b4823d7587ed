"""Sizes of the tiny models, and the config.json of each family."""

from __future__ import annotations

from tests.heads.layouts.files import Config

HIDDEN, VOCABULARY = 64, 256
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
DENSE, EXPERT, EXPERTS = 128, 64, 4  # rows of a dense MLP, rows of an expert, number of experts
KEY_HEADS, VALUE_HEADS, LINEAR_DIM, KERNEL = 2, 4, 32, 4  # of linear attention
LAYER_TYPES = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]

_EXPERT_CONFIG: Config = {
    "moe_intermediate_size": EXPERT,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": EXPERT,
}


def model_config(family: str, tied: bool = False) -> Config:
    """Returns the config.json of a raw checkpoint."""
    return _qwen3_next_config(tied) if family == "qwen3_next" else _qwen3_5_config(family, tied)


def text_config(family: str) -> Config:
    """Returns the text model's part of the config.json of a Qwen3.5 family, which a drafter's repository repeats."""
    return _qwen3_5_text_config(family, tied=False)


def _qwen3_next_config(tied: bool) -> Config:
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "torch_dtype": "bfloat16",
        **_shared_config(tied),
        **_EXPERT_CONFIG,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.25,
        "rope_scaling": None,
        "rope_theta": 10000,
    }


def _qwen3_5_config(family: str, tied: bool) -> Config:
    name = "Qwen3_5ForConditionalGeneration" if family == "qwen3_5" else "Qwen3_5MoeForConditionalGeneration"
    return {
        "architectures": [name],
        "image_token_id": 5,
        "model_type": family,
        "text_config": _qwen3_5_text_config(family, tied),
        "tie_word_embeddings": tied,
        "video_token_id": 6,
        "vision_config": {"depth": 1, "hidden_size": 32, "model_type": family, "out_hidden_size": HIDDEN},
        "vision_end_token_id": 3,
        "vision_start_token_id": 2,
    }


def _qwen3_5_text_config(family: str, tied: bool) -> Config:
    config = _shared_config(tied)
    if family == "qwen3_5_moe":
        del config["intermediate_size"]
        config |= _EXPERT_CONFIG
    return config | {
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "mamba_ssm_dtype": "float32",
        "model_type": f"{family}_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000,
            "rope_type": "default",
        },
    }


def _shared_config(tied: bool) -> Config:
    """Returns the keys that all families have."""
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "full_attention_interval": len(LAYER_TYPES),
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": DENSE,
        "layer_types": LAYER_TYPES,
        "linear_conv_kernel_dim": KERNEL,
        "linear_key_head_dim": LINEAR_DIM,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_value_head_dim": LINEAR_DIM,
        "max_position_embeddings": 4096,
        "num_attention_heads": HEADS,
        "num_hidden_layers": len(LAYER_TYPES),
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
