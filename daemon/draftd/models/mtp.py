"""A multi-token prediction (MTP) head: the draft head that checkpoints of several families bring along.

With h_t the target's last hidden state at position t and x_{t+1} the token after it, the pair (h_t, x_{t+1}) predicts
x_{t+2}:

    z = fc([norm_e(embedding(x_{t+1})); norm_h(h_t)]);  y = norm(layer(z));  logits = lm_head(y)

To look further ahead, y takes the place of the next hidden state. Embedding and lm_head are the target's, unless the
head has its own. Sources: vLLM's qwen3_next_mtp.py and qwen3_5_mtp.py; DeepSeek-V3 (arXiv 2412.19437, section 2.2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn

from draftd.models.fed_head import FedHead, output_layer
from draftd.models.mlx_lm import CacheList, KVCache, base
from draftd.models.target_parts import LayerKind, TargetParts


class MTPHead(FedHead):
    """An MTP head."""

    def __init__(
        self,
        parts: TargetParts,
        ids: mx.array | None = None,
        stored: Collection[str] = (),
        kinds: Sequence[LayerKind] | None = None,
    ) -> None:
        """`kinds`: of its layers; one of the target's first kind if that is None."""
        super().__init__(parts, ids, stored)
        kinds = parts.kinds[:1] if kinds is None else kinds
        size, epsilon = parts.size, float(parts.norm.eps)
        self.pre_fc_norm_embedding = nn.RMSNorm(size, eps=epsilon)
        self.pre_fc_norm_hidden = nn.RMSNorm(size, eps=epsilon)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = [parts.new_layer(kind) for kind in kinds]
        self.norm = nn.RMSNorm(size, eps=epsilon)
        self.lm_head = output_layer(parts, ids, own="lm_head.weight" in stored)
        self.zero_centred = parts.zero_centred
        self._new_caches = partial(parts.new_caches, kinds)
        self._latent = any(path.endswith("embed_q") for path, _ in self.named_modules())  # it takes no other mask
        self._cached = [cache is not None for cache in self._new_caches()]

    def make_cache(self) -> list[Any]:
        return [*(cache for cache in self._new_caches() if cache is not None), KVCache()]

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        embedded = self.embed(tokens)
        states = self.fed.take(tokens.shape[1])
        states = embedded if states is None else states.astype(embedded.dtype)
        self.keep_states(states, cache)
        inputs = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states)]
        x = self.fc(mx.concatenate(inputs if self.form.embedding_first else inputs[::-1], axis=-1))
        mask = base.create_attention_mask(x, _first(cache), return_array=self._latent)
        rest = iter(cache or ())
        for layer, cached in zip(self.layers, self._cached, strict=True):
            x = layer(x, mask, next(rest, None) if cached else None)
        return self.lm_head(self.norm(x))


def _first(caches: Any) -> Any:
    """Returns the first cache of the first layer; None without caches."""
    first = None if caches is None else caches[0]
    return first[0] if isinstance(first, CacheList | list | tuple) else first
