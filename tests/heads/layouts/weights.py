"""Makes random weights of targets and heads, with the vendor's names and values."""

from __future__ import annotations

import math

import numpy as np

from tests.heads.layouts.configs import (
    DENSE,
    EXPERT,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KERNEL,
    KEY_HEADS,
    KV_HEADS,
    LAYER_TYPES,
    LINEAR_DIM,
    VALUE_HEADS,
    VOCABULARY,
)
from tests.heads.layouts.experts import fuse_experts
from tests.heads.layouts.files import Array, Tensors, bf16, float64

_SEED = 20260922
_TARGET_SEEDS = {"qwen3_next": 1, "qwen3_5": 2, "qwen3_5_moe": 3}
_HEAD_SEEDS = {"qwen3_next": 11, "qwen3_5": 12, "qwen3_5_moe": 13}
_LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")
_HEAD_NORMS = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
# Means of w in published heads, from MTPLX. The final norm's 1.25 looks as if the 1 had already been added.
_NORM_MEANS = {
    "q_norm": 0.79,
    "k_norm": 0.78,
    "input_layernorm": 0.04,
    "post_attention_layernorm": 0.21,
    "pre_fc_norm_hidden": -0.16,
    "pre_fc_norm_embedding": -0.46,
    "norm": 1.25,
}


class RandomWeights:
    """Draws weights of the size that training gives them."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng([_SEED, seed])

    def normal(self, *shape: int, deviation: float, mean: float = 0.0) -> Array:
        return mean + deviation * self._generator.standard_normal(shape)

    def matrix(self, *shape: int, gain: float = 1.0) -> Array:
        return bf16(self.normal(*shape, deviation=gain / math.sqrt(shape[-1])))

    def norm(self, size: int, name: str) -> Array:
        return bf16(self.normal(size, deviation=0.15, mean=_NORM_MEANS[name]))


def random_target(family: str, tied: bool = False) -> Tensors:
    """Returns a raw target, without `lm_head` if it is tied to the embedding."""
    random = RandomWeights(_TARGET_SEEDS[family])
    model = "model" if family == "qwen3_next" else "model.language_model"
    tensors = {f"{model}.embed_tokens.weight": random.matrix(VOCABULARY, HIDDEN, gain=2.0)}
    for layer, kind in enumerate(LAYER_TYPES):
        tensors |= _layer(random, f"{model}.layers.{layer}", family, kind)
    tensors |= _norms(random, model, ("norm",))
    lm_head = random.matrix(VOCABULARY, HIDDEN, gain=2.0)
    if not tied:
        tensors["lm_head.weight"] = lm_head
    if family != "qwen3_next":
        tensors["model.visual.patch_embed.proj.bias"] = random.matrix(32)
    return tensors


def random_head(family: str) -> Tensors:
    """Returns a raw head, whose names begin with `mtp.`."""
    random = RandomWeights(_HEAD_SEEDS[family])
    tensors = {"mtp.fc.weight": random.matrix(HIDDEN, 2 * HIDDEN)}
    tensors |= _layer(random, "mtp.layers.0", family, "full_attention")
    return tensors | _norms(random, "mtp", _HEAD_NORMS)


def _layer(random: RandomWeights, prefix: str, family: str, kind: str) -> Tensors:
    is_full = kind == "full_attention"
    tensors = _attention(random, prefix) if is_full else _linear_attention(random, prefix, family)
    tensors |= _mlp(random, prefix, family)
    return tensors | _norms(random, prefix, _LAYER_NORMS)


def _norms(random: RandomWeights, prefix: str, names: tuple[str, ...]) -> Tensors:
    return {f"{prefix}.{name}.weight": random.norm(HIDDEN, name) for name in names}


def _attention(random: RandomWeights, prefix: str) -> Tensors:
    return {
        f"{prefix}.self_attn.q_proj.weight": random.matrix(2 * HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.self_attn.k_proj.weight": random.matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.self_attn.v_proj.weight": random.matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.self_attn.o_proj.weight": random.matrix(HIDDEN, HEADS * HEAD_DIM, gain=2.0),
        f"{prefix}.self_attn.q_norm.weight": random.norm(HEAD_DIM, "q_norm"),
        f"{prefix}.self_attn.k_norm.weight": random.norm(HEAD_DIM, "k_norm"),
    }


def _linear_attention(random: RandomWeights, prefix: str, family: str) -> Tensors:
    keys, values = KEY_HEADS * LINEAR_DIM, VALUE_HEADS * LINEAR_DIM
    prefix = f"{prefix}.linear_attn"
    if family == "qwen3_next":
        projections = {
            f"{prefix}.in_proj_qkvz.weight": random.matrix(2 * keys + 2 * values, HIDDEN),
            f"{prefix}.in_proj_ba.weight": random.matrix(2 * VALUE_HEADS, HIDDEN),
        }
    else:
        projections = {
            f"{prefix}.in_proj_qkv.weight": random.matrix(2 * keys + values, HIDDEN),
            f"{prefix}.in_proj_z.weight": random.matrix(values, HIDDEN),
            f"{prefix}.in_proj_b.weight": random.matrix(VALUE_HEADS, HIDDEN),
            f"{prefix}.in_proj_a.weight": random.matrix(VALUE_HEADS, HIDDEN),
        }
    encode = bf16 if family == "qwen3_next" else _bf16_as_float32
    return projections | {
        f"{prefix}.conv1d.weight": random.matrix(2 * keys + values, 1, KERNEL),
        f"{prefix}.A_log": encode(random.normal(VALUE_HEADS, deviation=0.3)),
        f"{prefix}.dt_bias": bf16(random.normal(VALUE_HEADS, deviation=0.3)),
        f"{prefix}.norm.weight": encode(random.normal(LINEAR_DIM, deviation=0.1, mean=1.0)),
        f"{prefix}.out_proj.weight": random.matrix(HIDDEN, values, gain=2.0),
    }


def _bf16_as_float32(values: Array) -> Array:
    """Returns `values` as fp32 that a conversion to bf16 does not change."""
    return float64(bf16(values)).astype(np.float32)


def _mlp(random: RandomWeights, prefix: str, family: str) -> Tensors:
    prefix = f"{prefix}.mlp"
    if family == "qwen3_5":
        return _glu(random, prefix, DENSE)
    tensors = {
        f"{prefix}.gate.weight": random.matrix(EXPERTS, HIDDEN),
        **_glu(random, f"{prefix}.shared_expert", EXPERT),
        f"{prefix}.shared_expert_gate.weight": random.matrix(1, HIDDEN),
    }
    experts: Tensors = {}
    for number in range(EXPERTS):
        experts |= _glu(random, f"{prefix}.experts.{number}", EXPERT)
    return tensors | (experts if family == "qwen3_next" else fuse_experts(experts))


def _glu(random: RandomWeights, prefix: str, inner: int) -> Tensors:
    return {
        f"{prefix}.gate_proj.weight": random.matrix(inner, HIDDEN),
        f"{prefix}.up_proj.weight": random.matrix(inner, HIDDEN),
        f"{prefix}.down_proj.weight": random.matrix(HIDDEN, inner, gain=2.0),
    }
