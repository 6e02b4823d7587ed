"""The common parts of draft heads: what they are fed, and what they share with their target."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from draftd.models.head_families import HeadForm
from draftd.models.mlx_lm import KVCache, RotatingKVCache
from draftd.models.target_parts import TargetParts


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


class FedHead(nn.Module):  # type: ignore[misc]
    """A draft head, called like mlx-lm's models: token ids, rows × width, and caches; returns logits, rows × width ×
    vocabulary. The hidden state before each token comes from `fed`; without one the token's embedding stands in for it,
    which is only of use to try the caches.

    Its last cache keeps the hidden states themselves, in two halves: a text that is taken up again from kept caches
    goes on from the last of them."""

    zero_centred = False  # whether norms are published as the w of 1 + w

    def __init__(self, parts: TargetParts, ids: mx.array | None = None, stored: Collection[str] = ()) -> None:
        """`ids`: the target's token id of each logit, if the head has a vocabulary of its own; else None. `stored`: the
        names of its arrays; without some for an embedding and an output layer, these are the target's."""
        super().__init__()
        self.form, self.fed = HeadForm(), FedStates()
        self._embedding, self._size, self._ids = parts.embedding.__call__, parts.size, ids
        self._windows: Sequence[int | None] = ()  # of each layer: the keys that a token sees, or None for all
        if "embed_tokens.weight" in stored:
            self.embed_tokens = nn.Embedding(parts.embedding.weight.shape[0], parts.size)

    @property
    def ids(self) -> mx.array | None:
        """The target's token id of each logit; None if logits are over the target's vocabulary."""
        return self._ids

    def project(self, states: mx.array) -> mx.array:
        """Returns the target's hidden states as the head's, rows × width × size. Those that are the head's already are
        returned as they are."""
        return states

    def embed(self, tokens: mx.array) -> mx.array:
        """Returns the tokens' embeddings, rows × width × size."""
        embedded: mx.array = self.embed_tokens(tokens) if "embed_tokens" in self else self._embedding(tokens)
        return embedded

    def keep_states(self, states: mx.array, cache: Any) -> None:
        """Adds states to the last cache, if there are caches."""
        if cache is not None:
            cache[-1].update_and_fetch(*mx.split(states[:, None], 2, axis=-1))

    def make_cache(self) -> list[Any]:
        return [*(RotatingKVCache(max_size=window) if window else KVCache() for window in self._windows), KVCache()]

    def take_form(self, form: HeadForm) -> None:
        """Changes to another form."""
        shift_norms(self, form.added_to_norms - self.form.added_to_norms)
        self.form = form


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
