"""Computes what the heads of EAGLE-1, 2, 3 and 3.1 say, in NumPy's float64."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.heads.layouts.files import Array, Config, Tensors, read_safetensors
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.quantization import dequantize
from tests.heads.layouts.reading import embedding_and_lm_head
from tests.heads.reference import Cache, silu, softmax

_DEFAULT_ROPE_THETA = 10000.0  # of transformers' LlamaConfig, and of EAGLE's cnets.py


def rope_frequencies(config: Config, size: int) -> Array:
    """Returns the angles per position (size / 2): plain, or of Llama 3's scaling as in SpecForge's llama3_eagle.py."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = scaling.get("rope_theta") or config.get("rope_theta") or _DEFAULT_ROPE_THETA
    frequencies = float(base) ** (-np.arange(size // 2) * 2.0 / size)
    kind = scaling.get("rope_type", "default")
    if kind == "default":
        return frequencies
    assert kind == "llama3", kind
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2.0 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling["factor"])


def rotated(values: Array, positions: Array, frequencies: Array) -> Array:
    """Returns values (positions, heads, size) with rotary embeddings, in halves."""
    angles = positions[:, None, None] * frequencies
    first, second = np.split(values, 2, axis=-1)
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


@dataclass(frozen=True)
class Window:
    """Which keys a query sees: all earlier ones and itself, or the last `size`; later ones too unless `causal`."""

    size: int | None = None
    causal: bool = True

    def shows(self, queries: Array, keys: Array) -> Array:
        """Returns whether the query at each position sees the key at each position (queries, keys)."""
        distance = queries[:, None] - keys
        shown = distance < (self.size or np.inf)
        return shown & (distance >= 0) if self.causal else shown


class HeadLayers:
    """A head's tensors, whose norms are factors, and what its layers compute with them.

    Llama's and Qwen3's layers: q_norm and k_norm (each attention head, before RoPE), biases, if there are such tensors.
    """

    def __init__(self, config: Config, tensors: Tensors) -> None:
        self.tensors = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self._epsilon = float(config["rms_norm_eps"])
        self._heads = int(config["num_attention_heads"])
        self._kv_heads = int(config.get("num_key_value_heads") or self._heads)
        self._size = int(config.get("head_dim") or config["hidden_size"] // self._heads)
        self._frequencies = rope_frequencies(config, self._size)

    def normed(self, values: Array, name: str) -> Array:
        """Returns RMS-normed values times the norm's factors."""
        mean = np.square(values).mean(-1, keepdims=True)
        return values / np.sqrt(mean + self._epsilon) * self.tensors[f"{name}.weight"]

    def projected(self, values: Array, name: str) -> Array:
        """Returns a linear layer's output."""
        return values @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0.0)

    def glu(self, entered: Array, prefix: str) -> Array:
        """Returns the gated MLP's output."""
        inner = silu(self.projected(entered, f"{prefix}.gate_proj")) * self.projected(entered, f"{prefix}.up_proj")
        return self.projected(inner, f"{prefix}.down_proj")

    def empty_cache(self) -> Cache:
        """Returns a cache of no positions."""
        empty = np.zeros((0, self._kv_heads, self._size))
        return Cache(empty, empty)

    def extend(self, cache: Cache, entered: Array, prefix: str) -> None:
        """Adds the keys and values of `entered` to a cache, at the positions that follow."""
        positions = np.arange(cache.length, cache.length + len(entered))
        keys = self._split(entered, f"{prefix}.k_proj", f"{prefix}.k_norm")
        cache.keys = np.concatenate([cache.keys, rotated(keys, positions, self._frequencies)])
        cache.values = np.concatenate([cache.values, self._split(entered, f"{prefix}.v_proj")])

    def attention(self, entered: Array, cache: Cache, prefix: str, window: Window) -> Array:
        """Returns the attention's output for the last positions of a cache that has their keys already."""
        all_positions = np.arange(cache.length)
        positions = all_positions[-len(entered) :]
        queries = self._split(entered, f"{prefix}.q_proj", f"{prefix}.q_norm")
        queries = rotated(queries, positions, self._frequencies)
        shared_by = self._heads // self._kv_heads
        keys, values = (np.repeat(part, shared_by, axis=1) for part in (cache.keys, cache.values))
        scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(self._size)
        weights = softmax(np.where(window.shows(positions, all_positions), scores, -np.inf))
        attended = np.einsum("hqk,khd->qhd", weights, values)
        return self.projected(attended.reshape(len(entered), -1), f"{prefix}.o_proj")

    def _split(self, entered: Array, projection: str, norm: str | None = None) -> Array:
        parts = self.projected(entered, projection).reshape(len(entered), -1, self._size)
        return self.normed(parts, norm) if norm and f"{norm}.weight" in self.tensors else parts


class EagleHead:
    """A head of EAGLE-1 or EAGLE-3: pairs, caches, and drafting token by token.

    Pair i is (the target's state at position i, the token at i + 1), and has position i: vLLM's spec_decode/eagle.py,
    EAGLE's cnets.py. (speculators trains from position 1, which RoPE cannot tell.) No embedding is zeroed. Attention is
    causal, in a window in layers of `sliding_attention` (speculators' eagle3/attention.py: the last `sliding_window`
    keys, the query's own among them). The embedding is the head's own if it has one (vLLM's llama_eagle3.py).
    """

    takes_normed_states, least_router_margin = True, math.inf

    def __init__(self, config: Config, tensors: Tensors, embedding: Array, lm_head: Array) -> None:
        layer_config = config.get("transformer_layer_config", config)
        named = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
        self.config = config
        self.layers = HeadLayers(layer_config, named)
        self.windows = [
            Window(layer_config["sliding_window"] if kind == "sliding_attention" else None)
            for kind in layer_config.get("layer_types") or ["full_attention"] * layer_config["num_hidden_layers"]
        ]
        self.embedding = self.layers.tensors.get("embed_tokens.weight", np.asarray(embedding, np.float64))
        self.lm_head = self.layers.tensors.get("lm_head.weight", np.asarray(lm_head, np.float64))
        offsets = self.layers.tensors.get("d2t", np.zeros(len(self.lm_head)))
        self.target_ids = np.arange(len(self.lm_head)) + offsets.astype(np.int64)  # by draft id

    def logits(self, hidden: Array, next_tokens: Array, steps: int = 3) -> Array:
        """Returns the logits (steps, draft vocabulary) of what follows the last pair, each step after the likeliest.

        `hidden` has the target's states that the head takes, of positions 0 to T - 1: concatenated taps (T, 3 hidden)
        for EAGLE-3, and (T, hidden) for EAGLE-1. `next_tokens` has the tokens at 1 to T.
        """
        caches = [self.layers.empty_cache() for _ in self.windows]
        state, row = self.step(self.combined(np.asarray(hidden, np.float64)), np.asarray(next_tokens), caches)
        rows = [row]
        while len(rows) < steps:
            state, row = self.step(state, self.target_ids[[rows[-1].argmax()]], caches)
            rows.append(row)
        return np.stack(rows)

    def combined(self, hidden: Array) -> Array:
        """Returns the states as they enter the first layer with the target's."""
        return hidden

    def step(self, states: Array, tokens: Array, caches: list[Cache]) -> tuple[Array, Array]:
        """Adds pairs to the caches; returns the last pair's state that is fed on (1, hidden), and its logits."""
        raise NotImplementedError

    def attended(self, entered: Array, layer: int, cache: Cache) -> Array:
        """Returns a layer's attention for what `entered` it."""
        prefix = f"layers.{layer}.self_attn"
        self.layers.extend(cache, entered, prefix)
        return self.layers.attention(entered, cache, prefix, self.windows[layer])

    def with_mlp(self, values: Array, layer: int) -> Array:
        """Returns `values` plus the layer's MLP."""
        normed = self.layers.normed(values, f"layers.{layer}.post_attention_layernorm")
        return values + self.layers.glu(normed, f"layers.{layer}.mlp")


class Eagle3Head(EagleHead):
    """A head of EAGLE-3 or 3.1, after vLLM's llama_eagle3.py and speculators' eagle3/{core,model_definitions}.py.

    - Taps are residual streams, before any norm. `input_norm` over all three (norm_before_fc) or `fc_norm.i` over each
      comes before fc; fc is applied to the target's states only, not to those that the head feeds on.
    - Layer 0: [input_layernorm(embedding); hidden_norm(state)], in this order, into q, k and v; the residual is the
      state, normed if norm_before_residual. Further layers are ordinary and have a cache of their own.
    - logits = lm_head(norm(output)), over the draft vocabulary; the target's id is d + d2t[d].
    - Fed on: the output before the norm; after it if norm_output (EAGLE-3.1).
    """

    def combined(self, hidden: Array) -> Array:
        """Returns fc of the normed taps."""
        layers = self.layers
        if "input_norm.weight" in layers.tensors:
            hidden = layers.normed(hidden, "input_norm")
        if "fc_norm.0.weight" in layers.tensors:
            parts = np.split(hidden, 3, axis=-1)
            hidden = np.concatenate([layers.normed(part, f"fc_norm.{tap}") for tap, part in enumerate(parts)], axis=-1)
        return layers.projected(hidden, "fc")

    def step(self, states: Array, tokens: Array, caches: list[Cache]) -> tuple[Array, Array]:
        """Adds pairs to the caches; returns the last pair's state that is fed on (1, hidden), and its logits."""
        layers = self.layers
        normed = layers.normed(states, "layers.0.hidden_norm")
        entered = np.concatenate([layers.normed(self.embedding[tokens], "layers.0.input_layernorm"), normed], axis=-1)
        residual = normed if self.config.get("norm_before_residual") else states
        output = self.with_mlp(residual + self.attended(entered, 0, caches[0]), 0)
        for layer, cache in enumerate(caches[1:], start=1):
            entered = layers.normed(output, f"layers.{layer}.input_layernorm")
            output = self.with_mlp(output + self.attended(entered, layer, cache), layer)
        final = layers.normed(output[-1:], "norm")
        return final if self.config.get("norm_output") else output[-1:], self.lm_head @ final[0]


class Eagle1Head(EagleHead):
    """A head of EAGLE-1 or 2, after EAGLE's cnets1.py and ea_model.py, and vLLM's llama_eagle.py.

    - It takes the state after the target's final norm (ea_model.py: the base model's outputs[0]).
    - fc [embedding; state], in this order, with a bias if there is one, for its own states too; no norms before.
    - One Llama layer without input_layernorm: attention takes fc's output as it is.
    - No final norm: the layer's output goes to the target's lm_head, and is fed on. No draft vocabulary.
    """

    def step(self, states: Array, tokens: Array, caches: list[Cache]) -> tuple[Array, Array]:
        """Adds pairs to the cache; returns the last pair's state that is fed on (1, hidden), and its logits."""
        entered = self.layers.projected(np.concatenate([self.embedding[tokens], states], axis=-1), "fc")
        output = self.with_mlp(entered + self.attended(entered, 0, caches[0]), 0)
        return output[-1:], self.lm_head @ output[-1]


def read_drafter(layout: Layout, folder: Path) -> tuple[Config, Tensors]:
    """Returns a written drafter's config.json, and its tensors as float64, with the vendor's names."""
    config: dict[str, Any] = json.loads((layout.head_folder(folder) / "config.json").read_text())
    return config, dequantize(read_safetensors(folder / layout.head.file)[0])


def reference(layout: Layout, folder: Path) -> EagleHead:
    """Returns the reference for a layout that was written to `folder`."""
    config, tensors = read_drafter(layout, folder)
    rows, columns = tensors["fc.weight"].shape
    kind = Eagle1Head if columns == 2 * rows else Eagle3Head
    return kind(config, tensors, *embedding_and_lm_head(layout, folder))
