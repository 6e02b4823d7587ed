"""The draft head in EAGLE-3's form: it takes the inputs of some of the target's layers, and drafts on from its own
state before the final norm."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from training.heads.head import Attention, Head, KeysValues, Layer, Norm, linear, shifted
from training.heads.target import Shape


class FirstLayer(Layer):
    """A layer whose attention takes the embedding and the state side by side."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.self_attn = Attention(shape, 2 * shape.dim)
        self.hidden_norm = Norm(shape.dim, shape.eps)

    def attend(self, embedded: Tensor, states: Tensor, cos: Tensor, sin: Tensor, chain: list[KeysValues]) -> Tensor:
        """Returns the layer's output for pairs of (embedding of token p + 1, state p), both (rows, time, dim)."""
        both = torch.cat((self.input_layernorm(embedded), self.hidden_norm(states)), dim=-1)
        x = states + self.self_attn(both, cos, sin, chain)
        return x + self.mlp(self.post_attention_layernorm(x))


class EagleHead(Head):
    """A head in EAGLE-3's form."""

    file = "model.safetensors"

    def __init__(self, shape: Shape, taps: int, context: int = 1024) -> None:
        """`taps`: the number of layers whose inputs it takes."""
        super().__init__(shape, context)
        self.fc = linear(taps * shape.dim, shape.dim)
        self.layers = nn.ModuleList([FirstLayer(shape)])

    def unroll(self, embedded: Tensor, inputs: Tensor, steps: int) -> list[Tensor]:
        layer, time = cast(FirstLayer, self.layers[0]), embedded.shape[1]
        states, outputs, chain = self.fc(inputs).float(), [], list[KeysValues]()
        for _ in range(steps):
            states = layer.attend(embedded, states, self.cos[:time], self.sin[:time], chain)
            outputs.append(self.norm(states))
            states = shifted(states, 1)
        return outputs
