"""Keys of config.json under the names that mlx-lm's architectures read: transformers writes some of them differently,
or omits them."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import ModuleType
from typing import Any, TypeGuard

FULL, SLIDING = "full_attention", "sliding_attention"
PERIODS = (
    "sliding_window_pattern",
    "full_attention_interval",
)  # the number of layers from one that sees the whole text to the next
_GRANITE_LAYERS = {"linear_attention": "mamba", FULL: "attention"}  # names of version 5: names that mlx-lm reads
# Values that transformers has in its code, and mlx-lm needs in the configuration.
_IN_CODE: Mapping[str, Mapping[str, object]] = {
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "glm_moe_dsa": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    "longcat_flash": {
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "mimo_v2_flash": {
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "n_shared_experts": None,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
    },
    "solar_open": {"first_k_dense_replace": 0, "intermediate_size": 0},  # in transformers all layers have experts
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """mlx-lm's modules for a model, and the names of their models' arguments. `required`: those without a default."""

    modules: set[str]
    arguments: set[str]
    required: set[str]


def is_length(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def head_size(part: Mapping[str, Any]) -> int | None:
    size, heads, width = part.get("head_dim"), part.get("num_attention_heads"), part.get("hidden_size")
    if is_length(size):
        return size
    return width // heads if is_length(heads) and is_length(width) else None


def rename(part: dict[str, Any], config: Mapping[str, Any], architecture: Architecture) -> None:
    """Adds keys under the names that mlx-lm's architecture reads, where transformers 4 or 5 uses another name or omits
    the key."""
    for name, other in _other_names(part).items():
        if name in architecture.arguments and name not in part and part.get(other) is not None:
            part[name] = part[other]
    substitutes: dict[str, Any] = {
        "head_dim": head_size(part),
        "n_ctx": part.get("n_positions"),
        "num_experts": part.get("num_local_experts"),
        "partial_rotary_factor": 1.0,
        "rope_theta": 10000.0,  # omitted by version 5 if no layer rotates
        "norm_topk_prob": True,
        "tie_word_embeddings": config.get("tie_word_embeddings", True),  # omitted by version 4 if true
        "block_dim": part.get("hidden_size"),
    }
    for module in architecture.modules & _IN_CODE.keys():
        part |= {name: value for name, value in _IN_CODE[module].items() if name not in part}
    if "mimo_v2_flash" in architecture.modules:
        substitutes |= _mimo(part)
    if "kimi_linear" in architecture.modules and "linear_attn_config" not in part:
        part |= _kimi(part)
    if isinstance(experts := part.get("mlp_layer_types"), list):
        substitutes["is_moe_layer"] = [one == "sparse" for one in experts]
    if "mamba2" in architecture.modules and is_length(heads := part.get("num_heads")):
        substitutes["intermediate_size"] = heads * (head_size(part) or 0)
    for name in architecture.required & substitutes.keys():
        if name not in part and substitutes[name] is not None:
            part[name] = substitutes[name]
    types = part.get("layer_types")
    if not isinstance(types, list):
        return
    if "granitemoehybrid" in architecture.modules:
        part["layer_types"] = [_GRANITE_LAYERS.get(one, one) for one in types]
    if "exaone4" in architecture.modules:
        part["sliding_window_pattern"] = "".join("G" if one == FULL else "L" for one in types)
    elif reads_period(architecture) and (period := period_of(types)) is not None:
        part.update(dict.fromkeys(architecture.arguments & set(PERIODS), period))
    if "global_head_dim" in architecture.arguments and isinstance(layers := part.get("per_layer_config"), Mapping):
        full = layers.get(str(types.index(FULL)), {}) if FULL in types else {}
        own = {"global_head_dim": "head_dim", "num_global_key_value_heads": "num_key_value_heads"}
        part.update({name: full[key] for name, key in own.items() if name not in part and key in full})


def _mimo(part: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what mlx-lm needs for mimo_v2_flash, from the configuration of transformers' class."""
    fields: dict[str, Any] = {
        "layernorm_epsilon": part.get("rms_norm_eps"),
        "swa_num_attention_heads": part.get("num_attention_heads"),
        "swa_head_dim": part.get("head_dim"),
        "swa_v_head_dim": part.get("v_head_dim"),
    }
    if is_length(heads := part.get("num_key_value_heads")):
        fields["swa_num_key_value_heads"] = 2 * heads  # the 2 is in transformers' code
    if is_length(window := part.get("sliding_window")):
        fields["sliding_window_size"] = window - 1  # without the query's own token
    if isinstance(types := part.get("layer_types"), list):
        fields["hybrid_layer_pattern"] = [int(kind == SLIDING) for kind in types]
    if isinstance(types := part.get("mlp_layer_types"), list):
        fields["moe_layer_freq"] = [int(kind == "sparse") for kind in types]
    return fields


def _kimi(part: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what mlx-lm needs for kimi_linear, whose layers are counted from 1."""
    types, blocks = part.get("layer_types"), part.get("mlp_layer_types")
    if not isinstance(types, list) or not isinstance(blocks, list):
        return {}
    linear = {
        "head_dim": part.get("linear_head_dim"),
        "num_heads": part.get("linear_num_heads"),
        "short_conv_kernel_size": part.get("linear_conv_kernel_dim"),
        "kda_layers": [i for i, one in enumerate(types, 1) if one != FULL],
        "full_attn_layers": [i for i, one in enumerate(types, 1) if one == FULL],
    }
    dense = next((i for i, one in enumerate(blocks) if one == "sparse"), len(blocks))
    return {"linear_attn_config": linear, "first_k_dense_replace": part.get("first_k_dense_replace", dense)}


def _other_names(part: Mapping[str, Any]) -> dict[str, str]:
    """Returns pairs of transformers' names for one value, in both directions: it writes one and reads both."""
    from transformers import CONFIG_MAPPING

    kind = part.get("model_type")
    names = (CONFIG_MAPPING[kind].attribute_map or {}) if isinstance(kind, str) and kind in CONFIG_MAPPING else {}
    return {other: name for name, other in names.items()} | dict(names)


def reads_period(architecture: Architecture) -> bool:
    """Whether the architecture describes the layers that see the whole text by a period only: every n-th layer."""
    return not architecture.modules & {"exaone4"} and "layer_types" not in architecture.arguments


def period_of(types: Sequence[str]) -> int | None:
    """Returns the period n if exactly every n-th layer sees the whole text, else None."""
    period = types.index(FULL) + 1 if FULL in types else 0
    return period if period and all((one == FULL) == (i % period == 0) for i, one in enumerate(types, 1)) else None


def architecture_of(part: Mapping[str, Any], config: Mapping[str, Any]) -> Architecture:
    """Returns mlx-lm's modules for this part of the configuration, and their arguments."""
    whole = modules_of(config)
    modules = modules_of(part) or whole
    # The arguments of a nested part may belong to another module.
    if part is not config and modules == whole:
        members = [member for module in whole for member in vars(module).values()]
        inside = {
            member if isinstance(member, ModuleType) else sys.modules.get(getattr(member, "__module__", ""))
            for member in members
        }
        modules = whole + [member for member in inside if member and member.__name__.startswith("mlx_lm.models.")]
    own = {module.__name__ for module in modules}
    tables = [
        member
        for module in modules
        for member in vars(module).values()
        if isinstance(member, type) and is_dataclass(member)
    ]
    arguments = [argument for table in tables if table.__module__ in own for argument in fields(table)]
    return Architecture(
        {name.rpartition(".")[2] for name in own},
        {member.name for member in arguments},
        {member.name for member in arguments if member.default is MISSING and member.default_factory is MISSING},
    )


def modules_of(config: Mapping[str, Any]) -> list[Any]:
    """Returns mlx-lm's modules for its `model_type`; none for a part of another architecture."""
    from draftd.models.mlx_lm import model_classes

    if not isinstance(config.get("model_type"), str):
        return []
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return [sys.modules[one.__module__] for one in model_classes(dict(config))]
    except (ValueError, AttributeError, SystemExit):  # no such architecture: a part of another
        return []
