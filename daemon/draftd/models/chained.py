"""Chained MTP heads, as of Step-3.5: the next head reads what the head before it made of the token before.

With h_t the target's last hidden state at position t, before its final norm, and x_t the tokens:

    y0_t = layer0(W0 [norm(embedding(x_{t+1})); norm(h_t)]),      lm_head0(norm0(y0_t)) predicts x_{t+2}
    y1_t = layer1(W1 [norm(embedding(x_{t+2})); norm(y0_t)]),     lm_head1(norm1(y1_t)) predicts x_{t+3}
    y2_t = layer2(W2 [norm(embedding(x_{t+3})); norm(y1_t)]),     and so on

So each token passes through all heads once, and head i pairs it with what the head before it made of the token before.
The first tokens of a text have no such state, and get zeros. Sources: vLLM's multi_module_mtp/speculator.py; SGLang's
multi_layer_eagle_worker_v2.py and step3p5_mtp.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx import nn

from draftd.models.fed_head import FedHead
from draftd.models.head_families import HeadForm
from draftd.models.mlx_lm import base
from draftd.models.target_parts import TargetParts


class OneHead(nn.Module):  # type: ignore[misc]
    """One of the heads, with its own layer, final norm and output layer."""

    def __init__(self, parts: TargetParts, number: int) -> None:
        """`number`: of its layer, counted after the target's."""
        super().__init__()
        size, epsilon = parts.size, float(parts.norm.eps)
        self.enorm, self.hnorm = nn.RMSNorm(size, eps=epsilon), nn.RMSNorm(size, eps=epsilon)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.layer = parts.new_layer_at(number)
        self.norm = nn.RMSNorm(size, eps=epsilon)
        self.lm_head = nn.Linear(size, parts.embedding.weight.shape[0], bias=False)

    def __call__(
        self, embedded: mx.array, states: mx.array, form: HeadForm, cache: Any, window: int | None
    ) -> mx.array:
        inputs = [self.enorm(embedded), self.hnorm(states)]
        x = self.eh_proj(mx.concatenate(inputs if form.embedding_first else inputs[::-1], axis=-1))
        return self.layer(x, base.create_attention_mask(x, cache, window_size=window), cache)


class ChainedHeads(FedHead):
    """Chained heads. The states that it is fed are those of all heads side by side, as
    `project` returns them. Logits are those of the head that is read."""

    zero_centred = True

    def __init__(self, parts: TargetParts, count: int) -> None:
        super().__init__(parts)
        self.heads = [OneHead(parts, len(parts.layers) + i) for i in range(count)]
        self.states = nn.Identity()  # passes on what the heads made, so that it can be recorded
        self._read = 0
        window = getattr(parts.args, "sliding_window", None)
        self._windows = [window if getattr(head.layer, "is_sliding", False) else None for head in self.heads]

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[None]:
        """Returns the logits of the head with this number, inside the `with` block; else of the first."""
        self._read = number
        try:
            yield
        finally:
            self._read = 0

    def project(self, states: mx.array) -> mx.array:
        """Returns the target's states, which are the first head's, as those of all heads, rows × width × (heads ·
        size). Those of all heads are returned as they are."""
        return mx.pad(states, [(0, 0), (0, 0), (0, len(self.heads) * self._size - states.shape[-1])])

    def project_own(self, states: mx.array) -> mx.array:
        """Returns what the heads made, which are the states of all but the first, as those of all heads."""
        return mx.pad(states, [(0, 0), (0, 0), (self._size, 0)])

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        embedded = self.embed(tokens)
        fed = self.fed.take(tokens.shape[1])
        first = [embedded] * len(self.heads) if fed is None else mx.split(fed, len(self.heads), axis=-1)
        fed_before = [] if fed is None else self.fed.outputs
        before = fed_before or first[1:]  # what the heads made of the token before these
        states, outputs = list[mx.array](), list[mx.array]()
        for i, (head, window) in enumerate(zip(self.heads, self._windows, strict=True)):
            own = first[0] if i == 0 else mx.concatenate([before[i - 1][:, :1], outputs[-1][:, :-1]], axis=1)
            states.append(own.astype(embedded.dtype))
            outputs.append(head(embedded, states[-1], self.form, None if cache is None else cache[i], window))
        self.keep_states(mx.concatenate(states, axis=-1), cache)
        if fed is not None:
            self.fed.outputs = [output[:, -1:] for output in outputs[:-1]]
        self.states(mx.concatenate(outputs[:-1], axis=-1))
        read = self.heads[self._read]
        return read.lm_head(read.norm(outputs[self._read]))
