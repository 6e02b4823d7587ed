"""Computes multi-head latent attention, which the heads of DeepSeek-V3, V3.2, GLM-4.7-Flash and GLM-5 have."""

from __future__ import annotations

import math

import numpy as np

from tests.heads.layouts.files import Config
from tests.heads.reference import Array, Cache
from tests.heads.references.nextn import NextnHead


def rotated_in_pairs(values: Array, positions: Array, frequencies: Array) -> Array:
    """Returns values (positions, heads, size) with rotary embeddings, of dimensions 2 i and 2 i + 1 together."""
    angles = positions[:, None, None] * frequencies
    cosine, sine = np.cos(angles), np.sin(angles)
    first, second = values[..., 0::2], values[..., 1::2]
    both = [first * cosine - second * sine, second * cosine + first * sine]
    return np.stack(both, axis=-1).reshape(values.shape)


def rotary_frequencies(dimensions: int, base: float, scaling: Config | None) -> Array:
    """Returns the angle of each pair of dimensions at position 1, by YaRN if `scaling` asks for it.

    DeepSeek's inference/model.py, precompute_freqs_cis: YaRN divides slow frequencies by the factor, leaves the fast
    ones, and blends in between.
    """
    frequencies: Array = base ** (-np.arange(0, dimensions, 2) / dimensions)
    if scaling is None or scaling.get("type", scaling.get("rope_type")) != "yarn":
        return frequencies

    def dimension(rotations: float) -> float:
        length = scaling["original_max_position_embeddings"] / (rotations * 2 * math.pi)
        return dimensions * math.log(length) / (2 * math.log(base))

    low = max(math.floor(dimension(scaling["beta_fast"])), 0)
    high = min(math.ceil(dimension(scaling["beta_slow"])), dimensions - 1)
    slow = np.clip((np.arange(dimensions // 2) - low) / (high - low), 0.0, 1.0)
    return frequencies / scaling["factor"] * slow + frequencies * (1.0 - slow)


def _yarn_scale(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


class LatentHead(NextnHead):
    """A head with latent attention, computed as the vendors' prefill does: keys and values of each head by kv_b_proj.

    The rotary part of the key is one for all heads. A query is [what has no position; what is rotated].
    """

    latent_epsilon: float | None = None  # of q_a_layernorm and kv_a_layernorm; None for rms_norm_eps

    def __init__(self, config: Config, tensors: dict[str, Array], embedding: Array, lm_head: Array) -> None:
        super().__init__(config, tensors, embedding, lm_head)
        self._nope, self._rope = int(config["qk_nope_head_dim"]), int(config["qk_rope_head_dim"])
        self._value, self._rank = int(config["v_head_dim"]), int(config["kv_lora_rank"])
        self._most_pairs = int(config.get("index_topk", 0))
        scaling = config.get("rope_scaling")
        base = config["rope_parameters"]["rope_theta"] if "rope_parameters" in config else config["rope_theta"]
        self._frequencies = rotary_frequencies(self._rope, float(base), scaling)
        self._scale, self._rotary_scale = (self._nope + self._rope) ** -0.5, 1.0
        if scaling is not None and scaling.get("mscale_all_dim"):
            of_scores = _yarn_scale(scaling["factor"], scaling["mscale_all_dim"])
            self._scale *= of_scores**2
            self._rotary_scale = _yarn_scale(scaling["factor"], scaling["mscale"]) / of_scores

    def empty_cache(self) -> Cache:
        """Returns a cache of no pairs."""
        keys = np.zeros((0, self._heads, self._nope + self._rope))
        return Cache(keys, np.zeros((0, self._heads, self._value)))

    def _attention(self, entered: Array, cache: Cache) -> Array:
        length = len(entered)
        positions = np.arange(cache.length, cache.length + length)
        # an indexer chooses among more pairs than this; among fewer it keeps all
        assert not self._most_pairs or cache.length + length <= self._most_pairs

        normed = self._normed(
            self._projected(entered, "self_attn.q_a_proj"), "self_attn.q_a_layernorm", self.latent_epsilon
        )
        queries = self._projected(normed, "self_attn.q_b_proj").reshape(length, self._heads, -1)
        queries = np.concatenate(
            [queries[..., : self._nope], self._rotated(queries[..., self._nope :], positions)], axis=-1
        )

        compressed = self._projected(entered, "self_attn.kv_a_proj_with_mqa")
        latent = self._normed(compressed[:, : self._rank], "self_attn.kv_a_layernorm", self.latent_epsilon)
        rotary_key = self._rotated(compressed[:, None, self._rank :], positions)
        both = self._projected(latent, "self_attn.kv_b_proj").reshape(length, self._heads, self._nope + self._value)
        keys = np.concatenate([both[..., : self._nope], np.repeat(rotary_key, self._heads, axis=1)], axis=-1)
        attended = self._attended(queries, cache, keys, both[..., self._nope :], self._scale)
        return self._projected(attended, "self_attn.o_proj")

    def _rotated(self, values: Array, positions: Array) -> Array:
        return self._rotary_scale * rotated_in_pairs(values, positions, self._frequencies)
