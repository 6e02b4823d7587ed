"""Begins a head from its target: the last layer's weights, the final norm, and a projection by least squares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from training.heads.eagle import EagleHead
from training.heads.head import Head
from training.heads.target import read_weights
from training.heads.text import Row

RIDGE = 1e-3
"""Ridge of the least squares, as a share of the mean diagonal of the features' second moments."""
ROWS = 400


@torch.no_grad()
def begin(head: Head, model: Path, rows: Sequence[Row], branch_scale: float) -> None:
    """Sets all weights. The projection predicts the target's next hidden state before its final norm's factors, up to
    scale; the layer's two branches into the residual stream are multiplied by `branch_scale`."""
    weights, dim = read_weights(model), head.shape.dim
    last = f"model.layers.{head.shape.layers - 1}."
    layer = {name.removeprefix(last): tensor for name, tensor in weights.items() if name.startswith(last)}
    for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        layer[name] = layer[name] * branch_scale
    embedding = weights["model.embed_tokens.weight"]

    def features(row: Row) -> Tensor:
        """Returns what the projection takes of each pair but the last."""
        states = torch.from_numpy(row.hidden[:-1]).float()
        if isinstance(head, EagleHead):
            return states[:, dim:]
        embedded = embedding[torch.tensor(row.tokens[1 : len(row.hidden)])]
        return torch.cat([functional.rms_norm(x, (dim,), None, head.norm.eps) for x in (embedded, states)], dim=-1)

    if isinstance(head, EagleHead):  # its attention takes the embedding first, then the state as the target's does
        for name in ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"):
            layer[name] = functional.pad(layer[name], (dim, 0))
        layer["hidden_norm.weight"] = layer["input_layernorm.weight"]
        layer["input_layernorm.weight"] = torch.ones(dim)
    parts: Any = head
    parts.layers[0].load_state_dict(layer)
    parts.norm.weight.copy_(weights["model.norm.weight"])
    parts.fc.weight.copy_(projection(rows[:ROWS], features, parts.norm.weight))


def projection(rows: Sequence[Row], features: Callable[[Row], Tensor], norm: Tensor) -> Tensor:
    """Returns the matrix (dim, features) from a pair's features to the next hidden state divided by the final norm's
    factors, by least squares over the rows."""
    dim, size = len(norm), features(rows[0]).shape[1]
    moments, products = torch.zeros(size, size), torch.zeros(size, dim)
    safe = torch.where(norm.abs() < 1e-2, torch.full_like(norm, 1e-2), norm)
    for row in rows:
        taken = features(row)
        moments += taken.T @ taken
        products += taken.T @ (torch.from_numpy(row.hidden[1:, :dim]).float() / safe)
    moments += RIDGE * moments.diagonal().mean() * torch.eye(size)
    return torch.linalg.solve(moments, products).T.contiguous()
