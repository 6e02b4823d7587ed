"""Computes what heads of the DeepSeek form say, in NumPy's float64: what is the same in DeepSeek and GLM.

Written after vLLM's deepseek_mtp.py, glm4_moe_mtp.py, glm4_moe_lite_mtp.py and models/deepseek_v32/nvidia/mtp.py,
SGLang's deepseek_nextn.py and glm4_moe_nextn.py, llama.cpp's glm-dsa.cpp, and DeepSeek's README_WEIGHTS.md. All agree:

- pair i is (the target's state at position i after its final norm, the token at i + 1), and has position i;
- eh_proj takes the embedding first: eh_proj [enorm(embedding); hnorm(state)];
- one decoder layer of the target's kind, always with experts, with its own cache, then shared_head.norm, which is the
  head's own, and the output layer;
- norms are plain RMS norms: nothing is added to their weights;
- the embedding and the output layer have the target's values, whether or not the head repeats them.

They differ in two details. What is chosen here, and why:

- the state that is fed back is taken after shared_head.norm: SGLang, llama.cpp, TensorRT-LLM's modeling_glm.py, and
  vLLM's deepseek_mtp.py since #45895 (#47448 for V3.2 and GLM-5). vLLM's two GLM-4 files feed the state before it.
- no embedding is zeroed: SGLang and llama.cpp. vLLM zeroes that of pair 0, which vLLM#33299 calls a bug.

Change `feeds_normed_state` or `zeroes_first_embedding` on an instance for the other way.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from tests.heads.layouts.files import Config, read_safetensors
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.quantization import dequantize
from tests.heads.reference import Array, Cache, sigmoid, silu, softmax

_LOWEST = -np.inf


def rms_normed(values: Array, weight: Array, epsilon: float) -> Array:
    """Returns RMS-normed values times weight."""
    return values / np.sqrt(np.square(values).mean(-1, keepdims=True) + epsilon) * weight


class NextnHead(ABC):
    """A head. `tensors` has the vendor's names without `model.layers.{N}.`, and values."""

    takes_normed_states = feeds_normed_state = True
    zeroes_first_embedding = False

    def __init__(self, config: Config, tensors: dict[str, Array], embedding: Array, lm_head: Array) -> None:
        self._tensors = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self._embedding = self._tensors.get("embed_tokens.weight", np.asarray(embedding, np.float64))
        self._lm_head = self._tensors.get("shared_head.head.weight", np.asarray(lm_head, np.float64))
        self._epsilon = float(config["rms_norm_eps"])
        self._heads = int(config["num_attention_heads"])
        self._chosen = int(config["num_experts_per_tok"])
        self._groups, self._chosen_groups = int(config["n_group"]), int(config["topk_group"])
        self._normalizes_scores = bool(config["norm_topk_prob"])
        self._scaling = float(config["routed_scaling_factor"])
        self.least_router_margin = np.inf  # between the last expert or group that was chosen and the first that was not

    @abstractmethod
    def empty_cache(self) -> Cache:
        """Returns a cache of no pairs."""

    @abstractmethod
    def _attention(self, entered: Array, cache: Cache) -> Array:
        """Returns what attention makes of normed states (pairs, hidden), and adds the pairs to `cache`."""

    def outputs(self, hidden: Array, tokens: Array, cache: Cache) -> Array:
        """Returns the layer's outputs (pairs, hidden), before shared_head.norm, and adds the pairs to `cache`."""
        embedded = self._embedding[np.asarray(tokens)]
        if self.zeroes_first_embedding and cache.length == 0:
            embedded[0] = 0.0
        mixed = np.concatenate(
            [self._normed(embedded, "enorm"), self._normed(np.asarray(hidden, np.float64), "hnorm")], axis=-1
        )
        return self.layer(self._projected(mixed, "eh_proj"), cache)

    def layer(self, entered: Array, cache: Cache) -> Array:
        """Returns what the decoder layer makes of `entered` (pairs, hidden)."""
        attended = entered + self._attention(self._normed(entered, "input_layernorm"), cache)
        return attended + self._mixture(self._normed(attended, "post_attention_layernorm"))

    def logits(self, hidden: Array, next_tokens: Array, steps: int = 3) -> Array:
        """Returns the logits (steps, vocabulary) of what follows the last pair, each step after the likeliest token.

        `hidden` has the target's states of positions 0 to T - 1, `next_tokens` the tokens at 1 to T.
        """
        cache, rows = self.empty_cache(), list[Array]()
        output = self.outputs(hidden, next_tokens, cache)[-1:]
        while True:
            state = self._normed(output, "shared_head.norm")
            rows.append(self._lm_head @ state[0])
            if len(rows) == steps:
                return np.stack(rows)
            fed = state if self.feeds_normed_state else output
            output = self.outputs(fed, np.array([rows[-1].argmax()]), cache)

    def _normed(self, values: Array, name: str, epsilon: float | None = None) -> Array:
        return rms_normed(values, self._tensors[f"{name}.weight"], self._epsilon if epsilon is None else epsilon)

    def _projected(self, values: Array, name: str) -> Array:
        projected: Array = values @ self._tensors[f"{name}.weight"].T
        return projected + self._tensors[f"{name}.bias"] if f"{name}.bias" in self._tensors else projected

    def _attended(self, queries: Array, cache: Cache, keys: Array, values: Array, scale: float) -> Array:
        """Returns causal attention (pairs, heads × size) to all pairs, those of `keys` and `values` included."""
        positions = np.arange(cache.length, cache.length + len(keys))
        cache.keys = np.concatenate([cache.keys, keys])
        cache.values = np.concatenate([cache.values, values])
        shared_by = self._heads // cache.keys.shape[1]
        all_keys, all_values = (np.repeat(part, shared_by, axis=1) for part in (cache.keys, cache.values))
        scores = np.einsum("qhd,khd->hqk", queries, all_keys) * scale
        is_later = np.arange(cache.length) > positions[:, None]
        weights = softmax(np.where(is_later, _LOWEST, scores))
        return np.einsum("hqk,khd->qhd", weights, all_values).reshape(len(keys), -1)

    def _glu(self, entered: Array, prefix: str) -> Array:
        inner = silu(self._projected(entered, f"{prefix}.gate_proj")) * self._projected(entered, f"{prefix}.up_proj")
        return self._projected(inner, f"{prefix}.down_proj")

    def _mixture(self, entered: Array) -> Array:
        """Returns the shared experts' output, unweighted, and that of the chosen experts, by normalised scores.

        DeepSeek's inference/model.py, class Gate: the bias decides only which experts are chosen. A group's rank is the
        sum of its two best experts.
        """
        scores = sigmoid(self._projected(entered, "mlp.gate"))
        result = self._glu(entered, "mlp.shared_experts")
        for row, scores_of_row in enumerate(scores):
            chosen = self._chosen_experts(scores_of_row + self._tensors["mlp.gate.e_score_correction_bias"])
            weights = scores_of_row[chosen]
            if self._normalizes_scores:
                weights = weights / weights.sum()
            for expert, weight in zip(chosen, weights * self._scaling, strict=True):
                result[row] += weight * self._glu(entered[row], f"mlp.experts.{expert}")
        return result

    def _chosen_experts(self, ranks: Array) -> Array:
        if self._groups > 1:
            by_group = ranks.reshape(self._groups, -1)
            groups = self._largest(np.sort(by_group, axis=-1)[:, -2:].sum(-1), self._chosen_groups)
            is_chosen = np.isin(np.arange(self._groups), groups)
            ranks = np.where(is_chosen[:, None], by_group, _LOWEST).reshape(-1)
        return self._largest(ranks, self._chosen)

    def _largest(self, ranks: Array, count: int) -> Array:
        order = np.argsort(-ranks)
        if count < len(ranks):
            margin = float(ranks[order[count - 1]] - ranks[order[count]])
            self.least_router_margin = min(self.least_router_margin, margin)
        return order[:count]


def read_head(layout: Layout, folder: Path) -> tuple[Config, dict[str, Array], Array, Array]:
    """Returns config.json, the head with the vendor's names without their prefix, the embedding, and the output layer.

    What was in 4 bit has the values that it stands for. mlx-lm's stacks of experts, embed_q and unembed_out become the
    vendor's experts and kv_b_proj.
    """
    target_folder = layout.target_folder(folder)
    config = json.loads((target_folder / "config.json").read_text())
    target = dequantize(read_safetensors(target_folder / "model.safetensors")[0])
    stored = dequantize(read_safetensors(folder / layout.head.file)[0])
    prefix = layout.head.prefix
    head = {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}
    return config, _unconverted(head), target["model.embed_tokens.weight"], target["lm_head.weight"]


def _unconverted(head: dict[str, Array]) -> dict[str, Array]:
    raw: dict[str, Any] = {}
    for name, tensor in head.items():
        if name.startswith("mlp.switch_mlp."):
            projection = name.removeprefix("mlp.switch_mlp.")
            raw |= {f"mlp.experts.{number}.{projection}": expert for number, expert in enumerate(tensor)}
        elif name == "self_attn.embed_q.weight":
            by_head = [tensor.swapaxes(1, 2), head["self_attn.unembed_out.weight"]]
            raw["self_attn.kv_b_proj.weight"] = np.concatenate(by_head, axis=1).reshape(-1, tensor.shape[1])
        elif name != "self_attn.unembed_out.weight":
            raw[name] = tensor
    return raw
