"""The Llama architecture in plain PyTorch, with the parameter names of mlx-lm and transformers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROPE_THETA = 10_000.0
CONTEXT = 1024


@dataclass(frozen=True)
class Size:
    """Dimensions of a Llama model."""

    layers: int
    dim: int
    heads: int
    ffn: int
    vocab: int = 4096

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    def hf_config(self) -> dict[str, Any]:
        """Returns the `config.json` that `mlx_lm.load` reads."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.dim,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocab,
            "max_position_embeddings": CONTEXT,
            "rope_theta": ROPE_THETA,
            "rope_scaling": None,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
        }

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


TARGET = Size(layers=12, dim=256, heads=4, ffn=704)
DRAFT = Size(layers=1, dim=128, heads=2, ffn=320)


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies rotary embedding in Llama's half-split layout. x has the shape (batch, heads, time, head_dim)."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Computes causal attention. On short rows two plain products and a softmax take half the time of the fused CPU
    kernel."""
    batch, heads, time, width = q.shape
    if time > 256:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    q, k, v = (x.reshape(batch * heads, time, width) for x in (q, k, v))
    mask = torch.full((time, time), float("-inf"), dtype=q.dtype).triu(1).expand(batch * heads, time, time)
    scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=width**-0.5)
    return torch.bmm(torch.softmax(scores, -1), v).view(batch, heads, time, width)


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.head_dim = size.heads, size.head_dim
        self.q_proj = nn.Linear(size.dim, size.dim, bias=False)
        self.k_proj = nn.Linear(size.dim, size.dim, bias=False)
        self.v_proj = nn.Linear(size.dim, size.dim, bias=False)
        self.o_proj = nn.Linear(size.dim, size.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, dim = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, time, self.heads, self.head_dim).transpose(1, 2)

        q, k = rotate(split(self.q_proj(x)), cos, sin), rotate(split(self.k_proj(x)), cos, sin)
        y = attend(q, k, split(self.v_proj(x)))
        return self.o_proj(y.transpose(1, 2).reshape(batch, time, dim))


class MLP(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.dim, size.ffn, bias=False)
        self.up_proj = nn.Linear(size.dim, size.ffn, bias=False)
        self.down_proj = nn.Linear(size.ffn, size.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(size.dim)
        self.self_attn = Attention(size)
        self.post_attention_layernorm = RMSNorm(size.dim)
        self.mlp = MLP(size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(size.vocab, size.dim)
        self.layers = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.dim)


class Llama(nn.Module):
    """A Llama model with tied embeddings: token ids (batch, time) to logits (batch, time, vocab)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.model = Body(size)
        half = size.head_dim // 2
        freqs = ROPE_THETA ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.outer(torch.arange(CONTEXT, dtype=torch.float32), freqs)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.reset()

    def reset(self) -> None:
        """Initialises weights from a small normal distribution. Projections into the residual stream are scaled down
        with depth."""
        for name, p in self.named_parameters():
            if p.ndim < 2:
                continue
            std = 0.02 if "embed" in name else p.shape[1] ** -0.5 * 0.7
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std *= (2 * self.size.layers) ** -0.5
            nn.init.normal_(p, std=std)

    def hidden(self, ids: Tensor) -> Tensor:
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.model.norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        return functional.linear(self.hidden(ids), self.model.embed_tokens.weight)
