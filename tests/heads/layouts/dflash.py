"""Layouts of DFlash heads, and the target and the repositories that they share with EAGLE's layouts.

z-lab publishes DFlashDraftModel, without embedding and output layer; speculators adds both, and a smaller vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.heads.layouts.configs import DENSE, HEADS, HIDDEN, KV_HEADS, VOCABULARY
from tests.heads.layouts.files import MLX, TORCH, Array, Config, Tensors, bf16, write_model
from tests.heads.layouts.layout import DRAFTER, Layout, Writer
from tests.heads.layouts.quantization import QUANTIZATION_CONFIG, quantize
from tests.heads.layouts.weights import RandomWeights

LAYERS, DEEP_LAYERS = 6, 8  # of the targets; with 6 the default taps would not be three different layers
SIZE, WIDE_SIZE = 16, 32  # of an attention head: hidden / heads, and another
DRAFT_VOCABULARY = 96
_BLOCK, _MASK, _DRAFT_LAYERS = 5, 250, 2
_TARGET_SEED = 40
ROPE_THETA = 500000.0


def target_config(layers: int = LAYERS) -> Config:
    """Returns the target's config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": DENSE,
        "max_position_embeddings": 4096,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": layers,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }


def random_target(layers: int = LAYERS) -> Tensors:
    """Returns the target, whose names and values mlx-lm's conversion keeps."""
    random = RandomWeights(_TARGET_SEED)
    tensors = {
        "model.embed_tokens.weight": random.matrix(VOCABULARY, HIDDEN, gain=2.0),
        "lm_head.weight": random.matrix(VOCABULARY, HIDDEN, gain=2.0),
        "model.norm.weight": random_norm(random),
    }
    for layer in range(layers):
        tensors |= llama_layer(random, f"model.layers.{layer}")
    return tensors


def llama_layer(
    random: RandomWeights, prefix: str, *, entering: int = HIDDEN, size: int = SIZE, has_qk_norms: bool = False
) -> Tensors:
    """Returns a layer whose attention takes `entering` values a token and has heads of `size`."""
    tensors = {
        f"{prefix}.self_attn.q_proj.weight": random.matrix(HEADS * size, entering),
        f"{prefix}.self_attn.k_proj.weight": random.matrix(KV_HEADS * size, entering),
        f"{prefix}.self_attn.v_proj.weight": random.matrix(KV_HEADS * size, entering),
        f"{prefix}.self_attn.o_proj.weight": random.matrix(HIDDEN, HEADS * size, gain=2.0),
        f"{prefix}.mlp.gate_proj.weight": random.matrix(DENSE, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": random.matrix(DENSE, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": random.matrix(HIDDEN, DENSE, gain=2.0),
        f"{prefix}.input_layernorm.weight": random_norm(random),
        f"{prefix}.post_attention_layernorm.weight": random_norm(random),
    }
    if has_qk_norms:
        tensors |= {f"{prefix}.self_attn.{name}_norm.weight": random_norm(random, size) for name in "qk"}
    return tensors


def random_norm(random: RandomWeights, size: int = HIDDEN) -> Array:
    """Returns the factors of a norm."""
    return bf16(random.normal(size, deviation=0.15, mean=1.0))


def draft_vocabulary(seed: int) -> Tensors:
    """Returns d2t, which is added to a draft id to give a target id, and t2d, the mask of the target's ids."""
    ids = np.sort(np.random.default_rng(seed).choice(VOCABULARY, DRAFT_VOCABULARY, replace=False))
    return {
        "d2t": (ids - np.arange(DRAFT_VOCABULARY)).astype(np.int64),
        "t2d": np.isin(np.arange(VOCABULARY), ids),
    }


def drafter_layout(
    name: str,
    config: Config,
    head: Tensors,
    taps: tuple[int, ...],
    *,
    layers: int = LAYERS,
    converted: bool = False,
    bf16_names: tuple[str, ...] | None = None,
) -> Layout:
    """Returns the layout of a head and its target, which is converted for MLX if `converted`.

    If `bf16_names` are given, target and head are in 4 bit, but for the head's matrices whose names end so.
    """
    quantized = bf16_names is not None
    target = "llama" if layers == LAYERS else "llama_deep"
    return Layout(
        name,
        f"{target}_4bit" if quantized else target,
        DRAFTER,
        _drafter_writer(config, head, layers, converted, bf16_names),
        taps,
    )


def _drafter_writer(
    config: Config, head: Tensors, layers: int, converted: bool, bf16_names: tuple[str, ...] | None
) -> Writer:
    def write(folder: Path) -> None:
        target, head_tensors, quantization = random_target(layers), head, Config()
        if bf16_names is not None:
            target, head_tensors = quantize(target), quantize(head, bf16_names)
            quantization = QUANTIZATION_CONFIG
        write_model(folder / "target", target_config(layers) | quantization, target, MLX if converted else TORCH)
        write_model(folder / "drafter", config | quantization, head_tensors, MLX if quantization else TORCH)

    return write


def speculators_config(algorithm: str, layer_config: Config, **more: object) -> Config:
    """Returns the config.json of a head as speculators writes it, which has no model_type."""
    proposal = {
        "accept_tolerance": 0.0,
        "proposal_type": "greedy",
        "speculative_tokens": 3,
        "verifier_accept_k": 1,
    }
    return {
        "draft_vocab_size": DRAFT_VOCABULARY,
        "dtype": "bfloat16",
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "draftd/tiny-llama"},
        },
        "speculators_model_type": algorithm,
        "speculators_version": "0.6.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer_config,
        **more,
    }


def _dflash_config(ids: tuple[int, ...], **more: object) -> Config:
    """Returns z-lab's config.json, whose ids name outputs: layer id's is the input of layer id + 1."""
    config = target_config(_DRAFT_LAYERS) | {
        "architectures": ["DFlashDraftModel"],
        "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": _BLOCK,
        "dflash_config": {"mask_token_id": _MASK, "target_layer_ids": list(ids)},
        "head_dim": WIDE_SIZE,
        "layer_types": ["full_attention"] * _DRAFT_LAYERS,
        "max_window_layers": _DRAFT_LAYERS,
        "model_type": "qwen3",
        "num_target_layers": LAYERS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    return config | more


def _sliding_config(ids: tuple[int, ...]) -> Config:
    """Returns the config.json of heads for Qwen3.5 and later: windows, and the block's size in dflash_config."""
    config = _dflash_config(
        ids,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=8,
        use_sliding_window=True,
        dflash_config={"block_size": _BLOCK, "mask_token_id": _MASK, "target_layer_ids": list(ids)},
    )
    del config["block_size"]
    return config


def _speculators_dflash_config(taps: tuple[int, ...]) -> Config:
    """Returns the config.json of speculators, whose ids name inputs."""
    layer_keys = target_config().keys() | {"attention_dropout", "head_dim", "layer_types", "max_window_layers"}
    return speculators_config(
        "dflash",
        {key: value for key, value in _dflash_config(()).items() if key in layer_keys - {"architectures"}},
        architectures=["DFlashDraftModel"],
        aux_hidden_state_layer_ids=list(taps),
        block_size=_BLOCK,
        mask_token_id=_MASK,
        sample_from_anchor=False,
        sliding_window_non_causal=False,
    )


def _dflash_head(seed: int, is_of_speculators: bool = False) -> Tensors:
    random = RandomWeights(seed)
    tensors = {
        "fc.weight": random.matrix(HIDDEN, 3 * HIDDEN),
        "hidden_norm.weight": random_norm(random),
        "norm.weight": random_norm(random),
    }
    for layer in range(_DRAFT_LAYERS):
        tensors |= llama_layer(random, f"layers.{layer}", size=WIDE_SIZE, has_qk_norms=True)
    if is_of_speculators:
        tensors |= draft_vocabulary(seed) | {
            "embed_tokens.weight": random_target()["model.embed_tokens.weight"],
            "lm_head.weight": random.matrix(DRAFT_VOCABULARY, HIDDEN, gain=2.0),
        }
    return tensors


LAYOUTS: list[Layout] = [
    drafter_layout("dflash", _dflash_config((0, 2, 4)), _dflash_head(71), (1, 3, 5)),
    drafter_layout("dflash_sliding", _sliding_config((1, 2, 4)), _dflash_head(72), (2, 3, 5)),
    drafter_layout(
        "dflash_speculators",
        _speculators_dflash_config((1, 3, 5)),
        _dflash_head(73, is_of_speculators=True),
        (1, 3, 5),
    ),
    drafter_layout("dflash_mlx", _dflash_config((0, 2, 4)), _dflash_head(71), (1, 3, 5), converted=True),
    drafter_layout(
        "dflash_mlx_4bit", _dflash_config((0, 2, 4)), _dflash_head(71), (1, 3, 5), converted=True, bf16_names=()
    ),
]
