"""Layouts of heads of other families, which draftd refuses: the names are as published, the weights any numbers."""

from __future__ import annotations

from pathlib import Path

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
_NEXTN = ("enorm.weight", "hnorm.weight", "eh_proj.weight")
_WITHOUT_TARGET = ("gemma4_assistant",)


def _under(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names)


def _nextn_config(architecture: str, layers: int = 1) -> Config:
    return {"architectures": [architecture], "num_nextn_predict_layers": layers}


_TARGET = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", *_under("model.layers.0", *_LAYER))

# The head's part of config.json, and the names of its tensors, by layout.
_HEADS: dict[str, tuple[Config, tuple[str, ...]]] = {
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
        write_model(folder, config, tensors, TORCH)

    return write


REFUSED: list[tuple[str, Writer]] = [(name, _writer_of(name)) for name in _HEADS]
