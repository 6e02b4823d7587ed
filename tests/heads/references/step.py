"""Computes what the three chained heads of Step-3.5-Flash say, in NumPy's float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.heads.layouts.files import Tensors, read_safetensors
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.quantization import dequantize
from tests.heads.reference import Array, rms_normed, rotated, sigmoid, silu, softmax


class ReferenceStepHeads:
    """Three chained heads. `tensors` has the vendor's names, `model.layers.{N}` to `{N + 2}`, and values.

    - The first head takes the target's state *before* its final norm; each later head takes the state that the head
      before it gave at the same position, also before a norm: vLLM's step3p5.py, where `norm` is in `compute_logits`,
      and step3p5_mtp.py; SGLang's step3p5_mtp.py, `hidden_states_before_norm`.
    - Head i takes at position p the token at p + 1 + i, and RoPE at position p. It runs over *all* positions, so that
      its own keys and values are of the chain: SGLang's multi_layer_eagle_worker_v2.py (`chain_mtp_hidden_states`,
      `rotate_input_ids`) and vLLM's multi_module_mtp/speculator.py. vLLM's older spec_decode/step3p5.py gives the later
      heads only the draft's positions, and llama.cpp fills their caches with the target's states: both approximate.
    - eh_proj takes the embedding first: [enorm(embedding); hnorm(state)]. No embedding is zeroed. It is the target's.
    - The layer is the target's of index N + i by config: sliding attention with its own count of heads, the RoPE of
      its entries in `rope_theta` and `partial_rotary_factors` without scaling, norms of queries and keys, one gate per
      attention head, and a dense MLP clamped where `swiglu_limits_shared` says so: vLLM's step3p5.py.
    - All norms hold w of (1 + w): GemmaRMSNorm. logits = shared_head.output(shared_head.norm(state)), each head's own.
    """

    takes_normed_states = False

    def __init__(self, config: dict[str, Any], tensors: Tensors, embedding: Array) -> None:
        self._config = config
        self._tensors = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self._embedding = np.asarray(embedding, np.float64)
        self.least_router_margin = np.inf  # the heads have no router

    def logits(self, hidden: Array, next_tokens: Array, steps: int = 3) -> Array:
        """Returns the logits (steps, vocabulary) of what follows the last pair, of one head after the other, each
        after the likeliest token of the head before it.

        `hidden` has the target's states of positions 0 to T - 1, before its final norm; `next_tokens` the tokens at 1
        to T.
        """
        first, heads = int(self._config["num_hidden_layers"]), int(self._config["num_nextn_predict_layers"])
        if steps > heads:
            raise ValueError(f"{heads} heads do not draft {steps} tokens")
        states, tokens, rows = np.asarray(hidden, np.float64), np.asarray(next_tokens), list[Array]()
        for layer in range(first, first + steps):
            states = self.states(layer, states, tokens)
            shared_head = f"model.layers.{layer}.transformer.shared_head"
            rows.append(self._projected(self._normed(states[-1:], f"{shared_head}.norm"), f"{shared_head}.output")[0])
            tokens = np.append(tokens[1:], rows[-1].argmax())
        return np.stack(rows)

    def states(self, layer: int, states: Array, tokens: Array) -> Array:
        """Returns what one head makes of `states` (positions, hidden) and of the token that each one is paired with."""
        prefix = f"model.layers.{layer}"
        mixed = np.concatenate(
            [self._normed(self._embedding[tokens], f"{prefix}.enorm"), self._normed(states, f"{prefix}.hnorm")], axis=-1
        )
        return self.layer(layer, self._projected(mixed, f"{prefix}.eh_proj"))

    def layer(self, layer: int, entered: Array) -> Array:
        """Returns what the decoder layer makes of `entered` (positions, hidden)."""
        prefix = f"model.layers.{layer}"
        attended = entered + self._attention(layer, self._normed(entered, f"{prefix}.input_layernorm"))
        normed = self._normed(attended, f"{prefix}.post_attention_layernorm")
        gate = silu(self._projected(normed, f"{prefix}.mlp.gate_proj"))
        up = self._projected(normed, f"{prefix}.mlp.up_proj")
        limit = self._config["swiglu_limits_shared"][layer]
        if limit:
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return attended + self._projected(gate * up, f"{prefix}.mlp.down_proj")

    def _attention(self, layer: int, entered: Array) -> Array:
        config, prefix = self._config, f"model.layers.{layer}.self_attn"
        is_sliding = config["layer_types"][layer] == "sliding_attention"
        counts = config["attention_other_setting"] if is_sliding else config
        heads, kv_heads = int(counts["num_attention_heads"]), int(counts["num_attention_groups"])
        length, size = len(entered), int(config["head_dim"])
        positions = np.arange(length)
        dimensions = int(size * config["partial_rotary_factors"][layer])
        if not is_sliding:
            raise ValueError("the scaling of RoPE in full attention is not implemented: no published head needs it")

        queries = self._projected(entered, f"{prefix}.q_proj").reshape(length, heads, size)
        keys = self._projected(entered, f"{prefix}.k_proj").reshape(length, kv_heads, size)
        values = self._projected(entered, f"{prefix}.v_proj").reshape(length, kv_heads, size)
        base = float(config["rope_theta"][layer])
        queries = rotated(self._normed(queries, f"{prefix}.q_norm"), positions, dimensions, base)
        keys = rotated(self._normed(keys, f"{prefix}.k_norm"), positions, dimensions, base)
        attended = causally_attended(queries, keys, values, size**-0.5, int(config["sliding_window"]))
        gates = sigmoid(self._projected(entered, f"{prefix}.g_proj"))
        return self._projected((attended * gates[..., None]).reshape(length, -1), f"{prefix}.o_proj")

    def _normed(self, values: Array, name: str) -> Array:
        return rms_normed(values, self._tensors[f"{name}.weight"], float(self._config["rms_norm_eps"]))

    def _projected(self, values: Array, name: str) -> Array:
        return values @ self._tensors[f"{name}.weight"].T


def causally_attended(queries: Array, keys: Array, values: Array, scale: float, window: int | None = None) -> Array:
    """Returns values (queries, heads, size) attended to by the last positions, of which there is one for each query.

    Each query sees the keys up to its own position, and with a `window` only that many of them, its own included.
    """
    total, shared_by = len(keys), queries.shape[1] // keys.shape[1]
    positions = np.arange(total - len(queries), total)[:, None]
    keys, values = (np.repeat(part, shared_by, axis=1) for part in (keys, values))
    hidden = np.arange(total) > positions
    if window is not None:
        hidden |= np.arange(total) <= positions - window
    scores = np.where(hidden, -np.inf, np.einsum("qhd,khd->hqk", queries, keys) * scale)
    return np.einsum("hqk,khd->qhd", softmax(scores), values)


def stored_tensors(layout: Layout, folder: Path) -> Tensors:
    """Returns all tensors of a written layout as float64, the target's and the head's."""
    tensors: Tensors = {}
    for file in {*layout.target_folder(folder).glob("model*.safetensors"), folder / layout.head.file}:
        tensors |= dequantize(read_safetensors(file)[0])
    return tensors


def reference(layout: Layout, folder: Path) -> ReferenceStepHeads:
    """Returns the reference for a layout that was written to `folder`."""
    config = json.loads((layout.target_folder(folder) / "config.json").read_text())
    tensors = stored_tensors(layout, folder)
    prefixes = tuple(
        f"model.layers.{config['num_hidden_layers'] + head}." for head in range(config["num_nextn_predict_layers"])
    )
    heads = {name: tensor for name, tensor in tensors.items() if name.startswith(prefixes)}
    return ReferenceStepHeads(config, heads, tensors["model.embed_tokens.weight"])
