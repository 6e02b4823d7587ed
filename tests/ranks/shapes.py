"""Tiny models whose heads, experts and layers can be divided among ranks. Imports no MLX."""

from __future__ import annotations

import re
from typing import Any

from tests.models.architectures import OWN, configuration, source
from tests.models.configurations import Config

_SHARED = re.compile(r"def shard\(|PipelineMixin|def pipeline\(")
_METAL = {"muse_spark"}  # has kernels of its own, for Metal alone
EMBEDDED = "embedded"
QUANTISED, PIPELINED = (
    ":4bit",
    ":pipeline",
)  # at the end of a name: with such weights; by layers, where heads divide too

#: What four ranks need more of: for each key, the value that the tiny configurations have, and a larger one.
_MORE: dict[str, tuple[Any, Any]] = {
    "num_key_value_heads": (2, 4),
    "linear_num_key_heads": (2, 4),
    "swa_num_key_value_heads": (2, 4),
    "index_n_heads": (2, 4),
    "num_attention_groups": (2, 4),
    "num_hidden_layers": (3, 4),
    "o_groups": (2, 4),
}
_LISTS = ("layer_types", "mlp_layer_types", "is_moe_layer", "hybrid_layer_pattern")  # one entry for each layer
_OWN: dict[str, Config] = {
    "bailing_hybrid": {"num_hidden_layers": 8},
    "iquestloopcoder": {"num_hidden_layers": 4},
    "llama": {"intermediate_size": 128},  # in 4 bits its groups have 32
    "longcat_flash": {"num_layers": 4},
    "step3p5": {"attention_other_setting": {"num_attention_heads": 4, "num_attention_groups": 4}},
}


def shape(name: str, ranks: int) -> Config:
    """Returns the configuration of tests/models, with larger numbers where `ranks` does not divide them."""
    found = configuration(name)
    more = _widened(found) if ranks > 2 else found
    return {**more, **_OWN.get(name, {})}


def families() -> list[str]:
    """Returns the architectures that have `shard()` or `pipeline()`, themselves or in their inner model. Those with
    both are also listed as cut by layers, and two with 4 bits."""
    found = [name for name in sorted(OWN) if name not in _METAL and _SHARED.search(source(name))]
    both = [
        f"{name}{PIPELINED}" for name in found if {"def shard(", "PipelineMixin"} <= set(_SHARED.findall(source(name)))
    ]
    return [*found, *both, *(f"{name}{QUANTISED}" for name in ("llama", "ministral3"))]


def _widened(config: Config) -> Config:
    out: Config = {}
    layers = config.get("num_hidden_layers")
    for key, value in config.items():
        few, many = _MORE.get(key, (None, None))
        if isinstance(value, dict):
            out[key] = _widened(value)
        elif key in _LISTS and layers == 3 and len(value) == 3:
            out[key] = [*value, value[0]]
        else:
            out[key] = many if few is not None and value == few else value
    return out
