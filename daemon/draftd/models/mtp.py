"""A multi-token prediction (MTP) head: the draft head that checkpoints of the Qwen family bring along.

With h_t the target's last hidden state at position t and x_{t+1} the token after it, the pair (h_t, x_{t+1}) predicts
x_{t+2}:

    z = fc([norm_e(embedding(x_{t+1})); norm_h(h_t)]);  y = norm(layer(z));  logits = lm_head(y)

To look further ahead, y takes the place of the next hidden state. Embedding and lm_head are the target's, unless the
head has its own. Sources: vLLM's qwen3_next_mtp.py and qwen3_5_mtp.py; DeepSeek-V3 (arXiv 2412.19437, section 2.2).
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
from mlx import nn

from draftd.models.mlx_lm import KVCache, base

FAMILIES = ("llama", "qwen3_5", "qwen3_5_moe", "qwen3_next")  # mlx-lm's modules whose layers a head can have


@dataclass(frozen=True, slots=True)
class HeadForm:
    """The details on which sources contradict each other. `embedding_first`: the order of fc's two inputs.
    `added_to_norms`: 1 if stored norm weights are zero-centred, else 0. `after_norm`: hidden states are taken after the
    target's final norm."""

    embedding_first: bool = True
    added_to_norms: int = 0
    after_norm: bool = True

    def __str__(self) -> str:
        order = "embedding, hidden" if self.embedding_first else "hidden, embedding"
        return f"{order}; states {'after' if self.after_norm else 'before'} the norm; norms + {self.added_to_norms}"


class TargetParts(NamedTuple):
    """The parts of a target that a head shares. `body` has the embedding, the layers and the final norm. `lm_head`: the
    module whose weight makes logits; the embedding if they are tied."""

    body: Any
    args: Any
    lm_head: Any

    @classmethod
    def of(cls, target: Any) -> TargetParts | None:
        """Returns the parts; None if the target is not built like the models of `FAMILIES`."""
        if type(target).__module__.rpartition(".")[2] not in FAMILIES:
            return None
        text_model = getattr(target, "language_model", target)
        body = text_model.model
        return cls(body, text_model.args, text_model.get("lm_head", body.embed_tokens))

    @property
    def size(self) -> int:
        """Numbers of a hidden state."""
        return int(self.args.hidden_size)

    @property
    def epsilon(self) -> float:
        return float(self.args.rms_norm_eps)

    @property
    def zero_centred(self) -> bool:
        """Whether norms of the target's family are published as the w of 1 + w."""
        return type(self.args).__module__.rpartition(".")[2].startswith("qwen3_")

    def new_layer(self) -> Any:
        """Returns a new layer of the target's kind with full attention, with random weights."""
        index, layer = next((i, layer) for i, layer in enumerate(self.body.layers) if "self_attn" in layer)
        kind = getattr(sys.modules[type(layer).__module__], type(layer).__name__)  # without what draftd changed in it
        numbered = "layer_idx" in inspect.signature(kind.__init__).parameters
        return kind(self.args, index) if numbered else kind(self.args)


class FedStates:
    """The hidden states that the head's next calls take, one after the other."""

    def __init__(self) -> None:
        self._states: mx.array | None = None
        self._taken = 0

    @contextlib.contextmanager
    def of(self, states: mx.array) -> Iterator[None]:
        """Gives the calls inside the `with` block these states, rows × width × size."""
        self._states, self._taken = states, 0
        try:
            yield
        finally:
            self._states = None

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


class MTPHead(nn.Module):  # type: ignore[misc]
    """An MTP head, called like mlx-lm's models: token ids, rows × width, and caches; returns logits, rows × width ×
    vocabulary. The hidden state before each token comes from `fed`; without one the token's embedding stands in for it,
    which is only of use to try the caches.

    Its second cache keeps the hidden states themselves, in two halves: a text that is taken up again from kept caches
    goes on from the last of them."""

    def __init__(self, parts: TargetParts, ids: mx.array | None = None, own: Collection[str] = ()) -> None:
        """`ids`: the target's token id of each logit, if the head has a vocabulary of its own; else None. `own`: which
        of `embed_tokens` and `lm_head` the head has itself, so that they are not the target's."""
        super().__init__()
        size, epsilon, vocabulary = parts.size, parts.epsilon, parts.body.embed_tokens.weight.shape[0]
        self.pre_fc_norm_embedding = nn.RMSNorm(size, eps=epsilon)
        self.pre_fc_norm_hidden = nn.RMSNorm(size, eps=epsilon)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = [parts.new_layer()]
        self.norm = nn.RMSNorm(size, eps=epsilon)
        if "lm_head" in own:
            self.lm_head = nn.Linear(size, vocabulary if ids is None else ids.size, bias=False)
        else:
            self.lm_head = TargetLinear(parts.lm_head) if ids is None else chosen_rows(parts.lm_head, ids)
        if "embed_tokens" in own:
            self.embed_tokens = nn.Embedding(vocabulary, size)
        self.form, self.fed = HeadForm(), FedStates()
        self.zero_centred = parts.zero_centred
        self._embedding = parts.body.embed_tokens.__call__
        self._ids = ids

    @property
    def ids(self) -> mx.array | None:
        """The target's token id of each logit; None if logits are over the target's vocabulary."""
        return self._ids

    def make_cache(self) -> list[Any]:
        return [*(KVCache() for _ in self.layers), KVCache()]

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        embedded = self.embed_tokens(tokens) if "embed_tokens" in self else self._embedding(tokens)
        states = self.fed.take(tokens.shape[1])
        states = embedded if states is None else states.astype(embedded.dtype)
        if cache is not None:
            half = states.shape[-1] // 2
            cache[-1].update_and_fetch(states[:, None, :, :half], states[:, None, :, half:])
        inputs = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states)]
        x = self.fc(mx.concatenate(inputs if self.form.embedding_first else inputs[::-1], axis=-1))
        mask = base.create_attention_mask(x, None if cache is None else cache[0])
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, None if cache is None else cache[i])
        return self.lm_head(self.norm(x))

    def take_form(self, form: HeadForm) -> None:
        """Changes to another form."""
        if more := form.added_to_norms - self.form.added_to_norms:
            for norm in norms(self):
                norm.weight = norm.weight + more
        self.form = form


def norms(head: nn.Module) -> Iterator[Any]:
    """Yields the head's normalising layers: they are those with one-dimensional weights."""
    for module in head.modules():
        weight = module.get("weight")
        if isinstance(weight, mx.array) and weight.ndim == 1:
            yield module
