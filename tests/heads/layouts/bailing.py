"""Layouts of Ling 2.0 and Ring 2.0 (Bailing), whose head is the layer after the target's last one.

mlx-lm's sanitize does not drop this layer: a raw checkpoint with a head loads only without `strict`.
"""

from __future__ import annotations

import numpy as np

from tests.heads.layouts.configs import DENSE, EXPERT, HEADS, HIDDEN, KV_HEADS, VOCABULARY
from tests.heads.layouts.files import Config, Tensors
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.mimo import LAYER_NORMS, PlainWeights, plain_layouts

_LAYERS, _SEED, _EXPERTS, _GROUPS = 2, 24, 8, 4
_PREFIX = f"model.layers.{_LAYERS}."
_HEAD_NORMS = ("enorm", "hnorm", "final_layernorm")
_BF16_NAMES = ("eh_proj.weight", ".gate.weight", ".gate.gate_proj.weight")


def _layer(random: PlainWeights, prefix: str, is_mixture: bool) -> Tensors:
    size = HIDDEN // HEADS
    tensors = {
        f"{prefix}attention.query_key_value.weight": random.matrix((HEADS + 2 * KV_HEADS) * size, HIDDEN, gain=2.0),
        f"{prefix}attention.dense.weight": random.matrix(HIDDEN, HEADS * size, gain=2.0),
        f"{prefix}attention.query_layernorm.weight": random.plain_norm(size),
        f"{prefix}attention.key_layernorm.weight": random.plain_norm(size),
    }
    tensors |= (
        random.mixture(f"{prefix}mlp", _EXPERTS, ".gate.expert_bias")
        if is_mixture
        else random.glu(f"{prefix}mlp", DENSE)
    )
    return tensors | random.norms(prefix, LAYER_NORMS)


def _target() -> Tensors:
    random = PlainWeights(_SEED)
    tensors = random.ends("model.word_embeddings")
    for layer in range(_LAYERS):
        tensors |= _layer(random, f"model.layers.{layer}.", is_mixture=layer > 0)
    return tensors


def _converted(raw: Tensors) -> Tensors:
    """Returns a target as mlx-lm's sanitize leaves it: experts in stacks, the router within `gate_proj`."""
    converted: Tensors = {}
    for name, tensor in raw.items():
        prefix, separator, rest = name.partition(".experts.")
        number, _, projection = rest.partition(".")
        if not separator:
            converted[name.replace(".mlp.gate.weight", ".mlp.gate.gate_proj.weight")] = tensor
        elif number == "0":
            experts = [raw[f"{prefix}.experts.{expert}.{projection}"] for expert in range(_EXPERTS)]
            converted[f"{prefix}.switch_mlp.{projection}"] = np.stack(experts)
    return converted


def _head() -> Tensors:
    random = PlainWeights(_SEED + 100)
    tensors = {f"{_PREFIX}eh_proj.weight": random.matrix(HIDDEN, 2 * HIDDEN)}
    return tensors | _layer(random, _PREFIX, is_mixture=True) | random.norms(_PREFIX, _HEAD_NORMS)


_CONFIG: Config = {
    "architectures": ["BailingMoeV2ForCausalLM"],
    "attention_dropout": 0.0,
    "embedding_dropout": 0.0,
    "eos_token_id": 1,
    "first_k_dense_replace": 1,
    "head_dim": HIDDEN // HEADS,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": DENSE,
    "max_position_embeddings": 4096,
    "max_window_layers": _LAYERS,
    "model_type": "bailing_moe",
    "moe_intermediate_size": EXPERT,
    "moe_router_enable_expert_bias": True,
    "moe_shared_expert_intermediate_size": EXPERT,
    "n_group": _GROUPS,
    "norm_head": False,
    "norm_softmax": False,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts": _EXPERTS,
    "num_experts_per_tok": 3,
    "num_hidden_layers": _LAYERS,
    "num_key_value_heads": KV_HEADS,
    "num_nextn_predict_layers": 1,
    "num_shared_experts": 1,
    "output_dropout": 0.0,
    "output_router_logits": False,
    "pad_token_id": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 600000,
    "routed_scaling_factor": 2.5,
    "router_dtype": "fp32",
    "score_function": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 2,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_cache": True,
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "use_rmsnorm": True,
    "vocab_size": VOCABULARY,
}

LAYOUTS: list[Layout] = plain_layouts(
    "bailing_moe", _CONFIG, _target(), _converted(_target()), _head(), _PREFIX, _BF16_NAMES
)
