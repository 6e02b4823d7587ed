"""The draft head in MTP form, and its loss: unrolled over its own hidden states as in EAGLE-3's training-time test.

Pair p of a row is (target's hidden state p, token p + 1); it predicts token p + 2. At unroll step s the hidden state is
the head's own output of step s - 1 at pair p - 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.heads.target import Shape, product, product_type, rope_tables, rotate

KeysValues = tuple[Tensor, Tensor]
NEVER = float("-inf")


class Norm(nn.Module):
    """RMS norm with a plain factor."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Llama's attention. A query sees the true pairs' keys up to p - s, and the keys of its own chain after those."""

    def __init__(self, shape: Shape, inputs: int) -> None:
        """`inputs`: size of what it attends with."""
        super().__init__()
        self.shape = shape
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj, self.k_proj = linear(inputs, wide), linear(inputs, narrow)
        self.v_proj, self.o_proj = linear(inputs, narrow), linear(wide, shape.dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, chain: list[KeysValues]) -> Tensor:
        """Attends at unroll step len(chain), whose keys and values are appended to `chain`. x: (rows, time, inputs)."""
        rows, time, _ = x.shape
        s, group = self.shape, self.shape.heads // self.shape.kv_heads

        def split(y: Tensor) -> Tensor:
            return y.view(rows, time, -1, s.head_dim).transpose(1, 2)

        chain.append((rotate(split(self.k_proj(x)), cos, sin), split(self.v_proj(x))))
        q = (
            rotate(split(self.q_proj(x)), cos, sin).reshape(rows, s.kv_heads, group, time, s.head_dim)
            * s.head_dim**-0.5
        )
        step = len(chain) - 1
        keys, values = chain[0]
        past = torch.ones(time, time, dtype=torch.bool).tril(-step)
        flat = q.reshape(rows * s.kv_heads, group * time, s.head_dim)
        scores = torch.bmm(flat, keys.reshape(-1, time, s.head_dim).transpose(1, 2)).view(rows, -1, group, time, time)
        scores = [scores.masked_fill(~past, NEVER)]
        scores += [(q * shifted(chain[j][0], step - j)[:, :, None]).sum(-1, keepdim=True) for j in range(1, step + 1)]
        shares = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
        old = shares[..., :time].reshape(rows * s.kv_heads, group * time, time)
        y = torch.bmm(old, values.reshape(-1, time, s.head_dim)).view(rows, s.kv_heads, group, time, s.head_dim)
        for j in range(1, step + 1):
            y = y + shares[..., time + j - 1 : time + j] * shifted(chain[j][1], step - j)[:, :, None]
        return self.o_proj(y.reshape(rows, s.heads, time, s.head_dim).transpose(1, 2).reshape(rows, time, -1))


def shifted(x: Tensor, places: int) -> Tensor:
    """Moves the entries of axis -2 to later places and fills with zeros from the front."""
    return functional.pad(x, (0, 0, places, 0))[..., : x.shape[-2], :] if places else x


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(shape.dim, shape.ffn), linear(shape.dim, shape.ffn)
        self.down_proj = linear(shape.ffn, shape.dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.dim, shape.eps)
        self.self_attn = Attention(shape, shape.dim)
        self.post_attention_layernorm = Norm(shape.dim, shape.eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, chain: list[KeysValues]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, chain)
        return x + self.mlp(self.post_attention_layernorm(x))


class Head(nn.Module):
    """A trainable head of one layer; parameter names are the file's, without its prefix."""

    file = prefix = ""

    def __init__(self, shape: Shape, context: int = 1024) -> None:
        super().__init__()
        self.shape = shape
        self.norm = Norm(shape.dim, shape.eps)
        cos, sin = rope_tables(shape, context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def unroll(self, embedded: Tensor, inputs: Tensor, steps: int) -> list[Tensor]:
        """Returns y of each unroll step: (rows, time, dim), of which pair p of step s is meaningful for p ≥ s.
        `embedded`: of token p + 1; `inputs`: the target's states."""
        raise NotImplementedError


class MTPHead(Head):
    """A head in MTP form."""

    file, prefix = "mtp.safetensors", "mtp."

    def __init__(self, shape: Shape, context: int = 1024) -> None:
        super().__init__(shape, context)
        self.fc = linear(2 * shape.dim, shape.dim)
        self.pre_fc_norm_embedding = Norm(shape.dim, shape.eps)
        self.pre_fc_norm_hidden = Norm(shape.dim, shape.eps)
        self.layers = nn.ModuleList([Layer(shape)])

    def forward(self, embedded: Tensor, hidden: Tensor, chain: list[KeysValues]) -> Tensor:
        """Returns y for each pair of (embedding of token p + 1, hidden state): all of shape (rows, time, dim)."""
        pair = torch.cat((self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)), dim=-1)
        time = embedded.shape[1]
        u = self.layers[0](self.fc(pair).float(), self.cos[:time], self.sin[:time], chain)
        return self.norm(u)

    def unroll(self, embedded: Tensor, inputs: Tensor, steps: int) -> list[Tensor]:
        chain: list[KeysValues] = []
        outputs = []
        for _ in range(steps):
            y = self(embedded, inputs, chain)
            outputs.append(y)
            inputs = shifted(y, 1)
        return outputs


class HybridLoss(torch.autograd.Function):
    """Sum over positions of λ KL(p, q) + (1 - λ) TV(p, q), with λ = exp(-η α): the hybrid LK loss of Samarin et al.
    (2026, arXiv 2602.23881). 1 - TV is the accepted share α = Σ min(p, q), which a small head gets more of if it is
    trained for it. Early, when α is low, KL leads, whose gradient does not vanish.

    Returns the loss without its constant, the entropy of p. The gradient reuses the logits' memory."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, embedding: Tensor, p: Tensor, eta: float) -> Tensor:
        """states: (count, dim), embedding: (vocab, dim), p: the goal, distributions (count, vocab)."""
        log_q = torch.log_softmax(product(states, embedding), dim=-1)
        cross_entropy = -torch.dot(log_q.view(-1), p.view(-1))
        q = log_q.exp_()
        accepted = torch.minimum(p, q).sum()
        share = math.exp(-eta * float(accepted) / max(len(p), 1))
        q_below = q * (q < p)  # raising these raises the accepted share
        slope = q * q_below.sum(dim=-1, keepdim=True) - q_below
        gradient = q.sub_(p).mul_(share).add_(slope, alpha=1 - share)
        ctx.save_for_backward(product(gradient, embedding.T))
        return share * cross_entropy + (1 - share) * (len(p) - accepted)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        (states_gradient,) = ctx.saved_tensors
        return states_gradient * gradients[0], None, None, None


@dataclass(frozen=True)
class PaddedRows:
    """Rows of one micro-batch; padding is at the end."""

    tokens: Tensor
    """(rows, time + 1)"""
    hidden: Tensor
    """The target's final states of the first `time` tokens: (rows, time, dim)."""
    inputs: Tensor
    """The target's states that the head takes: (rows, time, taps · dim), or the final ones."""
    counts: Tensor
    """Whether pair p has a loss: (rows, time), bool. Then hidden state p + 1 exists."""


@dataclass(frozen=True)
class Objective:
    """The loss's parts. The goal is the target's distribution over the trimmed vocabulary, with a share of the drawn
    token."""

    embedding: Tensor
    """The target's embedding: (vocab, dim)."""
    ids: Tensor
    """Ascending target ids of the trimmed vocabulary."""
    target_share: float = 0.9
    """The target's share of the goal."""
    eta: float = 3.0
    """How fast the loss turns from KL to TV as more is accepted; 0 is KL alone."""
    step_weights: Sequence[float] = (1.0, 0.7, 0.5)

    def trimmed(self) -> tuple[Tensor, Tensor]:
        """Returns the trimmed embedding, and the trimmed id of each target id, or -1."""
        places = torch.full((len(self.embedding),), -1)
        places[self.ids] = torch.arange(len(self.ids))
        return self.embedding[self.ids], places


class UnrolledLoss:
    """Computes the weighted sum of the losses of all unroll steps, over the pairs that count."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        vocabulary, self.places = objective.trimmed()
        self.vocabulary = vocabulary.to(product_type())

    @torch.no_grad()
    def goals(self, batch: PaddedRows) -> Tensor:
        """Returns the goal distribution of each counting pair: (count, trimmed vocabulary)."""
        after = functional.pad(batch.hidden[:, 1:], (0, 0, 0, 1))[batch.counts]
        goal = torch.softmax(product(after, self.vocabulary), dim=-1).mul_(self.objective.target_share)
        drawn = self.places[functional.pad(batch.tokens[:, 2:], (0, 1))[batch.counts]]
        in_vocabulary = drawn >= 0
        goal[in_vocabulary.nonzero()[:, 0], drawn[in_vocabulary]] += 1 - self.objective.target_share
        goal[~in_vocabulary] /= self.objective.target_share
        return goal

    def __call__(self, head: Head, batch: PaddedRows, steps: int) -> tuple[Tensor, float]:
        """Returns the weighted loss sum, for the gradient, and the sum of step 0's losses."""
        goal = self.goals(batch)
        embedded = functional.embedding(batch.tokens[:, 1:], self.objective.embedding)
        fast = product_type()
        with torch.autocast("cpu", fast, enabled=fast != torch.float32):
            outputs = head.unroll(embedded, batch.inputs, steps)
        total, first = torch.zeros(()), 0.0
        for step, y in enumerate(outputs):
            counts = batch.counts.clone()
            counts[:, :step] = False
            some = goal if bool((counts == batch.counts).all()) else goal[counts[batch.counts]]
            loss = HybridLoss.apply(y[counts], self.vocabulary, some, self.objective.eta)
            total = total + self.objective.step_weights[step] * loss
            first = first or loss.item()
        return total, first
