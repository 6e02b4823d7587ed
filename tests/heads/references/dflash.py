"""Computes what DFlash heads say, in NumPy's float64."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from tests.heads.layouts.files import Array, Config, Tensors
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.reading import embedding_and_lm_head
from tests.heads.references.eagle import HeadLayers, Window, read_drafter


class DFlashHead:
    """A DFlash head, after z-lab's dflash/model.py and model_mlx.py, vLLM's qwen3_dflash.py and SGLang's dflash.py.

    - Taps are residual streams. context = hidden_norm(fc(taps)), once for all layers; no norm before fc.
    - Block: [last token, mask, mask, ...] in the target's embedding (the head's own if it has one). Context has
      positions 0 to T - 1, the block T to T + block - 1.
    - Each layer is Qwen3's: input_layernorm, q_norm and k_norm (each head, before RoPE), post_attention_layernorm.
      Keys and values of the context come from `context` itself, which neither input_layernorm nor earlier layers
      change; those of the block from its normed values, by the same k_proj and v_proj. Only the context's are cached.
    - A full layer's queries see all of the context and all of the block. A sliding layer is causal, also within the
      block, and sees the last `sliding_window` keys, its own among them: vLLM (_resolve_layer_attention) and SGLang
      (#34524, by measured acceptance). z-lab's model.py, model_mlx.py and mlx-vlm are not causal there.
    - logits = lm_head(norm(block[1:])): the target's lm_head, or the head's own with d2t (speculators).
    """

    takes_normed_states, least_router_margin = True, math.inf

    def __init__(self, config: Config, tensors: Tensors, embedding: Array, lm_head: Array) -> None:
        layer_config = config.get("transformer_layer_config", config)
        options = config.get("dflash_config", {})
        self._layers = HeadLayers(layer_config, tensors)
        self._windows = [_window(kind, layer_config) for kind in layer_config["layer_types"]]
        self.block_size = int(config.get("block_size") or options["block_size"])
        self._mask = int(options.get("mask_token_id", config.get("mask_token_id")))
        self._embedding = self._layers.tensors.get("embed_tokens.weight", np.asarray(embedding, np.float64))
        self._lm_head = self._layers.tensors.get("lm_head.weight", np.asarray(lm_head, np.float64))
        offsets = self._layers.tensors.get("d2t", np.zeros(len(self._lm_head)))
        self.target_ids = np.arange(len(self._lm_head)) + offsets.astype(np.int64)  # by draft id

    def logits(self, hidden: Array, next_tokens: Array, steps: int = 3) -> Array:
        """Returns the logits (steps, draft vocabulary) of the first drafted tokens of one block.

        `hidden` has the concatenated taps (T, taps * hidden) of positions 0 to T - 1, `next_tokens` the tokens at 1 to
        T, of which the last begins the block.
        """
        layers = self._layers
        context = layers.normed(layers.projected(np.asarray(hidden, np.float64), "fc"), "hidden_norm")
        ids = np.full(self.block_size, self._mask)
        ids[0] = np.asarray(next_tokens)[-1]
        block = self._embedding[ids]
        for layer, window in enumerate(self._windows):
            block = self._layer(block, context, f"layers.{layer}", window)
        return (layers.normed(block[1:], "norm") @ self._lm_head.T)[:steps]

    def _layer(self, block: Array, context: Array, prefix: str, window: Window) -> Array:
        layers, cache = self._layers, self._layers.empty_cache()
        normed = layers.normed(block, f"{prefix}.input_layernorm")
        layers.extend(cache, context, f"{prefix}.self_attn")
        layers.extend(cache, normed, f"{prefix}.self_attn")
        block = block + layers.attention(normed, cache, f"{prefix}.self_attn", window)
        return block + layers.glu(layers.normed(block, f"{prefix}.post_attention_layernorm"), f"{prefix}.mlp")


def _window(kind: str, layer_config: Config) -> Window:
    if kind == "sliding_attention":
        return Window(int(layer_config["sliding_window"]), causal=True)
    return Window(None, causal=False)


def reference(layout: Layout, folder: Path) -> DFlashHead:
    """Returns the reference for a layout that was written to `folder`."""
    config, tensors = read_drafter(layout, folder)
    return DFlashHead(config, tensors, *embedding_and_lm_head(layout, folder))
