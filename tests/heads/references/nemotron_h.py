"""Computes what the draft head of Nemotron-H says, in NumPy's float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.heads.layouts.files import Tensors
from tests.heads.layouts.layout import Layout
from tests.heads.reference import Array, Cache, rms_normed, sigmoid
from tests.heads.references.step import causally_attended, stored_tensors

_KINDS = {"attention": "*", "full_attention": "*", "moe": "E"}


class ReferenceNemotronHead:
    """A head of several layers, by its pattern. `tensors` has the vendor's names, which begin with `mtp.`, and values.

    - The head takes the target's state *after* `norm_f`, and is fed its own state after `final_layernorm`, of which
      logits are made by the target's lm_head: vLLM's nemotron_h.py and nemotron_h_mtp.py, SGLang's nemotron_h_mtp.py.
    - eh_proj takes the embedding first: [enorm(embedding); hnorm(state)]. No embedding is zeroed. It is the target's.
    - Each layer adds mixer(norm(x)) to x: first attention, then a mixture of experts (`mtp_hybrid_override_pattern`
      "*E", or `mtp_layers_block_type`). The first layer has enorm, hnorm and eh_proj, the last `final_layernorm`.
    - Attention is full and causal, without RoPE or any other position, and without biases or norms: vLLM's
      nemotron_h.py.
    - The mixture: sigmoid scores, e_score_correction_bias only for the choice, normalised weights times
      `routed_scaling_factor`, experts down(relu(up(x))²) and a shared one. With `moe_latent_size` the routed experts
      are between fc1_latent_proj and fc2_latent_proj; the router and the shared expert take the full size.
    - Norms hold the factor itself, without + 1.
    """

    takes_normed_states = True

    def __init__(self, config: dict[str, Any], tensors: Tensors, embedding: Array, lm_head: Array) -> None:
        self._config = config
        kinds = config.get("mtp_hybrid_override_pattern") or [_KINDS[name] for name in config["mtp_layers_block_type"]]
        self._pattern = "".join(kinds)
        self._tensors = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self._embedding = np.asarray(embedding, np.float64)
        self._lm_head = np.asarray(lm_head, np.float64)
        self.least_router_margin = np.inf  # between the last expert that was chosen and the first that was not

    def empty_caches(self) -> list[Cache]:
        """Returns a cache of no pairs for each layer of attention."""
        empty = np.zeros((0, int(self._config["num_key_value_heads"]), int(self._config["head_dim"])))
        return [Cache(empty, empty) for _ in range(self._pattern.count("*"))]

    def logits(self, hidden: Array, next_tokens: Array, steps: int = 3) -> Array:
        """Returns the logits (steps, vocabulary) of what follows the last pair, each step after the likeliest token.

        `hidden` has the target's states of positions 0 to T - 1, after `norm_f`; `next_tokens` the tokens at 1 to T.
        """
        caches = self.empty_caches()
        state = self.states(np.asarray(hidden, np.float64), np.asarray(next_tokens), caches)[-1:]
        rows = [self._lm_head @ state[0]]
        while len(rows) < steps:
            state = self.states(state, np.array([rows[-1].argmax()]), caches)
            rows.append(self._lm_head @ state[0])
        return np.stack(rows)

    def states(self, hidden: Array, tokens: Array, caches: list[Cache]) -> Array:
        """Returns the head's states (pairs, hidden) after its final norm, and adds the pairs to `caches`."""
        first, last = "mtp.layers.0", f"mtp.layers.{len(self._pattern) - 1}"
        mixed = np.concatenate(
            [self._normed(self._embedding[tokens], f"{first}.enorm"), self._normed(hidden, f"{first}.hnorm")], axis=-1
        )
        states, remaining = self._projected(mixed, f"{first}.eh_proj"), iter(caches)
        for layer, kind in enumerate(self._pattern):
            normed, mixer = self._normed(states, f"mtp.layers.{layer}.norm"), f"mtp.layers.{layer}.mixer"
            states = states + (
                self._attention(normed, next(remaining), mixer) if kind == "*" else self._mixture(normed, mixer)
            )
        return self._normed(states, f"{last}.final_layernorm")

    def _attention(self, entered: Array, cache: Cache, prefix: str) -> Array:
        size = int(self._config["head_dim"])

        def heads(name: str) -> Array:
            return self._projected(entered, f"{prefix}.{name}").reshape(len(entered), -1, size)

        cache.keys = np.concatenate([cache.keys, heads("k_proj")])
        cache.values = np.concatenate([cache.values, heads("v_proj")])
        attended = causally_attended(heads("q_proj"), cache.keys, cache.values, size**-0.5)
        return self._projected(attended.reshape(len(entered), -1), f"{prefix}.o_proj")

    def _mixture(self, entered: Array, prefix: str) -> Array:
        taken = int(self._config["num_experts_per_tok"])
        scores = sigmoid(self._projected(entered, f"{prefix}.gate"))
        biased = scores + self._tensors[f"{prefix}.gate.e_score_correction_bias"]
        is_latent = f"{prefix}.fc1_latent_proj.weight" in self._tensors
        inputs = self._projected(entered, f"{prefix}.fc1_latent_proj") if is_latent else entered
        routed = np.zeros_like(inputs)
        for row, chances in enumerate(biased):
            order = np.argsort(-chances)
            margin = chances[order[taken - 1]] - chances[order[taken]]
            self.least_router_margin = min(self.least_router_margin, float(margin))
            weights = scores[row, order[:taken]]
            if self._config["norm_topk_prob"]:
                weights = weights / weights.sum()
            for expert, weight in zip(order[:taken], weights, strict=True):
                routed[row] += weight * self._mlp(inputs[row], f"{prefix}.experts.{expert}")
        routed *= float(self._config["routed_scaling_factor"])
        if is_latent:
            routed = self._projected(routed, f"{prefix}.fc2_latent_proj")
        return routed + self._mlp(entered, f"{prefix}.shared_experts")

    def _mlp(self, entered: Array, prefix: str) -> Array:
        inner = np.square(np.maximum(self._projected(entered, f"{prefix}.up_proj"), 0.0))
        return self._projected(inner, f"{prefix}.down_proj")

    def _normed(self, values: Array, name: str) -> Array:
        epsilon = float(self._config["layer_norm_epsilon"])
        return rms_normed(values, self._tensors[f"{name}.weight"] - 1.0, epsilon)

    def _projected(self, values: Array, name: str) -> Array:
        return values @ self._tensors[f"{name}.weight"].T


def reference(layout: Layout, folder: Path) -> ReferenceNemotronHead:
    """Returns the reference for a layout that was written to `folder`."""
    config = json.loads((layout.target_folder(folder) / "config.json").read_text())
    tensors = stored_tensors(layout, folder)
    head = {name: tensor for name, tensor in tensors.items() if name.startswith("mtp.")}
    return ReferenceNemotronHead(config, head, tensors["backbone.embeddings.weight"], tensors["lm_head.weight"])
