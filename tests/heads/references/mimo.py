"""Computes what the draft head of MiMo-7B says, in NumPy's float64; `PlainHead` serves the heads beside it too.

Written after vLLM's mimo.py and mimo_mtp.py (by Xiaomi), SGLang's mimo_mtp.py and Xiaomi's modeling_mimo.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.heads.layouts.files import Config, Tensors, read_safetensors
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.quantization import dequantize
from tests.heads.reference import Array, Cache, rotated, silu, softmax


class PlainHead:
    """Computes a head of one layer, whose norms hold w and whose attention has no gate.

    Subclasses give the names and the choices of a family. Names in `tensors` begin after StoredHead.prefix.
    """

    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str
    layer_prefix = ""
    takes_normed_states: bool  # whether the target's states are taken after its final norm
    feeds_normed_state: bool  # whether the next step takes the state after the head's final norm
    hidden_first = False  # whether the state is before the embedding in what `projection` takes
    zeroes_first_embedding = False  # whether the embedding at position 0 is zero

    def __init__(self, config: Config, tensors: Tensors, embedding: Array, lm_head: Array) -> None:
        self.config = config
        self._tensors = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self._embedding, self._lm_head = np.asarray(embedding, np.float64), np.asarray(lm_head, np.float64)
        self._epsilon = float(config["rms_norm_eps"])
        self._heads, self._kv_heads = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
        self._size = int(config.get("head_dim") or config["hidden_size"] // self._heads)
        self._rotary_dimensions = int(self._size * config.get("partial_rotary_factor", 1.0))
        self._rotary_base = float((config.get("rope_parameters") or config)["rope_theta"])
        self.least_router_margin = np.inf  # between the last expert or group that was chosen and the first that was not

    def logits(self, hidden: Array, next_tokens: Array, steps: int = 3) -> Array:
        """Returns the logits (steps, vocabulary) of what follows the last pair, each step after the likeliest token.

        `hidden` has the target's states of positions 0 to T - 1, `next_tokens` the tokens at 1 to T.
        """
        empty = np.zeros((0, self._kv_heads, self._size))
        cache, rows = Cache(empty, empty), list[Array]()
        states, tokens = np.asarray(hidden, np.float64), np.asarray(next_tokens)
        while len(rows) < steps:
            output = self._layer(self._entered(states, tokens, cache.length), cache)[-1:]
            normed = self._normed(output, self.final_norm)
            rows.append(self._lm_head @ normed[0])
            states, tokens = normed if self.feeds_normed_state else output, rows[-1].argmax(keepdims=True)
        return np.stack(rows)

    def _entered(self, states: Array, tokens: Array, first_position: int) -> Array:
        """Returns what the layer takes of pairs (state at i, token at i + 1), which have position i."""
        embeddings = self._embedding[tokens]
        if self.zeroes_first_embedding and first_position == 0:
            embeddings[0] = 0.0
        parts = [self._normed(embeddings, self.embedding_norm), self._normed(states, self.hidden_norm)]
        return self._projected(np.concatenate(parts[::-1] if self.hidden_first else parts, axis=-1), self.projection)

    def _layer(self, entered: Array, cache: Cache) -> Array:
        prefix = self.layer_prefix
        attended = entered + self._attention(self._normed(entered, f"{prefix}input_layernorm"), cache)
        return attended + self._mlp(self._normed(attended, f"{prefix}post_attention_layernorm"))

    def _mlp(self, entered: Array) -> Array:
        return self._glu(entered, f"{self.layer_prefix}mlp")

    def _attention(self, entered: Array, cache: Cache) -> Array:
        prefix = f"{self.layer_prefix}self_attn"
        queries, keys, values = (self._projected(entered, f"{prefix}.{name}_proj") for name in "qkv")
        norms = (f"{prefix}.q_norm", f"{prefix}.k_norm")
        return self._projected(self._attended(queries, keys, values, cache, norms), f"{prefix}.o_proj")

    def _attended(self, queries: Array, keys: Array, values: Array, cache: Cache, norms: tuple[str, str]) -> Array:
        """Returns causal attention over all pairs, with a norm of each query and key where the head has `norms`."""
        positions = np.arange(cache.length, cache.length + len(queries))
        queries, keys, values = (part.reshape(len(part), -1, self._size) for part in (queries, keys, values))
        if f"{norms[0]}.weight" in self._tensors:
            queries, keys = self._normed(queries, norms[0]), self._normed(keys, norms[1])
        queries, keys = self._rotated(queries, positions), self._rotated(keys, positions)
        cache.keys, cache.values = np.concatenate([cache.keys, keys]), np.concatenate([cache.values, values])
        shared_by = self._heads // self._kv_heads
        all_keys, all_values = (np.repeat(part, shared_by, axis=1) for part in (cache.keys, cache.values))
        scores = np.einsum("qhd,khd->hqk", queries, all_keys) / np.sqrt(self._size)
        weights = softmax(np.where(np.arange(cache.length) > positions[:, None], -np.inf, scores))
        return np.einsum("hqk,khd->qhd", weights, all_values).reshape(len(queries), -1)

    def _rotated(self, values: Array, positions: Array) -> Array:
        return rotated(values, positions, self._rotary_dimensions, self._rotary_base)

    def _normed(self, values: Array, name: str) -> Array:
        scale = np.sqrt(np.square(values).mean(-1, keepdims=True) + self._epsilon)
        return values / scale * self._tensors[f"{name}.weight"]

    def _projected(self, values: Array, name: str) -> Array:
        return values @ self._tensors[f"{name}.weight"].T + self._tensors.get(f"{name}.bias", 0.0)

    def _glu(self, entered: Array, prefix: str) -> Array:
        inner = silu(self._projected(entered, f"{prefix}.gate_proj")) * self._projected(entered, f"{prefix}.up_proj")
        return self._projected(inner, f"{prefix}.down_proj")


def stored_tensors(folder: Path, file: str = "model*.safetensors") -> Tensors:
    """Returns the tensors of `folder`'s model, or of one file of it, as float64."""
    tensors: Tensors = {}
    for path in sorted(folder.glob(file)):
        tensors |= dequantize(read_safetensors(path)[0])
    return tensors


def read_head(
    layout: Layout, folder: Path, embedding: str = "model.embed_tokens.weight", keeps: str = ""
) -> tuple[Config, Tensors, Array, Array]:
    """Returns what PlainHead takes of a layout that was written to `folder`.

    Names of the head's tensors lose the layout's prefix, and begin with `keeps` instead. The target's final norm is
    among them as `target_norm.weight`.
    """
    config: Config = json.loads((folder / "config.json").read_text())
    target = stored_tensors(folder)
    head = {
        keeps + name.removeprefix(layout.head.prefix): tensor
        for name, tensor in stored_tensors(folder, layout.head.file).items()
        if name.startswith(layout.head.prefix)
    }
    head["target_norm.weight"] = target["model.norm.weight"]
    return config, head, target[embedding], target.get("lm_head.weight", target[embedding])


class MiMoHead(PlainHead):
    """Computes the head `model.mtp_layers.0`.

    - input_proj takes the state first: [hidden_layernorm(state); token_layernorm(embedding)] (all sources).
    - The target's state is taken before its final norm: vLLM's mimo.py leaves the norm to compute_logits, and
      exllamav3#238 measured it so. SGLang takes it after the norm.
    - No embedding is zeroed (modeling_mimo.py; mimo_mtp.py of vLLM and SGLang zeroes that at position 0).
    - A dense Qwen2 layer: full attention, biases on q, k and v, rotary halves of the whole head.
    - final_layernorm makes logits with the target's lm_head. Its output is also fed on (vLLM and SGLang), while
      exllamav3 feeds what precedes it. Only one head is published, so no training decides on deeper steps.
    """

    embedding_norm, hidden_norm = "token_layernorm", "hidden_layernorm"
    projection, final_norm = "input_proj", "final_layernorm"
    takes_normed_states, feeds_normed_state = False, True
    hidden_first = True


def reference(layout: Layout, folder: Path) -> MiMoHead:
    """Returns the reference for a layout that was written to `folder`."""
    return MiMoHead(*read_head(layout, folder))
