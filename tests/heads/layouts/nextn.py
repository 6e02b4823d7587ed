"""Makes tiny checkpoints whose head is the layer after the target's last, as DeepSeek and GLM publish them.

The head has `model.layers.{N}.{enorm,hnorm,eh_proj,shared_head.norm}` and an ordinary decoder layer, N being
`num_hidden_layers`. Some checkpoints repeat the target's embedding and output layer in it, as `embed_tokens` and
`shared_head.head`. No norm is zero-centred.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.heads.layouts.configs import DENSE, EXPERT, HIDDEN, VOCABULARY
from tests.heads.layouts.files import MLX, MODEL_FILE, TORCH, Array, Config, Tensors, bf16, float64, write_model
from tests.heads.layouts.layout import Layout, StoredHead, Writer
from tests.heads.layouts.quantization import QUANTIZATION_CONFIG, quantize
from tests.heads.layouts.weights import RandomWeights
from tests.heads.layouts.writers import with_sidecar

LAYERS, EXPERTS = 3, 8  # the target's layers, of which the first is dense; experts of each further layer
PREFIX = f"model.layers.{LAYERS}."
IN_MODEL = StoredHead(MODEL_FILE, PREFIX, norms_shifted=False)
SIDECAR = StoredHead("mtp.safetensors", PREFIX, norms_shifted=False)
# Ends of the names of matrices that stay in bf16: mlx-lm never quantises the router, and converters keep eh_proj.
BF16_IN_TARGET = (".mlp.gate.weight",)
BF16_IN_HEAD = (".mlp.gate.weight", ".eh_proj.weight")
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_NORM_MEANS = {
    "input_layernorm": 0.9,
    "post_attention_layernorm": 1.2,
    "q_a_layernorm": 1.1,
    "kv_a_layernorm": 0.8,
    "q_norm": 1.3,
    "k_norm": 1.2,
    "k_norm_of_indexer": 1.0,
    "enorm": 0.5,
    "hnorm": 1.4,
    "norm": 1.6,
}


@dataclass(frozen=True)
class Family:
    """A family: its name, the seed of its weights, and the config.json of its raw checkpoint."""

    name: str
    seed: int
    config: Config


class _Weights(RandomWeights):
    """Draws weights of a family's layers, with the vendor's names."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__(seed)
        self._config = config

    def layer(self, prefix: str, number: int) -> Tensors:
        """Returns a decoder layer, whose place decides whether its MLP is dense."""
        attention = self._latent_attention if "kv_lora_rank" in self._config else self._attention
        tensors = attention(f"{prefix}.self_attn")
        if number < self._config["first_k_dense_replace"]:
            tensors |= self._glu(f"{prefix}.mlp", DENSE)
        else:
            tensors |= self._mixture(f"{prefix}.mlp")
        return tensors | self.norms(prefix, "input_layernorm", "post_attention_layernorm")

    def norms(self, prefix: str, *names: str, size: int = HIDDEN) -> Tensors:
        """Returns the weights of RMS norms."""
        return {f"{prefix}.{name}.weight": self.norm(size, name) for name in names}

    def norm(self, size: int, name: str) -> Array:
        return bf16(self.normal(size, deviation=0.15, mean=_NORM_MEANS[name]))

    def _float32(self, size: int, deviation: float, mean: float = 0.0) -> Array:
        """Returns fp32 that a conversion to bf16 does not change."""
        return float64(bf16(self.normal(size, deviation=deviation, mean=mean))).astype(np.float32)

    def _latent_attention(self, prefix: str) -> Tensors:
        config = self._config
        heads, nope, rope = (config[name] for name in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim"))
        values, query_rank, rank = config["v_head_dim"], config["q_lora_rank"], config["kv_lora_rank"]
        tensors = {
            f"{prefix}.q_a_proj.weight": self.matrix(query_rank, HIDDEN),
            f"{prefix}.q_b_proj.weight": self.matrix(heads * (nope + rope), query_rank, gain=1.5),
            f"{prefix}.kv_a_proj_with_mqa.weight": self.matrix(rank + rope, HIDDEN),
            f"{prefix}.kv_b_proj.weight": self.matrix(heads * (nope + values), rank, gain=1.5),
            f"{prefix}.o_proj.weight": self.matrix(HIDDEN, heads * values, gain=2.0),
            **self.norms(prefix, "q_a_layernorm", size=query_rank),
            **self.norms(prefix, "kv_a_layernorm", size=rank),
        }
        return tensors | self._indexer(f"{prefix}.indexer") if "index_topk" in config else tensors

    def _indexer(self, prefix: str) -> Tensors:
        heads, size = self._config["index_n_heads"], self._config["index_head_dim"]
        return {
            f"{prefix}.wq_b.weight": self.matrix(heads * size, self._config["q_lora_rank"]),
            f"{prefix}.wk.weight": self.matrix(size, HIDDEN),
            f"{prefix}.k_norm.weight": self.norm(size, "k_norm_of_indexer"),
            f"{prefix}.k_norm.bias": bf16(self.normal(size, deviation=0.1)),
            f"{prefix}.weights_proj.weight": self.matrix(heads, HIDDEN),
        }

    def _attention(self, prefix: str) -> Tensors:
        config = self._config
        size = config["head_dim"]
        rows = {"q": config["num_attention_heads"] * size, "k": config["num_key_value_heads"] * size}
        rows["v"] = rows["k"]
        tensors = {f"{prefix}.{name}_proj.weight": self.matrix(count, HIDDEN) for name, count in rows.items()}
        tensors[f"{prefix}.o_proj.weight"] = self.matrix(HIDDEN, rows["q"], gain=2.0)
        if config["attention_bias"]:
            tensors |= {
                f"{prefix}.{name}_proj.bias": bf16(self.normal(count, deviation=0.3)) for name, count in rows.items()
            }
        return tensors | self.norms(prefix, "q_norm", "k_norm", size=size) if config["use_qk_norm"] else tensors

    def _mixture(self, prefix: str) -> Tensors:
        tensors = {
            f"{prefix}.gate.weight": self.matrix(EXPERTS, HIDDEN, gain=2.0),
            f"{prefix}.gate.e_score_correction_bias": self._float32(EXPERTS, deviation=0.1, mean=0.2),
        }
        for number in range(EXPERTS):
            tensors |= self._glu(f"{prefix}.experts.{number}", EXPERT)
        return tensors | self._glu(f"{prefix}.shared_experts", EXPERT * self._config["n_shared_experts"])

    def _glu(self, prefix: str, inner: int) -> Tensors:
        return {
            f"{prefix}.gate_proj.weight": self.matrix(inner, HIDDEN),
            f"{prefix}.up_proj.weight": self.matrix(inner, HIDDEN),
            f"{prefix}.down_proj.weight": self.matrix(HIDDEN, inner, gain=2.0),
        }


def random_target(family: Family) -> Tensors:
    """Returns a raw target."""
    random = _Weights(family.config, family.seed)
    tensors = {"model.embed_tokens.weight": random.matrix(VOCABULARY, HIDDEN, gain=2.0)}
    for number in range(LAYERS):
        tensors |= random.layer(f"model.layers.{number}", number)
    tensors |= random.norms("model", "norm")
    return tensors | {"lm_head.weight": random.matrix(VOCABULARY, HIDDEN, gain=2.0)}


def random_head(family: Family, repeats_target: bool) -> Tensors:
    """Returns a raw head, with the target's embedding and output layer if the vendor repeats them."""
    random = _Weights(family.config, family.seed + 10)
    prefix = PREFIX.removesuffix(".")
    tensors = {f"{prefix}.eh_proj.weight": random.matrix(HIDDEN, 2 * HIDDEN, gain=1.5)}
    tensors |= random.norms(prefix, "enorm", "hnorm")
    tensors |= random.layer(prefix, LAYERS)
    tensors |= random.norms(f"{prefix}.shared_head", "norm")
    if repeats_target:
        target = random_target(family)
        tensors[f"{prefix}.embed_tokens.weight"] = target["model.embed_tokens.weight"]
        tensors[f"{prefix}.shared_head.head.weight"] = target["lm_head.weight"]
    return tensors


def convert(raw: Tensors, config: Config) -> Tensors:
    """Returns weights as mlx-lm's sanitize leaves them: experts in stacks, kv_b_proj as embed_q and unembed_out."""
    converted: Tensors = {}
    for name, tensor in raw.items():
        prefix, is_expert, rest = name.partition(".experts.")
        stem = name.removesuffix("kv_b_proj.weight")
        if is_expert:
            _, projection = rest.split(".", 1)
            experts = [raw[f"{prefix}.experts.{number}.{projection}"] for number in range(EXPERTS)]
            converted[f"{prefix}.switch_mlp.{projection}"] = np.stack(experts)
        elif stem != name:
            heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
            by_head = tensor.reshape(heads, nope + config["v_head_dim"], config["kv_lora_rank"])
            converted[f"{stem}embed_q.weight"] = np.ascontiguousarray(by_head[:, :nope].swapaxes(1, 2))
            converted[f"{stem}unembed_out.weight"] = np.ascontiguousarray(by_head[:, nope:])
        else:
            converted[name] = tensor
    return converted


def raw_checkpoint(family: Family, repeats_target: bool) -> Writer:
    """Returns the writer of a raw checkpoint with its head."""

    def write(folder: Path) -> None:
        write_model(folder, family.config, random_target(family) | random_head(family, repeats_target), TORCH)

    return write


def converted_checkpoint(family: Family, head: Tensors | None = None, quantized: bool = False) -> Writer:
    """Returns the writer of a target as mlx-lm converts it, with the tensors of `head` in the same file."""

    def write(folder: Path) -> None:
        target, config = convert(random_target(family), family.config), family.config
        if quantized:
            target, config = quantize(target, BF16_IN_TARGET), config | QUANTIZATION_CONFIG
        write_model(folder, config, target | (head or {}), MLX)

    return write


def sidecar_layout(family: Family, head: Tensors) -> Layout:
    """Returns the layout of a converted target with the raw head in a file beside it."""
    writer = with_sidecar(converted_checkpoint(family), SIDECAR.file, head, TORCH)
    return Layout(f"{family.name}_mlx_sidecar_raw", family.name, SIDECAR, writer)
