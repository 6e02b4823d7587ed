"""Layouts of EAGLE heads: a repository in `drafter` beside a Llama target in `target`.

EAGLE-3 and 3.1 are published in two forms: of speculators (`layers.0`, flags in config.json, the layer's settings under
`transformer_layer_config`) and of SpecForge and yuhuili (`midlayer`, LlamaForCausalLMEagle3). EAGLE-1 and 2 have one
form. Norms hold the factor itself. A drafter's repository is not renamed for MLX: mlx-vlm loads the vendor's names.
"""

from __future__ import annotations

from tests.heads.layouts.configs import HEADS, HIDDEN, KV_HEADS, VOCABULARY
from tests.heads.layouts.dflash import (
    DEEP_LAYERS,
    DRAFT_VOCABULARY,
    ROPE_THETA,
    SIZE,
    WIDE_SIZE,
    draft_vocabulary,
    drafter_layout,
    llama_layer,
    random_norm,
    random_target,
    speculators_config,
    target_config,
)
from tests.heads.layouts.files import Config, Tensors, bf16
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.quantization import USUALLY_BF16
from tests.heads.layouts.weights import RandomWeights

_LLAMA3_ROPE: Config = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}


def _speculators_eagle3_config(layer_config: Config, taps: tuple[int, ...] | None, **flags: object) -> Config:
    layer = target_config(1) | {"head_dim": SIZE} | layer_config
    if "rope_parameters" in layer:  # of transformers 5, in place of the older keys
        layer = _without(layer, "rope_theta", "rope_scaling")
    return speculators_config(
        "eagle3",
        layer,
        architectures=["Eagle3DraftModel"],
        eagle_aux_hidden_state_layer_ids=list(taps) if taps else None,
        embed_requires_grad=False,
        **{"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False, **flags},
    )


def _specforge_config(ids: tuple[int, ...] | None, **more: object) -> Config:
    """Returns the config.json of SpecForge, whose ids name outputs: layer id's is the input of layer id + 1."""
    config = target_config(1) | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFT_VOCABULARY}
    if ids:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True}
    return config | {"pad_token_id": 0, "rms_norm_eps": 1e-6} | more


def _without(config: Config, *keys: str) -> Config:
    return {key: value for key, value in config.items() if key not in keys}


def _eagle3_head(
    seed: int,
    *,
    layers: int = 1,
    size: int = SIZE,
    has_qk_norms: bool = False,
    has_embedding: bool = False,
    has_full_vocabulary: bool = False,
    norms: dict[str, int] | None = None,
) -> Tensors:
    """Returns a head with the names of speculators; `norms` are those before fc, by name, and their sizes."""
    random = RandomWeights(seed)
    first = llama_layer(random, "layers.0", entering=2 * HIDDEN, size=size, has_qk_norms=has_qk_norms)
    tensors = first | {
        "layers.0.hidden_norm.weight": random_norm(random),
        "fc.weight": random.matrix(HIDDEN, 3 * HIDDEN),
        "norm.weight": random_norm(random),
        "lm_head.weight": random.matrix(VOCABULARY if has_full_vocabulary else DRAFT_VOCABULARY, HIDDEN, gain=2.0),
    }
    for layer in range(1, layers):
        tensors |= llama_layer(random, f"layers.{layer}", size=size, has_qk_norms=has_qk_norms)
    tensors |= {f"{name}.weight": random_norm(random, width) for name, width in (norms or {}).items()}
    if has_embedding:
        tensors["embed_tokens.weight"] = random.matrix(VOCABULARY, HIDDEN, gain=2.0)
    return tensors if has_full_vocabulary else tensors | draft_vocabulary(seed)


def _with_midlayer(head: Tensors) -> Tensors:
    """Returns a head with SpecForge's names."""
    return {name.replace("layers.0.", "midlayer."): tensor for name, tensor in head.items()}


def _eagle1_head(seed: int, has_biases: bool) -> Tensors:
    """Returns a head of EAGLE-1 or 2, whose embedding is a copy of the target's."""
    random = RandomWeights(seed)
    tensors = llama_layer(random, "layers.0") | {"fc.weight": random.matrix(HIDDEN, 2 * HIDDEN)}
    del tensors["layers.0.input_layernorm.weight"]
    if has_biases:
        rows = {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE}
        biases = {"fc.bias": HIDDEN, **{f"layers.0.self_attn.{name}_proj.bias": size for name, size in rows.items()}}
        tensors |= {name: bf16(random.normal(size, deviation=0.3)) for name, size in biases.items()}
    return tensors | {"embed_tokens.weight": random_target()["model.embed_tokens.weight"]}


_FC_NORMS = {f"fc_norm.{tap}": HIDDEN for tap in range(3)}
_SPECFORGE_HEAD = _with_midlayer(_eagle3_head(57, size=WIDE_SIZE, has_embedding=True))
_SPECFORGE_CONFIG = _specforge_config((0, 2, 4), head_dim=WIDE_SIZE)
_EAGLE1_CONFIG = target_config(1) | {"bias": False, "pad_token_id": 0}
_DEFAULT_TAPS = (2, DEEP_LAYERS // 2, DEEP_LAYERS - 3)
_SLIDING = {
    "layer_types": ["sliding_attention", "full_attention"],
    "num_hidden_layers": 2,
    "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
    "sliding_window": 8,
    "use_sliding_window": True,
}

LAYOUTS: list[Layout] = [
    drafter_layout(
        "eagle3_speculators",
        _speculators_eagle3_config({"rope_scaling": _LLAMA3_ROPE}, (1, 3, 5), norm_before_residual=True),
        _eagle3_head(51, has_embedding=True),
        (1, 3, 5),
    ),
    drafter_layout(
        "eagle3_speculators_default_taps",
        _speculators_eagle3_config({}, None),
        _eagle3_head(52),
        _DEFAULT_TAPS,
        layers=DEEP_LAYERS,
    ),
    drafter_layout(
        "eagle3_speculators_qwen3",
        _speculators_eagle3_config({"model_type": "qwen3", "head_dim": WIDE_SIZE, "num_hidden_layers": 2}, (2, 3, 4)),
        _eagle3_head(53, layers=2, size=WIDE_SIZE, has_qk_norms=True),
        (2, 3, 4),
    ),
    # the first and the last input that there is; the whole vocabulary; a window
    drafter_layout(
        "eagle3_1_speculators",
        _speculators_eagle3_config(
            _SLIDING, (0, 3, 6), norm_before_residual=True, norm_before_fc=True, norm_output=True
        )
        | {"draft_vocab_size": VOCABULARY},
        _eagle3_head(54, layers=2, has_full_vocabulary=True, norms={"input_norm": 3 * HIDDEN}),
        (0, 3, 6),
    ),
    drafter_layout(
        "eagle3_1_speculators_fc_norm",
        _speculators_eagle3_config({}, (1, 3, 5), fc_norm=True, norm_output=True),
        _eagle3_head(55, norms=_FC_NORMS),
        (1, 3, 5),
    ),
    # no rope_theta, which is 10,000 then, and no ids
    drafter_layout(
        "eagle3_yuhuili",
        _without(_specforge_config(None), "rope_theta", "rope_scaling"),
        _with_midlayer(_eagle3_head(56)),
        _DEFAULT_TAPS,
        layers=DEEP_LAYERS,
    ),
    drafter_layout("eagle3_specforge", _SPECFORGE_CONFIG, _SPECFORGE_HEAD, (1, 3, 5)),
    drafter_layout(
        "eagle3_1_specforge",
        _specforge_config((0, 2, 4), fc_norm=True, norm_output=True),
        _with_midlayer(_eagle3_head(58, norms=_FC_NORMS)),
        (1, 3, 5),
    ),
    drafter_layout("eagle3_specforge_mlx", _SPECFORGE_CONFIG, _SPECFORGE_HEAD, (1, 3, 5), converted=True),
    drafter_layout(
        "eagle3_specforge_mlx_4bit",
        _SPECFORGE_CONFIG,
        _SPECFORGE_HEAD,
        (1, 3, 5),
        converted=True,
        bf16_names=USUALLY_BF16,
    ),
    drafter_layout("eagle1", _EAGLE1_CONFIG, _eagle1_head(61, has_biases=False), ()),
    # fc has a bias unless config.json says "bias": false; qkv_bias is that of Qwen2's heads
    drafter_layout(
        "eagle2_biases",
        _without(_EAGLE1_CONFIG, "bias") | {"qkv_bias": True},
        _eagle1_head(62, has_biases=True),
        (),
    ),
    drafter_layout("eagle1_mlx", _EAGLE1_CONFIG, _eagle1_head(61, has_biases=False), (), converted=True),
]
