"""Computes what the draft head of LongCat-Flash says, in NumPy's float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.heads.layouts.files import Tensors
from tests.heads.layouts.layout import Layout
from tests.heads.reference import Array, Cache, rms_normed, silu
from tests.heads.references.step import causally_attended, stored_tensors

_LAYER = "model.mtp.layers.0"


class ReferenceLongcatHead:
    """A head of one layer. `tensors` has the vendor's names, which begin with `model.mtp.`, and values.

    - The head takes the target's state *after* its final norm, and is fed its own state after `model.mtp.norm`, of
      which logits are made by the target's lm_head: vLLM's longcat_flash.py and longcat_flash_mtp.py, SGLang's
      longcat_flash_nextn.py, Meituan's own flash_nextn.py (SGLang-FluentLLM).
    - eh_proj takes the embedding first: [enorm(embedding); hnorm(state)]. No embedding is zeroed.
    - The embedding is the target's. The checkpoint has `model.mtp.embed_tokens`, but both of SGLang's loaders skip it
      and vLLM replaces it. In the layouts both are the same numbers.
    - The layer is an ordinary one, not the target's double one: input_layernorm, attention, post_attention_layernorm,
      and a dense MLP below `transformer_layer.mlp`.
    - Attention is MLA, full and causal, RoPE over neighbouring pairs on the last part of a head. As in the target,
      queries are scaled by √(hidden / q_lora_rank) and latent keys and values by √(hidden / kv_lora_rank), which
      vLLM and SGLang multiply into the norms; the rotated key is not.
    - Norms hold the factor itself, without + 1.
    """

    takes_normed_states = True

    def __init__(self, config: dict[str, Any], tensors: Tensors, embedding: Array, lm_head: Array) -> None:
        self._config = config
        self._tensors = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self._embedding = np.asarray(embedding, np.float64)
        self._lm_head = np.asarray(lm_head, np.float64)
        self._heads = int(config["num_attention_heads"])
        self._unrotated, self._rotated = int(config["qk_nope_head_dim"]), int(config["qk_rope_head_dim"])
        self._value, self._key_rank = int(config["v_head_dim"]), int(config["kv_lora_rank"])
        self.least_router_margin = np.inf  # the head has no router

    def empty_cache(self) -> Cache:
        """Returns a cache of no pairs."""
        return Cache(
            np.zeros((0, self._heads, self._unrotated + self._rotated)), np.zeros((0, self._heads, self._value))
        )

    def logits(self, hidden: Array, next_tokens: Array, steps: int = 3) -> Array:
        """Returns the logits (steps, vocabulary) of what follows the last pair, each step after the likeliest token.

        `hidden` has the target's states of positions 0 to T - 1, after its final norm; `next_tokens` the tokens at 1
        to T.
        """
        cache = self.empty_cache()
        state = self.states(np.asarray(hidden, np.float64), np.asarray(next_tokens), cache)[-1:]
        rows = [self._lm_head @ state[0]]
        while len(rows) < steps:
            state = self.states(state, np.array([rows[-1].argmax()]), cache)
            rows.append(self._lm_head @ state[0])
        return np.stack(rows)

    def states(self, hidden: Array, tokens: Array, cache: Cache) -> Array:
        """Returns the head's states (pairs, hidden) after its final norm, and adds the pairs to `cache`."""
        mixed = np.concatenate(
            [self._normed(self._embedding[tokens], f"{_LAYER}.enorm.m"), self._normed(hidden, f"{_LAYER}.hnorm.m")],
            axis=-1,
        )
        return self._normed(self.layer(self._projected(mixed, f"{_LAYER}.eh_proj"), cache), "model.mtp.norm")

    def layer(self, entered: Array, cache: Cache) -> Array:
        """Returns what the layer makes of `entered` (pairs, hidden)."""
        attended = entered + self._attention(self._normed(entered, f"{_LAYER}.input_layernorm"), cache)
        normed, mlp = self._normed(attended, f"{_LAYER}.post_attention_layernorm"), f"{_LAYER}.transformer_layer.mlp"
        inner = silu(self._projected(normed, f"{mlp}.gate_proj")) * self._projected(normed, f"{mlp}.up_proj")
        return attended + self._projected(inner, f"{mlp}.down_proj")

    def _attention(self, entered: Array, cache: Cache) -> Array:
        config, prefix, length = self._config, f"{_LAYER}.self_attn", len(entered)
        positions = np.arange(cache.length, cache.length + length)
        latent_query = self._normed(self._projected(entered, f"{prefix}.q_a_proj"), f"{prefix}.q_a_layernorm")
        if config["mla_scale_q_lora"]:
            latent_query *= np.sqrt(config["hidden_size"] / config["q_lora_rank"])
        queries = self._projected(latent_query, f"{prefix}.q_b_proj").reshape(length, self._heads, -1)
        query_parts = np.split(queries, [self._unrotated], axis=-1)
        queries = np.concatenate([query_parts[0], self._turned(query_parts[1], positions)], axis=-1)

        both = self._projected(entered, f"{prefix}.kv_a_proj_with_mqa")
        latent, shared_key = np.split(both, [self._key_rank], axis=-1)
        latent = self._normed(latent, f"{prefix}.kv_a_layernorm")
        if config["mla_scale_kv_lora"]:
            latent *= np.sqrt(config["hidden_size"] / config["kv_lora_rank"])
        expanded = self._projected(latent, f"{prefix}.kv_b_proj").reshape(length, self._heads, -1)
        keys, values = np.split(expanded, [self._unrotated], axis=-1)
        turned = np.repeat(self._turned(shared_key[:, None], positions), self._heads, axis=1)
        cache.keys = np.concatenate([cache.keys, np.concatenate([keys, turned], axis=-1)])
        cache.values = np.concatenate([cache.values, values])

        scale = (self._unrotated + self._rotated) ** -0.5
        attended = causally_attended(queries, cache.keys, cache.values, scale)
        return self._projected(attended.reshape(length, -1), f"{prefix}.o_proj")

    def _turned(self, values: Array, positions: Array) -> Array:
        """Returns values (positions, heads, size) with rotary embeddings, over neighbouring pairs."""
        frequencies = float(self._config["rope_theta"]) ** (-np.arange(self._rotated // 2) * 2.0 / self._rotated)
        angles = positions[:, None, None] * frequencies
        first, second = values[..., ::2], values[..., 1::2]
        turned = np.empty_like(values)
        turned[..., ::2] = first * np.cos(angles) - second * np.sin(angles)
        turned[..., 1::2] = second * np.cos(angles) + first * np.sin(angles)
        return turned

    def _normed(self, values: Array, name: str) -> Array:
        return rms_normed(values, self._tensors[f"{name}.weight"] - 1.0, float(self._config["rms_norm_eps"]))

    def _projected(self, values: Array, name: str) -> Array:
        return values @ self._tensors[f"{name}.weight"].T


def reference(layout: Layout, folder: Path) -> ReferenceLongcatHead:
    """Returns the reference for a layout that was written to `folder`."""
    config = json.loads((layout.target_folder(folder) / "config.json").read_text())
    tensors = stored_tensors(layout, folder)
    head = {name: tensor for name, tensor in tensors.items() if name.startswith("model.mtp.")}
    return ReferenceLongcatHead(config, head, tensors["model.embed_tokens.weight"], tensors["lm_head.weight"])
