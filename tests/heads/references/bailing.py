"""Computes what the draft head of Ling 2.0 and Ring 2.0 (Bailing) says, in NumPy's float64.

Written after inclusionAI's modeling_bailing_moe_v2.py and SGLang's bailing_moe_nextn.py; they agree.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.heads.layouts.layout import Layout
from tests.heads.reference import Array, Cache, sigmoid
from tests.heads.references.mimo import PlainHead, read_head


class BailingHead(PlainHead):
    """Computes the head `model.layers.{num_hidden_layers}` (BailingMoeV2MTPLayer).

    - eh_proj takes the embedding first: [enorm; hnorm].
    - The target's state is taken after its final norm, and the output of final_layernorm is fed on and makes logits
      with the target's lm_head.
    - No embedding is zeroed. vLLM's bailing_moe_mtp.py, for Ling 2.5 and 2.6, zeroes the one at position 0.
    - Full attention: one matrix for q, k and v, norms of q and k, rotary halves of a part of the head.
    - A mixture as in the target (BailingMoeV2Gate): sigmoid scores; with expert_bias they choose groups by their two
      best, then experts; without it, normalised and scaled, they weigh. A shared expert is added.
    """

    embedding_norm, hidden_norm = "enorm", "hnorm"
    projection, final_norm = "eh_proj", "final_layernorm"
    takes_normed_states, feeds_normed_state = True, True

    def _attention(self, entered: Array, cache: Cache) -> Array:
        ends = np.array([self._heads, self._heads + self._kv_heads]) * self._size
        queries, keys, values = np.split(self._projected(entered, "attention.query_key_value"), ends, axis=-1)
        norms = ("attention.query_layernorm", "attention.key_layernorm")
        return self._projected(self._attended(queries, keys, values, cache, norms), "attention.dense")

    def _mlp(self, entered: Array) -> Array:
        result = self._glu(entered, "mlp.shared_experts")
        scores = sigmoid(self._projected(entered, "mlp.gate"))
        for row, row_scores in enumerate(scores):
            experts = self._chosen(row_scores + self._tensors["mlp.gate.expert_bias"])
            weights = row_scores[experts] / (row_scores[experts].sum() + 1e-20)
            for expert, weight in zip(experts, weights * self.config["routed_scaling_factor"], strict=True):
                result[row] += weight * self._glu(entered[row], f"mlp.experts.{expert}")
        return result

    def _chosen(self, scores: Array) -> Array:
        """Returns the numbers of the best experts within the best groups."""
        grouped = scores.reshape(int(self.config["n_group"]), -1)
        groups = self._best(np.sort(grouped, axis=-1)[:, -2:].sum(-1), int(self.config["topk_group"]))
        allowed = np.full_like(grouped, -np.inf)
        allowed[groups] = grouped[groups]
        return self._best(allowed.reshape(-1), int(self.config["num_experts_per_tok"]))

    def _best(self, scores: Array, count: int) -> Array:
        order = np.argsort(-scores)
        if count < len(scores):
            margin = float(scores[order[count - 1]] - scores[order[count]])
            self.least_router_margin = min(self.least_router_margin, margin)
        return order[:count]


def reference(layout: Layout, folder: Path) -> BailingHead:
    """Returns the reference for a layout that was written to `folder`."""
    return BailingHead(*read_head(layout, folder, "model.word_embeddings.weight"))
