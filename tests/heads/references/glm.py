"""Computes what the heads of GLM-4.5 to 4.7, GLM-4.7-Flash and GLM-5 say. `nextn` and `latent` have what they share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.heads.layouts.files import Config
from tests.heads.layouts.layout import Layout
from tests.heads.reference import Array, Cache, rotated
from tests.heads.references.latent import LatentHead
from tests.heads.references.nextn import NextnHead, read_head


class Glm4MoeHead(NextnHead):
    """The head of GLM-4.5, 4.5-Air, 4.6 and 4.7.

    - Inputs: eh_proj [enorm(embedding); hnorm(state)]; vLLM's glm4_moe_mtp.py, SGLang's glm4_moe_nextn.py.
    - The state comes from after the target's final norm. Fed back after shared_head.norm: SGLang, and TensorRT-LLM's
      modeling_glm.py; vLLM's glm4_moe_mtp.py feeds it from before.
    - No embedding is zeroed: SGLang; vLLM zeroes that of pair 0.
    - Norms: w, nothing added, epsilon rms_norm_eps.
    - Attention: grouped, full, causal; q, k and v have biases, o has none; q_norm and k_norm before RoPE if use_qk_norm
      (not in Air); RoPE in halves on the first partial_rotary_factor of each head, without scaling;
      modeling_glm4_moe.py of transformers.
    - MLP: experts with sigmoid scores, one group; modeling_glm4_moe.py, SGLang's is_nextn.
    - Embedding and output layer: the target's. 4.5 and Air repeat them; 4.6 and 4.7 do not (vLLM#27597).
    """

    def __init__(self, config: Config, tensors: dict[str, Array], embedding: Array, lm_head: Array) -> None:
        super().__init__(config, tensors, embedding, lm_head)
        self._size, self._kv_heads = int(config["head_dim"]), int(config["num_key_value_heads"])
        self._rotary_dimensions = int(self._size * config["partial_rotary_factor"])
        self._rotary_base = float(config["rope_theta"])
        self._has_norms = bool(config["use_qk_norm"])

    def empty_cache(self) -> Cache:
        """Returns a cache of no pairs."""
        empty = np.zeros((0, self._kv_heads, self._size))
        return Cache(empty, empty)

    def _attention(self, entered: Array, cache: Cache) -> Array:
        queries, keys, values = (
            self._projected(entered, f"self_attn.{name}_proj").reshape(len(entered), -1, self._size) for name in "qkv"
        )
        if self._has_norms:
            queries, keys = self._normed(queries, "self_attn.q_norm"), self._normed(keys, "self_attn.k_norm")
        positions = np.arange(cache.length, cache.length + len(entered))
        queries, keys = (
            rotated(part, positions, self._rotary_dimensions, self._rotary_base) for part in (queries, keys)
        )
        attended = self._attended(queries, cache, keys, values, self._size**-0.5)
        return self._projected(attended, "self_attn.o_proj")


class Glm4MoeLiteHead(LatentHead):
    """The head of GLM-4.7-Flash.

    - Inputs, norms and states: as Glm4MoeHead. vLLM's glm4_moe_lite_mtp.py, too, feeds the state from before
      shared_head.norm and zeroes pair 0's embedding.
    - Attention: latent, full, causal; RoPE in pairs (rope_interleave), no YaRN; modular_glm4_moe_lite.py of
      transformers.
      Latent norms' epsilon: rms_norm_eps in vLLM and mlx-lm; 1e-6 in transformers.
    - MLP: experts with sigmoid scores, one group.
    - Embedding and output layer: the target's, repeated in the checkpoint.
    """


class GlmMoeDsaHead(LatentHead):
    """The head of GLM-5 and 5.1 (and 5.2, whose target mlx-lm 0.32 does not load).

    - Inputs, norms, states: as DeepseekV3Head; vLLM's models/deepseek_v32/nvidia/mtp.py with #47448, and llama.cpp's
      glm-dsa.cpp (graph_mtp), feed the state from after shared_head.norm. vLLM zeroes pair 0's embedding, llama.cpp
      does not.
    - Attention: latent, RoPE in pairs, no YaRN; modular_glm_moe_dsa.py of transformers. The layer has an indexer of its
      own, which keeps all pairs up to index_topk, and is not computed here.
      Latent norms' epsilon: 1e-6 in transformers and mlx-lm; rms_norm_eps (1e-5) in vLLM.
    - MLP: experts with sigmoid scores, one group.
    - Embedding and output layer: the target's, not repeated (vLLM#34385).
    """

    latent_epsilon = 1e-6


_HEADS: dict[str, type[NextnHead]] = {
    "glm4_moe": Glm4MoeHead,
    "glm4_moe_lite": Glm4MoeLiteHead,
    "glm_moe_dsa": GlmMoeDsaHead,
}


def reference(layout: Layout, folder: Path) -> NextnHead:
    """Returns the reference for a layout that was written to `folder`."""
    config, *tensors = read_head(layout, folder)
    return _HEADS[config["model_type"]](config, *tensors)
