"""Layouts of heads of other families, which draftd refuses: the names are as published, the weights any numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.heads.layouts.configs import HIDDEN, VOCABULARY
from tests.heads.layouts.files import TORCH, Config, write_model
from tests.heads.layouts.layout import Writer
from tests.heads.layouts.weights import RandomWeights

_LAYER_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
_ATTENTION = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
)
_QK_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
_GLU = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
_MLP = tuple(f"mlp.{name}" for name in _GLU)
_LAYER = (*_LAYER_NORMS, *_ATTENTION, *_MLP)
_MLA_LAYER = (
    *_LAYER_NORMS,
    "self_attn.q_a_proj.weight",
    "self_attn.q_a_layernorm.weight",
    "self_attn.q_b_proj.weight",
    "self_attn.kv_a_proj_with_mqa.weight",
    "self_attn.kv_a_layernorm.weight",
    "self_attn.kv_b_proj.weight",
    "self_attn.o_proj.weight",
)
_MOE = (
    "mlp.gate.weight",
    "mlp.gate.e_score_correction_bias",
    *(f"mlp.experts.{number}.{name}" for number in range(2) for name in _GLU),
    *(f"mlp.shared_experts.{name}" for name in _GLU),
)
_NEXTN = ("enorm.weight", "hnorm.weight", "eh_proj.weight")
_NEXTN_SHARED = ("embed_tokens.weight", "shared_head.norm.weight", "shared_head.head.weight")
_WITHOUT_TARGET = ("gemma4_assistant", "eagle3", "dflash")


def _under(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names)


def _nextn_config(architecture: str, layers: int = 1) -> Config:
    return {"architectures": [architecture], "num_nextn_predict_layers": layers}


_TARGET = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", *_under("model.layers.0", *_LAYER))

# The head's part of config.json, and the names of its tensors, by layout.
_HEADS: dict[str, tuple[Config, tuple[str, ...]]] = {
    "deepseek_v3": (
        _nextn_config("DeepseekV3ForCausalLM"),
        _under("model.layers.2", *_NEXTN, *_NEXTN_SHARED, *_MLA_LAYER, *_MOE),
    ),
    "glm4_moe": (
        _nextn_config("Glm4MoeForCausalLM"),
        _under("model.layers.2", *_NEXTN, *_NEXTN_SHARED, *_LAYER_NORMS, *_ATTENTION, *_MOE),
    ),
    "mimo": (
        _nextn_config("MiMoForCausalLM"),
        _under(
            "model.mtp_layers.0",
            *("token_layernorm.weight", "hidden_layernorm.weight", "input_proj.weight", "final_layernorm.weight"),
            *_LAYER,
            *("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
        ),
    ),
    "step3p5": (
        _nextn_config("Step3p5ForCausalLM", layers=3),
        tuple(
            name
            for layer in range(2, 5)
            for name in _under(
                f"model.layers.{layer}",
                *_NEXTN,
                *("transformer.shared_head.norm.weight", "transformer.shared_head.output.weight"),
                *(*_LAYER, *_QK_NORMS, "self_attn.g_proj.weight"),
            )
        ),
    ),
    "exaone_moe": (
        _nextn_config("ExaoneMoEForCausalLM"),
        (
            *("mtp.fc.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.norm.weight"),
            *_under("mtp.layers.0", *_LAYER, *_QK_NORMS),
        ),
    ),
    "ernie4_5_moe": (
        _nextn_config("Ernie4_5_MoeForCausalLM"),
        (
            *_under("model.mtp_block.0", *_LAYER),
            *("model.mtp_emb_norm.0.weight", "model.mtp_hidden_norm.0.weight", "model.mtp_linear_proj.0.weight"),
        ),
    ),
    "nemotron_h": (
        _nextn_config("NemotronHForCausalLM") | {"mtp_hybrid_override_pattern": "*E"},
        (
            *_under("mtp.layers.0", *_NEXTN, "norm.weight"),
            *_under("mtp.layers.0.mixer", "q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"),
            *_under("mtp.layers.1", "norm.weight", "final_layernorm.weight"),
            *_under(
                "mtp.layers.1.mixer",
                *("gate.weight", "gate.e_score_correction_bias"),
                *("experts.0.up_proj.weight", "experts.0.down_proj.weight"),
                *("shared_experts.up_proj.weight", "shared_experts.down_proj.weight"),
            ),
        ),
    ),
    "longcat_flash": (
        _nextn_config("LongcatFlashForCausalLM"),
        (
            *_under("model.mtp.layers.0", "enorm.m.weight", "hnorm.m.weight", "eh_proj.weight", *_MLA_LAYER),
            *_under("model.mtp.layers.0.transformer_layer.mlp", *_GLU),
            *("model.mtp.embed_tokens.weight", "model.mtp.norm.weight"),
        ),
    ),
    "bailing_moe": (
        _nextn_config("BailingMoeV2ForCausalLM"),
        _under(
            "model.layers.2",
            *(*_NEXTN, "final_layernorm.weight", *_LAYER_NORMS),
            *("attention.query_key_value.weight", "attention.dense.weight"),
            *("attention.query_layernorm.weight", "attention.key_layernorm.weight"),
            *_MOE,
        ),
    ),
    "deepseek_v4": (
        _nextn_config("DeepseekV4ForCausalLM"),
        _under(
            "mtp.0",
            *("enorm.weight", "hnorm.weight", "e_proj.weight", "h_proj.weight", "norm.weight"),
            *("attn.attn_sink", "attn_norm.weight", "ffn.gate.weight", "ffn_norm.weight"),
            *(f"hc_{place}_{part}" for place in ("attn", "ffn", "head") for part in ("base", "fn", "scale")),
            *(f"ffn.experts.0.w{number}.weight" for number in (1, 2, 3)),
        ),
    ),
    # Qwen3.8-Flash-Next, whose names begin as Qwen3.5's do
    "qwen4_exp": (
        {"architectures": ["Qwen4ExpForConditionalGeneration"], "mtp_num_hidden_layers": 1},
        (
            *("mtp.fc_embedding.weight", "mtp.fc_hidden.weight"),
            *("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"),
            *_under(
                "mtp.hyper_connection_mixer",
                *("hc_norm.weight", "input_mix_weight_down.weight", "input_mix_weight_up.weight"),
            ),
            *_under("mtp.layers.0", *_ATTENTION, *_QK_NORMS),
            *_under("mtp.layers.0", "mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
        ),
    ),
    "gemma4_assistant": (
        {"architectures": ["Gemma4AssistantForCausalLM"], "backbone_hidden_size": 64, "block_size": 4},
        (
            *("pre_projection.weight", "post_projection.weight"),
            *(
                name
                for layer in range(4)
                for name in _under(
                    f"model.layers.{layer}",
                    *_LAYER_NORMS,
                    *("self_attn.q_proj.weight", "self_attn.q_norm.weight", "self_attn.o_proj.weight"),
                    *_MLP,
                )
            ),
        ),
    ),
    "eagle3": (
        {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": 32},
        (
            *("fc.weight", "d2t", "t2d", "norm.weight", "lm_head.weight"),
            *_under("midlayer", "hidden_norm.weight", *_LAYER),
        ),
    ),
    "dflash": (
        {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": 16,
            "dflash_config": {"mask_token_id": 255, "target_layer_ids": [0, 1]},
        },
        (
            *("fc.weight", "hidden_norm.weight", "norm.weight"),
            *_under("layers.0", *_LAYER, *_QK_NORMS),
        ),
    ),
}


def _writer_of(name: str) -> Writer:
    def write(folder: Path) -> None:
        head_config, names = _HEADS[name]
        config: Config = {
            "model_type": name,
            "hidden_size": HIDDEN,
            "num_hidden_layers": 2,
            "vocab_size": VOCABULARY,
            **head_config,
        }
        if name not in _WITHOUT_TARGET:
            names = (*_TARGET, *names)
        random = RandomWeights(99)
        tensors = {
            tensor: random.matrix(8) if "norm" in tensor or "bias" in tensor else random.matrix(8, 8)
            for tensor in names
        }
        for integers in {"d2t", "t2d"} & tensors.keys():
            tensors[integers] = np.arange(8, dtype=np.int64)
        write_model(folder, config, tensors, TORCH)

    return write


REFUSED: list[tuple[str, Writer]] = [(name, _writer_of(name)) for name in _HEADS]
