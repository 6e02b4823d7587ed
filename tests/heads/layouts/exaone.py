"""Layouts of EXAONE-MoE (K-EXAONE-236B-A23B), whose head has Qwen3-Next's names in `mtp`."""

from __future__ import annotations

from tests.heads.layouts.configs import DENSE, EXPERT, EXPERTS, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, VOCABULARY
from tests.heads.layouts.experts import stack_experts
from tests.heads.layouts.files import Config, Tensors
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.mimo import LAYER_NORMS, PlainWeights, plain_layouts
from tests.heads.layouts.quantization import USUALLY_BF16

_PREFIX, _SEED, _WINDOW = "mtp.", 22, 8
_LAYER_TYPES = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
_HEAD_NORMS = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")


def _layer(random: PlainWeights, prefix: str, is_mixture: bool) -> Tensors:
    tensors = random.attention(f"{prefix}self_attn", HEAD_DIM)
    for name in ("q_norm", "k_norm"):
        tensors[f"{prefix}self_attn.{name}.weight"] = random.plain_norm(HEAD_DIM)
    tensors |= (
        random.mixture(f"{prefix}mlp", EXPERTS, ".e_score_correction_bias")
        if is_mixture
        else random.glu(f"{prefix}mlp", DENSE)
    )
    return tensors | random.norms(prefix, LAYER_NORMS)


def _target() -> Tensors:
    random = PlainWeights(_SEED)
    tensors = random.ends()
    for layer in range(len(_LAYER_TYPES)):
        tensors |= _layer(random, f"model.layers.{layer}.", is_mixture=layer > 0)
    return tensors


def _converted(raw: Tensors) -> Tensors:
    """Returns a target as mlx-lm's sanitize leaves it: experts in stacks, the router's bias within the router."""
    bias = ".mlp.e_score_correction_bias"
    return {
        name.replace(bias, ".mlp.gate.e_score_correction_bias"): tensor for name, tensor in stack_experts(raw).items()
    }


def _head() -> Tensors:
    random = PlainWeights(_SEED + 100)
    tensors = {f"{_PREFIX}fc.weight": random.matrix(HIDDEN, 2 * HIDDEN)}
    return tensors | _layer(random, f"{_PREFIX}layers.0.", is_mixture=False) | random.norms(_PREFIX, _HEAD_NORMS)


_CONFIG: Config = {
    "architectures": ["ExaoneMoEForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "dtype": "bfloat16",
    "eos_token_id": 1,
    "first_k_dense_replace": 1,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": DENSE,
    "is_moe_layer": [layer > 0 for layer in range(len(_LAYER_TYPES))],
    "layer_types": _LAYER_TYPES,
    "max_position_embeddings": 4096,
    "mlp_layer_types": ["sparse" if layer > 0 else "dense" for layer in range(len(_LAYER_TYPES))],
    "model_type": "exaone_moe",
    "moe_intermediate_size": EXPERT,
    "mtp_layer_types": ["full_attention"],
    "mtp_sliding_windows": [0],
    "n_group": 1,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "num_hidden_layers": len(_LAYER_TYPES),
    "num_key_value_heads": KV_HEADS,
    "num_nextn_predict_layers": 1,
    "num_shared_experts": 1,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "sliding_window": _WINDOW,
    "sliding_window_pattern": "LLLG",
    "sliding_windows": [_WINDOW if kind == "sliding_attention" else 0 for kind in _LAYER_TYPES],
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "use_cache": True,
    "vocab_size": VOCABULARY,
}

LAYOUTS: list[Layout] = plain_layouts(
    "exaone_moe", _CONFIG, _target(), _converted(_target()), _head(), _PREFIX, USUALLY_BF16
)
