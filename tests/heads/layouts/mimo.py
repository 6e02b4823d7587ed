"""Layouts of MiMo-7B, and the random weights that it shares with `bailing.py`, `exaone.py` and `ernie.py`.

MiMo is Qwen2 with a head in `model.mtp_layers.0`. mlx-lm's sanitize drops the head and changes nothing else.
"""

from __future__ import annotations

from pathlib import Path

from tests.heads.layouts.configs import DENSE, EXPERT, HEADS, HIDDEN, KV_HEADS, VOCABULARY
from tests.heads.layouts.files import (
    MLX,
    MODEL_FILE,
    TORCH,
    Array,
    Config,
    Tensors,
    bf16,
    write_model,
    write_safetensors,
)
from tests.heads.layouts.layout import Layout, StoredHead, Writer
from tests.heads.layouts.quantization import QUANTIZATION_CONFIG, quantize
from tests.heads.layouts.weights import RandomWeights

SIDECAR = "mtp.safetensors"
LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")
_PREFIX, _LAYERS, _SEED = "model.mtp_layers.0.", 2, 21
_HEAD_NORMS = ("token_layernorm", "hidden_layernorm", "final_layernorm")


class PlainWeights(RandomWeights):
    """Draws the parts of models whose norms hold w, not w of (1 + w)."""

    def plain_norm(self, size: int = HIDDEN) -> Array:
        return bf16(self.normal(size, deviation=0.3, mean=1.2))

    def norms(self, prefix: str, names: tuple[str, ...]) -> Tensors:
        return {f"{prefix}{name}.weight": self.plain_norm() for name in names}

    def glu(self, prefix: str, inner: int) -> Tensors:
        return {
            f"{prefix}.gate_proj.weight": self.matrix(inner, HIDDEN),
            f"{prefix}.up_proj.weight": self.matrix(inner, HIDDEN),
            f"{prefix}.down_proj.weight": self.matrix(HIDDEN, inner, gain=2.0),
        }

    def mixture(self, prefix: str, experts: int, bias: str) -> Tensors:
        """Returns a router with a bias, whose name ends with `bias`, a shared expert, and so many others."""
        tensors = {
            f"{prefix}.gate.weight": self.matrix(experts, HIDDEN),
            f"{prefix}{bias}": self.normal(experts, deviation=0.1).astype("float32"),
            **self.glu(f"{prefix}.shared_experts", EXPERT),
        }
        for number in range(experts):
            tensors |= self.glu(f"{prefix}.experts.{number}", EXPERT)
        return tensors

    def attention(self, prefix: str, size: int) -> Tensors:
        """Returns four projections for heads of `size`."""
        return {
            f"{prefix}.q_proj.weight": self.matrix(HEADS * size, HIDDEN, gain=2.0),
            f"{prefix}.k_proj.weight": self.matrix(KV_HEADS * size, HIDDEN, gain=2.0),
            f"{prefix}.v_proj.weight": self.matrix(KV_HEADS * size, HIDDEN),
            f"{prefix}.o_proj.weight": self.matrix(HIDDEN, HEADS * size, gain=2.0),
        }

    def ends(self, embedding: str = "model.embed_tokens", tied: bool = False) -> Tensors:
        """Returns the embedding, the final norm, and `lm_head` unless it is tied."""
        tensors = {f"{embedding}.weight": self.matrix(VOCABULARY, HIDDEN, gain=2.0)}
        tensors["model.norm.weight"] = self.plain_norm()
        return tensors if tied else tensors | {"lm_head.weight": self.matrix(VOCABULARY, HIDDEN, gain=2.0)}


def plain_layouts(
    family: str,
    config: Config,
    raw: Tensors,
    converted: Tensors,
    head: Tensors,
    prefix: str,
    bf16_names: tuple[str, ...] = (),
) -> list[Layout]:
    """Returns the raw layout, the converted one with a sidecar, and that in 4 bit but for `bf16_names`."""
    return [
        Layout(
            f"{family}_raw",
            family,
            StoredHead(MODEL_FILE, prefix, norms_shifted=False),
            lambda folder: write_model(folder, config, raw | head, TORCH),
        ),
        Layout(
            f"{family}_mlx_sidecar_raw",
            family,
            StoredHead(SIDECAR, prefix, norms_shifted=False),
            _with_sidecar(config, converted, head),
        ),
        Layout(
            f"{family}_mlx_4bit_sidecar_4bit",
            f"{family}_4bit",
            StoredHead(SIDECAR, prefix, norms_shifted=False),
            _with_sidecar(config | QUANTIZATION_CONFIG, quantize(converted, bf16_names), quantize(head, bf16_names)),
        ),
    ]


def _with_sidecar(config: Config, target: Tensors, head: Tensors) -> Writer:
    """Returns the writer of a converted target, and of the head beside it with its raw names (as mlx-lm#1543)."""

    def write(folder: Path) -> None:
        write_model(folder, config, target, MLX)
        write_safetensors(folder / SIDECAR, head, TORCH)

    return write


def _layer(random: PlainWeights, prefix: str) -> Tensors:
    size = HIDDEN // HEADS
    attention = random.attention(f"{prefix}self_attn", size)
    for name, rows in (("q_proj", HEADS * size), ("k_proj", KV_HEADS * size), ("v_proj", KV_HEADS * size)):
        attention[f"{prefix}self_attn.{name}.bias"] = bf16(random.normal(rows, deviation=0.5))
    return attention | random.glu(f"{prefix}mlp", DENSE) | random.norms(prefix, LAYER_NORMS)


def _target() -> Tensors:
    random = PlainWeights(_SEED)
    tensors = random.ends()
    for layer in range(_LAYERS):
        tensors |= _layer(random, f"model.layers.{layer}.")
    return tensors


def _head() -> Tensors:
    random = PlainWeights(_SEED + 100)
    tensors = {f"{_PREFIX}input_proj.weight": random.matrix(HIDDEN, 2 * HIDDEN)}
    return tensors | _layer(random, _PREFIX) | random.norms(_PREFIX, _HEAD_NORMS)


_CONFIG: Config = {
    "architectures": ["MiMoForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "head_dim": HIDDEN // HEADS,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": DENSE,
    "max_position_embeddings": 4096,
    "max_window_layers": _LAYERS,
    "model_type": "mimo",
    "num_attention_heads": HEADS,
    "num_hidden_layers": _LAYERS,
    "num_key_value_heads": KV_HEADS,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 640000,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": VOCABULARY,
}

LAYOUTS: list[Layout] = plain_layouts("mimo", _CONFIG, _target(), _target(), _head(), _PREFIX, ("input_proj.weight",))
