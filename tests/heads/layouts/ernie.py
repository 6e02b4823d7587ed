"""Layouts of ERNIE-4.5 mixtures (21B-A3B-PT), whose head is in `model.mtp_block.0` and three tensors beside it.

The head has no final norm: it uses the target's. The embedding is tied, as in the 21B.
"""

from __future__ import annotations

from tests.heads.layouts.configs import DENSE, EXPERT, EXPERTS, HEADS, HIDDEN, KV_HEADS, VOCABULARY
from tests.heads.layouts.experts import stack_experts
from tests.heads.layouts.files import Config, Tensors
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.mimo import LAYER_NORMS, PlainWeights, plain_layouts

_PREFIX, _LAYERS, _SEED, _SHARED = "model.mtp_", 3, 23, 2
_BF16_NAMES = ("mtp_linear_proj.0.weight", ".gate.weight")


def _layer(random: PlainWeights, prefix: str, is_mixture: bool) -> Tensors:
    tensors = random.attention(f"{prefix}self_attn", HIDDEN // HEADS)
    tensors |= _mixture(random, f"{prefix}mlp") if is_mixture else random.glu(f"{prefix}mlp", DENSE)
    return tensors | random.norms(prefix, LAYER_NORMS)


def _mixture(random: PlainWeights, prefix: str) -> Tensors:
    tensors = {
        f"{prefix}.gate.weight": random.matrix(EXPERTS, HIDDEN),
        f"{prefix}.moe_statics.e_score_correction_bias": random.normal(1, EXPERTS, deviation=0.1).astype("float32"),
        **random.glu(f"{prefix}.shared_experts", _SHARED * EXPERT),
    }
    for number in range(EXPERTS):
        tensors |= random.glu(f"{prefix}.experts.{number}", EXPERT)
    return tensors


def _target() -> Tensors:
    random = PlainWeights(_SEED)
    tensors = random.ends(tied=True)
    for layer in range(_LAYERS):
        tensors |= _layer(random, f"model.layers.{layer}.", is_mixture=layer > 0)
    return tensors


def _converted(raw: Tensors) -> Tensors:
    """Returns a target as mlx-lm's sanitize leaves it: experts in stacks, the router's bias dropped."""
    return {name: tensor for name, tensor in stack_experts(raw).items() if not name.endswith("e_score_correction_bias")}


def _head() -> Tensors:
    random = PlainWeights(_SEED + 100)
    tensors = {f"{_PREFIX}linear_proj.0.weight": random.matrix(HIDDEN, 2 * HIDDEN)}
    tensors |= random.norms(_PREFIX, ("emb_norm.0", "hidden_norm.0"))
    return tensors | _layer(random, f"{_PREFIX}block.0.", is_mixture=False)


_CONFIG: Config = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": DENSE,
    "max_position_embeddings": 4096,
    "model_type": "ernie4_5_moe",
    "moe_capacity": [EXPERTS, EXPERTS, EXPERTS],
    "moe_gate": "topk",
    "moe_intermediate_size": EXPERT,
    "moe_k": 2,
    "moe_layer_end_index": _LAYERS - 1,
    "moe_layer_interval": 1,
    "moe_layer_start_index": 1,
    "moe_num_experts": EXPERTS,
    "moe_num_shared_experts": _SHARED,
    "moe_use_aux_free": True,
    "num_attention_heads": HEADS,
    "num_hidden_layers": _LAYERS,
    "num_key_value_heads": KV_HEADS,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_cache": False,
    "vocab_size": VOCABULARY,
}

LAYOUTS: list[Layout] = plain_layouts(
    "ernie4_5_moe", _CONFIG, _target(), _converted(_target()), _head(), _PREFIX, _BF16_NAMES
)
