"""Folders whose config.json has keys that mlx-lm does not read, in the forms of both transformers versions, and lengths
in all spellings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.folders.place import Asked, Case, Place
from tests.models.configurations import FULL, SLIDING, Config

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
_LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA_3 |= {"original_max_position_embeddings": 64}
_LONG = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 128}


def _table(theta: float, kind: str = "default", **more: Any) -> Config:
    """Returns `rope_parameters` as transformers 5 writes it."""
    return {"rope_theta": theta, "rope_type": kind, **more}


def _alike(architecture: str, read: Config, **written: Any) -> Callable[[Place], Asked]:
    return lambda place: place.random(architecture, read, written)


def _refused(architecture: str, words: str, **written: Any) -> Callable[[Place], Asked]:
    return lambda place: place.refused(architecture, words, written)


# Keys of the rotary embedding, and of the types of layers, that mlx-lm reads under other names.
_LINEAR = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 8.0}}
_ALIKE = {
    "5.x, llama: another theta": _alike("llama", {"rope_theta": 5e5}, rope_parameters=_table(5e5)),
    "5.x, llama: linear": _alike("llama", _LINEAR, rope_parameters=_table(500.0, "linear", factor=8.0)),
    "5.x, llama: llama 3's": _alike(
        "llama",
        {"rope_theta": 500.0, "rope_scaling": _LLAMA_3},
        rope_parameters={"rope_theta": 500.0, **_LLAMA_3},
    ),
    "5.x, granite: theta without a default": _alike("granite", {"rope_theta": 500.0}, rope_parameters=_table(500.0)),
    "5.x, gemma2: another theta": _alike("gemma2", {"rope_theta": 500.0}, rope_parameters=_table(500.0)),
    "5.x, mixtral: another theta": _alike("mixtral", {"rope_theta": 500.0}, rope_parameters=_table(500.0)),
    "5.x, phi3: long rope": _alike(
        "phi3",
        {"rope_theta": 500.0, "partial_rotary_factor": 1.0, "rope_scaling": {"type": "longrope", **_LONG}}
        | {"original_max_position_embeddings": 128},
        rope_parameters=_table(500.0, "longrope", partial_rotary_factor=1.0, **_LONG),
    ),
    "5.x, gemma3_text: a table for each type": _alike(
        "gemma3_text",
        {"rope_theta": 5000.0, "rope_local_base_freq": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        rope_parameters={FULL: _table(5000.0, "linear", factor=8.0), SLIDING: _table(50.0)},
    ),
    "5.x, cohere2: types of layers": _alike(
        "cohere2",
        {"rope_theta": 500.0, "sliding_window_pattern": 2},
        rope_parameters=_table(500.0),
        layer_types=[SLIDING, FULL, SLIDING],
    ),
    "4.x, qwen3_5: theta beside a table": _alike(
        "qwen3_5",
        {"rope_parameters": _table(500.0, type="default", partial_rotary_factor=0.5)},
        rope_theta=500.0,
        rope_scaling=None,
        partial_rotary_factor=0.5,
    ),
}
_REFUSED = {
    "4.x, gemma2: yarn": _refused(
        "gemma2", "rope_scaling yarn × 4", rope_theta=500.0, rope_scaling=_YARN | {"type": "yarn"}
    ),
    "5.x, mixtral: linear": _refused(
        "mixtral", "rope_scaling linear × 8", rope_parameters=_table(500.0, "linear", factor=8.0)
    ),
    "5.x, olmo3: theta of the windows": _refused(
        "olmo3",
        "rope_theta 50 of sliding_attention",
        rope_parameters={FULL: _table(500.0), SLIDING: _table(50.0)},
    ),
    "5.x, cohere2: irregular types of layers": _refused(
        "cohere2", "layer_types", rope_parameters=_table(500.0), layer_types=[FULL, SLIDING, FULL]
    ),
    "llama: another activation": _refused("llama", "hidden_act 'gelu'", rope_theta=500.0, hidden_act="gelu"),
    "qwen3: capped logits": _refused(
        "qwen3", "final_logit_softcapping 30.0", rope_theta=500.0, final_logit_softcapping=30.0
    ),
}


def _context(architecture: str, tokens: int, **keys: Any) -> Callable[[Place], Asked]:
    """Builds a case of a context length in a configuration that mlx-lm reads."""

    def case(place: Place) -> Asked:
        asked = place.random(architecture, keys)
        return Asked(asked.model, context=tokens)

    return case


def _lowered(place: Place) -> Asked:
    return Asked(place.copy(), max_context=256, context=256)


def _raised(place: Place) -> Asked:
    return Asked(place.copy(), max_context=2048, context=2048, said="raises the context to 2,048 tokens")


def _scaled(kind: str, **more: Any) -> Config:
    return {"rope_theta": 500.0, "rope_scaling": {"type": kind, "rope_type": kind, **more}}


_LENGTHS = {
    "gpt2: n_positions": _context("gpt2", 128, n_positions=128, n_ctx=128, max_position_embeddings=None),
    "gpt_bigcode: n_positions": _context("gpt_bigcode", 8192, n_positions=8192, max_position_embeddings=None),
    "yarn × 4 of 1,024": _context(
        "llama",
        4096,
        max_position_embeddings=1024,
        **_scaled("yarn", factor=4.0, original_max_position_embeddings=1024),
    ),
    "linear × 8": _context("llama", 4096, **_scaled("linear", factor=8.0)),
    "llama 3's, as declared": _context("llama", 512, rope_theta=500.0, rope_scaling=_LLAMA_3),
    "long rope, as declared": _context("llama", 512, **_scaled("longrope", **_LONG)),
    "model.max_context lowers it": _lowered,
    "model.max_context raises it": _raised,
}

CONFIGURATIONS = (
    *(Case("configuration", name, make) for name, make in (_ALIKE | _REFUSED).items()),
    *(Case("context", name, make) for name, make in _LENGTHS.items()),
)
