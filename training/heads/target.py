"""The frozen target as a plain PyTorch Llama with a key-value cache: one token a row and step, rows in step.

Products with weights are bf16 on processors that compute them faster than fp32. All other operations are fp32."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Dimensions of a Llama model, read from its `config.json`."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    theta: float
    eps: float

    @classmethod
    def read(cls, folder: Path) -> Shape:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        heads = config["num_attention_heads"]
        return cls(
            dim=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config["num_key_value_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            ffn=config["intermediate_size"],
            vocab=config["vocab_size"],
            theta=config["rope_theta"],
            eps=config["rms_norm_eps"],
        )


def rope_tables(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines of shape (length, head_dim // 2) for positions 0 to length - 1."""
    half = shape.head_dim // 2
    frequencies = shape.theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies rotary embedding in Llama's half-split layout over the last axis of x."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Returns the checkpoint's tensors as fp32, by their names in the file."""
    return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}


def product_type() -> torch.dtype:
    """Returns bf16 if the processor has instructions for its products, which are then twice as fast; else fp32."""
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Returns `x @ weight.T` as fp32, computed in the weight's type."""
    return functional.linear(x.to(weight.dtype), weight).float()


class Cache:
    """Keys and values of all layers for rows in step; `length` counts the positions that are filled."""

    def __init__(self, shape: Shape, rows: int, capacity: int) -> None:
        self.shape, self.rows, self.capacity, self.length = shape, rows, capacity, 0
        size = (rows, shape.kv_heads, capacity, shape.head_dim)
        self.layers = [(torch.zeros(size), torch.zeros(size)) for _ in range(shape.layers)]

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but those of the given ascending indices. Moves only what is filled, within its memory."""
        n, end = len(rows), self.length
        for keys, values in self.layers:
            keys[:n, :, :end] = keys[rows, :, :end]
            values[:n, :, :end] = values[rows, :, :end]
        self.layers = [(keys[:n], values[:n]) for keys, values in self.layers]
        self.rows = n

    def fill_from(self, single: Cache) -> None:
        """Copies the filled positions of a cache of one row into every row."""
        n = self.length = single.length
        for (keys, values), (other_keys, other_values) in zip(self.layers, single.layers, strict=True):
            keys[:, :, :n] = other_keys[:, :, :n]
            values[:, :, :n] = other_values[:, :, :n]


class Target:
    """Computes a Llama's hidden states, and logits from those after its final norm.

    `taps`: the layers whose inputs are returned too. `width`: numbers of a position's states."""

    def __init__(self, folder: Path, context: int = 1024, taps: Sequence[int] = ()) -> None:
        self.shape, self.taps = Shape.read(folder), taps
        self.width = self.shape.dim * (1 + len(taps))
        weights = read_weights(folder)
        self.embedding = weights["model.embed_tokens.weight"]
        self.output = self.embedding.to(product_type())
        self.norm = weights["model.norm.weight"]
        self.cos, self.sin = rope_tables(self.shape, context)
        self.layers = []
        for i in range(self.shape.layers):
            w = {n.split(".", 3)[3]: t for n, t in weights.items() if n.startswith(f"model.layers.{i}.")}
            qkv = torch.cat([w[f"self_attn.{n}_proj.weight"] for n in "qkv"])
            gate_up = torch.cat([w["mlp.gate_proj.weight"], w["mlp.up_proj.weight"]])
            norms = w["input_layernorm.weight"], w["post_attention_layernorm.weight"]
            linears = qkv, w["self_attn.o_proj.weight"], gate_up, w["mlp.down_proj.weight"]
            self.layers.append((*norms, *(weight.to(product_type()) for weight in linears)))

    @torch.inference_mode()
    def hidden(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Appends tokens (rows, time) to the cache; returns hidden states (rows, time, width): after the final norm,
        then the inputs of the taps' layers."""
        shape, start, time = self.shape, cache.length, tokens.shape[1]
        cos, sin = self.cos[start : start + time], self.sin[start : start + time]
        x, inputs = self.embedding[tokens], []
        for weights, kept in zip(self.layers, cache.layers, strict=True):
            inputs.append(x)
            before, after, qkv, out, gate_up, down = weights
            y = product(functional.rms_norm(x, (shape.dim,), before, shape.eps), qkv)
            x = x + product(self._attend(y, kept, start, cos, sin), out)
            y = product(functional.rms_norm(x, (shape.dim,), after, shape.eps), gate_up)
            gate, up = y.chunk(2, dim=-1)
            x = x + product(functional.silu(gate).mul_(up), down)
        cache.length += time
        final = functional.rms_norm(x, (shape.dim,), self.norm, shape.eps)
        return torch.cat([final, *(inputs[tap] for tap in self.taps)], dim=-1)

    def _attend(self, qkv: Tensor, kept: tuple[Tensor, Tensor], start: int, cos: Tensor, sin: Tensor) -> Tensor:
        """Stores the new keys and values, and returns the attention's result (rows, time, heads * head_dim)."""
        s, (rows, time, _) = self.shape, qkv.shape
        q, k, v = qkv.view(rows, time, -1, s.head_dim).split((s.heads, s.kv_heads, s.kv_heads), dim=2)
        end = start + time
        kept[0][:, :, start:end] = rotate(k.transpose(1, 2), cos, sin)
        kept[1][:, :, start:end] = v.transpose(1, 2)
        group = s.heads // s.kv_heads
        q = rotate(q.transpose(1, 2), cos, sin).reshape(rows * s.kv_heads, group * time, s.head_dim)
        keys, values = (x.view(-1, x.shape[2], s.head_dim)[:, :end] for x in kept)
        scores = torch.bmm(q, keys.transpose(1, 2)).mul_(s.head_dim**-0.5)
        if time > 1:
            future = torch.ones(time, end, dtype=torch.bool).triu(start + 1)
            scores.view(-1, group, time, end).masked_fill_(future, float("-inf"))
        y = torch.bmm(torch.softmax(scores, dim=-1), values)
        return y.view(rows, s.heads, time, s.head_dim).transpose(1, 2).reshape(rows, time, -1)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        return product(hidden[..., : self.shape.dim], self.output)


@torch.inference_mode()
def sample(logits: Tensor, inverse_temperature: Tensor, uniform: Tensor) -> Tensor:
    """Draws a token for each row by inverting its cumulative distribution, in two levels so that nothing is sorted.

    logits: (rows, vocab), changed in place. inverse_temperature and uniform (in [0, 1)): (rows,)."""
    block = 256
    logits -= logits.amax(dim=-1, keepdim=True)
    logits *= inverse_temperature[:, None]
    mass = logits.exp_().view(len(logits), -1, block)
    sums = mass.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    goal = (uniform.double() * sums[:, -1])[:, None]
    chosen = torch.searchsorted(sums, goal, right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.where(chosen > 0, sums.gather(1, (chosen - 1).clamp(min=0)), torch.zeros_like(goal))
    inner = mass[torch.arange(len(mass)), chosen[:, 0]].double().cumsum(dim=-1)
    place = torch.searchsorted(inner, goal - before, right=True)
    last = (inner < inner[:, -1:]).sum(dim=-1, keepdim=True)  # the block's last token that has any mass
    return (chosen * block + torch.minimum(place, last))[:, 0]
