"""A multi-token prediction (MTP) head: the draft head that checkpoints of several families bring along.

With h_t the target's last hidden state at position t and x_{t+1} the token after it, the pair (h_t, x_{t+1}) predicts
x_{t+2}:

    z = fc([norm_e(embedding(x_{t+1})); norm_h(h_t)]);  y = norm(layer(z));  logits = lm_head(y)

To look further ahead, y takes the place of the next hidden state. Embedding and lm_head are the target's, unless the
head has its own. Sources: vLLM's qwen3_next_mtp.py and qwen3_5_mtp.py; DeepSeek-V3 (arXiv 2412.19437, section 2.2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn

from draftd.models.head_families import HeadForm
from draftd.models.mlx_lm import CacheList, KVCache, base
from draftd.models.target_parts import LayerKind, TargetParts


class FedStates:
    """The hidden states that the head's next calls take, one after the other."""

    def __init__(self) -> None:
        self._states: mx.array | None = None
        self._taken = 0
        self.outputs: list[mx.array] = []  # what chained heads made of the last token of the call before

    @contextlib.contextmanager
    def of(self, states: mx.array) -> Iterator[None]:
        """Gives the calls inside the `with` block these states, rows × width × size."""
        self._states, self._taken, self.outputs = states, 0, []
        try:
            yield
        finally:
            self._states, self.outputs = None, []

    def take(self, width: int) -> mx.array | None:
        """Returns the states of the next `width` positions, rows × width × size; None outside of a block."""
        if self._states is None:
            return None
        self._taken += width
        assert self._taken <= self._states.shape[1], "each fed token has a hidden state"
        return self._states[:, self._taken - width : self._taken]


class TargetLinear(nn.Module):  # type: ignore[misc]
    """The target's output layer. Its weights are the target's, so they are none of the head's own parameters."""

    def __init__(self, source: Any) -> None:
        """`source`: a linear layer or an embedding, quantised or not."""
        super().__init__()
        self._weight = source.weight
        self._scales, self._biases = source.get("scales"), source.get("biases")
        self._options = quantisation(source)

    @property
    def weight(self) -> mx.array:
        """The target's weight, logits × size, packed if it is quantised."""
        return self._weight

    def __call__(self, x: mx.array) -> mx.array:
        if self._scales is None:
            return x @ self._weight.T
        return mx.quantized_matmul(
            x, self._weight, scales=self._scales, biases=self._biases, transpose=True, **self._options
        )


def quantisation(layer: Any) -> dict[str, Any]:
    """Returns the options with which a layer's weight is quantised; none if it is not."""
    return {name: getattr(layer, name) for name in ("group_size", "bits", "mode") if hasattr(layer, name)}


def chosen_rows(source: Any, rows: mx.array) -> Any:
    """Returns a linear layer with these rows of `source`, a linear layer or an embedding, quantised or not: the output
    layer for a part of the vocabulary."""
    if source.get("scales") is None:
        layer = nn.Linear(source.weight.shape[1], rows.size, bias=False)
        layer.weight = source.weight[rows]
        return layer
    options = quantisation(source)
    layer = nn.QuantizedLinear(options["group_size"], rows.size, bias=False, **options)
    layer.weight, layer.scales = source.weight[rows], source.scales[rows]
    if source.get("biases") is not None:
        layer.biases = source.biases[rows]
    else:
        layer.pop("biases", None)
    return layer


def output_layer(parts: TargetParts, ids: mx.array | None, *, own: bool) -> Any:
    """Returns a head's output layer: its `own`, with random weights, or what it needs of the target's. `ids`: the
    target's token id of each logit; None for all."""
    if own:
        vocabulary = parts.embedding.weight.shape[0] if ids is None else ids.size
        return nn.Linear(parts.size, vocabulary, bias=False)
    return TargetLinear(parts.lm_head) if ids is None else chosen_rows(parts.lm_head, ids)


class MTPHead(nn.Module):  # type: ignore[misc]
    """An MTP head, called like mlx-lm's models: token ids, rows × width, and caches; returns logits, rows × width ×
    vocabulary. The hidden state before each token comes from `fed`; without one the token's embedding stands in for it,
    which is only of use to try the caches.

    Its last cache keeps the hidden states themselves, in two halves: a text that is taken up again from kept caches
    goes on from the last of them."""

    def __init__(
        self,
        parts: TargetParts,
        ids: mx.array | None = None,
        stored: Collection[str] = (),
        kinds: Sequence[LayerKind] | None = None,
    ) -> None:
        """`ids`: the target's token id of each logit, if the head has a vocabulary of its own; else None. `stored`:
        the names of its arrays; without some for an embedding and an output layer, these are the target's. `kinds`: of
        its layers; one of the target's first kind if that is None."""
        super().__init__()
        kinds = parts.kinds[:1] if kinds is None else kinds
        size, epsilon, vocabulary = parts.size, float(parts.norm.eps), parts.embedding.weight.shape[0]
        self.pre_fc_norm_embedding = nn.RMSNorm(size, eps=epsilon)
        self.pre_fc_norm_hidden = nn.RMSNorm(size, eps=epsilon)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = [parts.new_layer(kind) for kind in kinds]
        self.norm = nn.RMSNorm(size, eps=epsilon)
        self.lm_head = output_layer(parts, ids, own="lm_head.weight" in stored)
        if "embed_tokens.weight" in stored:
            self.embed_tokens = nn.Embedding(vocabulary, size)
        self.form, self.fed = HeadForm(), FedStates()
        self.zero_centred = parts.zero_centred
        self._embedding = parts.embedding.__call__
        self._new_caches = partial(parts.new_caches, kinds)
        self._latent = any(path.endswith("embed_q") for path, _ in self.named_modules())  # it takes no other mask
        self._cached = [cache is not None for cache in self._new_caches()]
        self._ids = ids

    @property
    def ids(self) -> mx.array | None:
        """The target's token id of each logit; None if logits are over the target's vocabulary."""
        return self._ids

    def project(self, states: mx.array) -> mx.array:
        """Returns the target's hidden states as the head's: they are of the same kind."""
        return states

    def make_cache(self) -> list[Any]:
        return [*(cache for cache in self._new_caches() if cache is not None), KVCache()]

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        embedded = self.embed_tokens(tokens) if "embed_tokens" in self else self._embedding(tokens)
        states = self.fed.take(tokens.shape[1])
        states = embedded if states is None else states.astype(embedded.dtype)
        if cache is not None:
            half = states.shape[-1] // 2
            cache[-1].update_and_fetch(states[:, None, :, :half], states[:, None, :, half:])
        inputs = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states)]
        x = self.fc(mx.concatenate(inputs if self.form.embedding_first else inputs[::-1], axis=-1))
        mask = base.create_attention_mask(x, _first(cache), return_array=self._latent)
        rest = iter(cache or ())
        for layer, cached in zip(self.layers, self._cached, strict=True):
            x = layer(x, mask, next(rest, None) if cached else None)
        return self.lm_head(self.norm(x))

    def take_form(self, form: HeadForm) -> None:
        """Changes to another form."""
        shift_norms(self, form.added_to_norms - self.form.added_to_norms)
        self.form = form


def _first(caches: Any) -> Any:
    """Returns the first cache of the first layer; None without caches."""
    first = None if caches is None else caches[0]
    return first[0] if isinstance(first, CacheList | list | tuple) else first


def shift_norms(head: nn.Module, more: int) -> None:
    """Adds a number to the weights of all norms."""
    if more:
        for norm in norms(head):
            norm.weight = norm.weight + more


def norms(head: nn.Module) -> Iterator[Any]:
    """Yields the head's normalising layers: they are those with one-dimensional weights."""
    for module in head.modules():
        weight = module.get("weight")
        if isinstance(weight, mx.array) and weight.ndim == 1:
            yield module
