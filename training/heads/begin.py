"""Begins a head from its target: the last layer's weights, the final norm, and a projection by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from training.heads.head import DraftHead
from training.heads.target import read_weights
from training.heads.text import Row

RIDGE = 1e-3
"""Ridge of the least squares, as a share of the mean diagonal of the features' second moments."""
ROWS = 400


@torch.no_grad()
def begin(head: DraftHead, model: Path, rows: Sequence[Row], branch_scale: float) -> None:
    """Sets all weights. The projection predicts the target's next hidden state before its final norm's factors, up to
    scale; the layer's two branches into the residual stream are multiplied by `branch_scale`."""
    weights = read_weights(model)
    last = f"model.layers.{head.shape.layers - 1}."
    layer = {name.removeprefix(last): tensor for name, tensor in weights.items() if name.startswith(last)}
    for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        layer[name] = layer[name] * branch_scale
    head.layers[0].load_state_dict(layer)
    head.norm.weight.copy_(weights["model.norm.weight"])
    head.fc.weight.copy_(projection(rows[:ROWS], weights["model.embed_tokens.weight"], head.norm.weight, head.norm.eps))


def projection(rows: Sequence[Row], embedding: Tensor, norm: Tensor, eps: float) -> Tensor:
    """Returns the (dim, 2 · dim) matrix from the normalised pair to the next hidden state divided by the final norm's
    factors, by least squares over the rows."""
    dim = embedding.shape[1]
    moments, products = torch.zeros(2 * dim, 2 * dim), torch.zeros(2 * dim, dim)
    safe = torch.where(norm.abs() < 1e-2, torch.full_like(norm, 1e-2), norm)
    for row in rows:
        hidden = torch.from_numpy(row.hidden).float()
        embedded = embedding[torch.tensor(row.tokens[1 : len(hidden)])]
        pair = [functional.rms_norm(x, (dim,), None, eps) for x in (embedded, hidden[:-1])]
        features = torch.cat(pair, dim=-1)
        moments += features.T @ features
        products += features.T @ (hidden[1:] / safe)
    moments += RIDGE * moments.diagonal().mean() * torch.eye(2 * dim)
    return torch.linalg.solve(moments, products).T.contiguous()
