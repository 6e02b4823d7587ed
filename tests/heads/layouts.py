"""Writes tiny random checkpoints of models with a draft head, in each layout that is published.

A raw checkpoint has the vendor's names and values: norms hold w of (1 + w), the convolution is (channels, 1, width). A
converted one has mlx-lm's: norms hold 1 + w, the convolution is (channels, width, 1), experts are stacked. Only NumPy
is used, also for bf16 and for 4 bit, so that nothing here depends on what is tested.

In every layout of one `target` the target's weights are the same numbers, and the head's differ only by rounding.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = dict[str, Array]  # uint16 holds bf16; float32, uint32 and int64 are themselves
Config = dict[str, Any]

_SEED = 20260922
_GROUP, _BITS = 64, 4
_PER_WORD = 32 // _BITS
_HIDDEN, _VOCABULARY, _LAYERS, _INTERVAL = 64, 256, 4, 4
_HEADS, _KV_HEADS, _HEAD_DIM = 4, 2, 32
_DENSE, _EXPERT, _EXPERTS, _CHOSEN = 128, 64, 4, 2
_KEY_HEADS, _VALUE_HEADS, _LINEAR_DIM, _KERNEL = 2, 4, 32, 4
_MAIN_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_TORCH, _MLX = {"format": "pt"}, {"format": "mlx"}
_ZERO_CENTRED = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
    "model.norm.weight",
    "language_model.norm.weight",
    "mtp.norm.weight",
    ".pre_fc_norm_embedding.weight",
    ".pre_fc_norm_hidden.weight",
)
# Means of w as published heads have them, says MTPLX: a final norm of 1.25 looks as if the 1 had been added.
_NORM_MEANS = {
    "q_norm": 0.79,
    "k_norm": 0.78,
    "input_layernorm": 0.04,
    "post_attention_layernorm": 0.21,
    "pre_fc_norm_hidden": -0.16,
    "pre_fc_norm_embedding": -0.46,
    "norm": 1.25,
}


@dataclass(frozen=True)
class StoredHead:
    """Where a layout has the head's tensors, and in what form."""

    file: str  # relative to the folder that is written
    prefix: str  # of the head's names in that file
    norms_shifted: bool  # 1 + w is stored


@dataclass(frozen=True)
class Layout:
    """A published layout. `target` names the target's weights, which layouts share."""

    name: str
    target: str
    head: StoredHead
    writer: Callable[[Path], None]

    @property
    def is_drafter(self) -> bool:
        """Says whether the head is a repository of its own, in `drafter`, and the target in `target`."""
        return self.head.file.startswith("drafter/")

    def write(self, folder: Path) -> None:
        """Writes config.json and safetensors below `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.writer(folder)

    def target_folder(self, folder: Path) -> Path:
        """Returns where in a written `folder` the target is."""
        return folder / "target" if self.is_drafter else folder

    def head_folder(self, folder: Path) -> Path:
        """Returns where in a written `folder` the head's repository is: the target's own, or the drafter's."""
        return folder / "drafter" if self.is_drafter else folder


# Files


def bf16(values: Array) -> Array:
    """Returns the bits of `values` rounded to bf16, to nearest and to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _wide_bf16(values: Array) -> Array:
    """Returns `values` as fp32 that a conversion to bf16 does not change."""
    return widened(bf16(values)).astype(np.float32)


def widened(tensor: Array) -> Array:
    """Returns a stored tensor as float64."""
    if tensor.dtype == np.uint16:
        tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
    return tensor.astype(np.float64)


_NAMES = {"BF16": np.uint16, "F32": np.float32, "U32": np.uint32, "I64": np.int64}
_TYPES = {np.dtype(kind): name for name, kind in _NAMES.items()}


def write_safetensors(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).tobytes())


def read_safetensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    """Returns a file's tensors and its metadata."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        flat = np.frombuffer(content[begin + first : begin + last], _NAMES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, metadata


def _write(
    folder: Path, config: Config, tensors: Tensors, metadata: Mapping[str, str], extra: Tensors | None = None
) -> None:
    """Writes a model of one file, or of two shards with an index if the second's tensors are given as `extra`."""
    _write_config(folder, config)
    if extra is None:
        write_safetensors(folder / _MAIN_FILE, tensors, metadata)
        return
    names = {}
    for number, shard in enumerate((tensors, extra), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        write_safetensors(folder / file, shard, metadata)
        names.update(dict.fromkeys(shard, file))
    total = sum(tensor.nbytes for tensor in (tensors | extra).values())
    _write_json(folder / _INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))})


def _write_config(folder: Path, config: Config) -> None:
    _write_json(folder / "config.json", config)


def _write_json(path: Path, content: Config) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


# Raw weights


class _Random:
    """Makes weights of the size that training gives them."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng([_SEED, seed])

    def normal(self, *shape: int, deviation: float, mean: float = 0.0) -> Array:
        return mean + deviation * self._generator.standard_normal(shape)

    def matrix(self, *shape: int, gain: float = 1.0) -> Array:
        return bf16(self.normal(*shape, deviation=gain / math.sqrt(shape[-1])))

    def norm(self, size: int, name: str) -> Array:
        return bf16(self.normal(size, deviation=0.15, mean=_NORM_MEANS[name]))


def _attention(random: _Random, prefix: str) -> Tensors:
    return {
        f"{prefix}.self_attn.q_proj.weight": random.matrix(2 * _HEADS * _HEAD_DIM, _HIDDEN),
        f"{prefix}.self_attn.k_proj.weight": random.matrix(_KV_HEADS * _HEAD_DIM, _HIDDEN),
        f"{prefix}.self_attn.v_proj.weight": random.matrix(_KV_HEADS * _HEAD_DIM, _HIDDEN),
        f"{prefix}.self_attn.o_proj.weight": random.matrix(_HIDDEN, _HEADS * _HEAD_DIM, gain=2.0),
        f"{prefix}.self_attn.q_norm.weight": random.norm(_HEAD_DIM, "q_norm"),
        f"{prefix}.self_attn.k_norm.weight": random.norm(_HEAD_DIM, "k_norm"),
    }


def _linear_attention(random: _Random, prefix: str, family: str) -> Tensors:
    keys, values = _KEY_HEADS * _LINEAR_DIM, _VALUE_HEADS * _LINEAR_DIM
    prefix = f"{prefix}.linear_attn"
    if family == "qwen3_next":
        projections = {
            f"{prefix}.in_proj_qkvz.weight": random.matrix(2 * keys + 2 * values, _HIDDEN),
            f"{prefix}.in_proj_ba.weight": random.matrix(2 * _VALUE_HEADS, _HIDDEN),
        }
    else:
        projections = {
            f"{prefix}.in_proj_qkv.weight": random.matrix(2 * keys + values, _HIDDEN),
            f"{prefix}.in_proj_z.weight": random.matrix(values, _HIDDEN),
            f"{prefix}.in_proj_b.weight": random.matrix(_VALUE_HEADS, _HIDDEN),
            f"{prefix}.in_proj_a.weight": random.matrix(_VALUE_HEADS, _HIDDEN),
        }
    own = bf16 if family == "qwen3_next" else _wide_bf16
    return projections | {
        f"{prefix}.conv1d.weight": random.matrix(2 * keys + values, 1, _KERNEL),
        f"{prefix}.A_log": own(random.normal(_VALUE_HEADS, deviation=0.3)),
        f"{prefix}.dt_bias": bf16(random.normal(_VALUE_HEADS, deviation=0.3)),
        f"{prefix}.norm.weight": own(random.normal(_LINEAR_DIM, deviation=0.1, mean=1.0)),
        f"{prefix}.out_proj.weight": random.matrix(_HIDDEN, values, gain=2.0),
    }


def _glu(random: _Random, prefix: str, inner: int) -> Tensors:
    return {
        f"{prefix}.gate_proj.weight": random.matrix(inner, _HIDDEN),
        f"{prefix}.up_proj.weight": random.matrix(inner, _HIDDEN),
        f"{prefix}.down_proj.weight": random.matrix(_HIDDEN, inner, gain=2.0),
    }


def _mlp(random: _Random, prefix: str, family: str) -> Tensors:
    prefix = f"{prefix}.mlp"
    if family == "qwen3_5":
        return _glu(random, prefix, _DENSE)
    shared = {
        f"{prefix}.gate.weight": random.matrix(_EXPERTS, _HIDDEN),
        **_glu(random, f"{prefix}.shared_expert", _EXPERT),
        f"{prefix}.shared_expert_gate.weight": random.matrix(1, _HIDDEN),
    }
    numbered: Tensors = {}
    for expert in range(_EXPERTS):
        numbered |= _glu(random, f"{prefix}.experts.{expert}", _EXPERT)
    return shared | (numbered if family == "qwen3_next" else _fused(numbered))


def _fused(tensors: Tensors) -> Tensors:
    """Returns tensors whose experts are in two stacks, gate and up in one, as Qwen3.5 publishes them."""
    stacked = _stacked(tensors)
    result = {name: tensor for name, tensor in stacked.items() if ".switch_mlp." not in name}
    for name, tensor in stacked.items():
        prefix, found, projection = name.partition(".switch_mlp.")
        if found and projection == "gate_proj.weight":
            up = stacked[f"{prefix}.switch_mlp.up_proj.weight"]
            result[f"{prefix}.experts.gate_up_proj"] = np.concatenate([tensor, up], axis=1)
        elif found and projection == "down_proj.weight":
            result[f"{prefix}.experts.down_proj"] = tensor
    return result


def _stacked(tensors: Tensors) -> Tensors:
    """Returns tensors whose experts are in three stacks, as mlx-lm has them."""
    result: Tensors = {}
    for name, tensor in tensors.items():
        prefix, found, rest = name.partition(".experts.")
        if not found:
            result[name] = tensor
        elif rest == "gate_up_proj":
            gate, up = np.split(tensor, 2, axis=1)
            result[f"{prefix}.switch_mlp.gate_proj.weight"] = gate
            result[f"{prefix}.switch_mlp.up_proj.weight"] = up
        elif rest == "down_proj":
            result[f"{prefix}.switch_mlp.down_proj.weight"] = tensor
        elif rest.startswith("0."):
            projection = rest.removeprefix("0.")
            experts = [tensors[f"{prefix}.experts.{number}.{projection}"] for number in range(_EXPERTS)]
            result[f"{prefix}.switch_mlp.{projection}"] = np.stack(experts)
    return result


def _numbered(tensors: Tensors) -> Tensors:
    """Returns tensors whose experts are one by one, as Qwen3-Next publishes them."""
    result: Tensors = {}
    for name, tensor in _stacked(tensors).items():
        prefix, found, projection = name.partition(".switch_mlp.")
        if found:
            result |= {f"{prefix}.experts.{number}.{projection}": expert for number, expert in enumerate(tensor)}
        else:
            result[name] = tensor
    return result


def _raw_target(family: str, tied: bool) -> Tensors:
    random = _Random({"qwen3_next": 1, "qwen3_5": 2, "qwen3_5_moe": 3}[family])
    model = "model" if family == "qwen3_next" else "model.language_model"
    tensors = {f"{model}.embed_tokens.weight": random.matrix(_VOCABULARY, _HIDDEN, gain=2.0)}
    for layer in range(_LAYERS):
        prefix = f"{model}.layers.{layer}"
        is_full = (layer + 1) % _INTERVAL == 0
        tensors |= _attention(random, prefix) if is_full else _linear_attention(random, prefix, family)
        tensors |= _mlp(random, prefix, family)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = random.norm(_HIDDEN, name)
    tensors[f"{model}.norm.weight"] = random.norm(_HIDDEN, "norm")
    lm_head = random.matrix(_VOCABULARY, _HIDDEN, gain=2.0)
    if not tied:
        tensors["lm_head.weight"] = lm_head
    if family != "qwen3_next":
        tensors["model.visual.patch_embed.proj.bias"] = random.matrix(32)
    return tensors


def _raw_head(family: str) -> Tensors:
    random = _Random({"qwen3_next": 11, "qwen3_5": 12, "qwen3_5_moe": 13}[family])
    layer = "mtp.layers.0"
    tensors = {"mtp.fc.weight": random.matrix(_HIDDEN, 2 * _HIDDEN)}
    tensors |= _attention(random, layer) | _mlp(random, layer, family)
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{layer}.{name}.weight"] = random.norm(_HIDDEN, name)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        tensors[f"mtp.{name}.weight"] = random.norm(_HIDDEN, name)
    return tensors


def _config(family: str, tied: bool) -> Config:
    text: Config = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "full_attention_interval": _INTERVAL,
        "head_dim": _HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": _DENSE,
        "layer_types": [
            "full_attention" if (layer + 1) % _INTERVAL == 0 else "linear_attention" for layer in range(_LAYERS)
        ],
        "linear_conv_kernel_dim": _KERNEL,
        "linear_key_head_dim": _LINEAR_DIM,
        "linear_num_key_heads": _KEY_HEADS,
        "linear_num_value_heads": _VALUE_HEADS,
        "linear_value_head_dim": _LINEAR_DIM,
        "max_position_embeddings": 4096,
        "num_attention_heads": _HEADS,
        "num_hidden_layers": _LAYERS,
        "num_key_value_heads": _KV_HEADS,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": _VOCABULARY,
    }
    if family != "qwen3_5":
        text |= {
            "moe_intermediate_size": _EXPERT,
            "num_experts": _EXPERTS,
            "num_experts_per_tok": _CHOSEN,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
            "shared_expert_intermediate_size": _EXPERT,
        }
    if family == "qwen3_next":
        return {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "torch_dtype": "bfloat16",
            **text,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
            "partial_rotary_factor": 0.25,
            "rope_scaling": None,
            "rope_theta": 10000,
        }
    if family == "qwen3_5_moe":
        del text["intermediate_size"]
    text |= {
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "mamba_ssm_dtype": "float32",
        "model_type": f"{family}_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000,
            "rope_type": "default",
        },
    }
    name = "Qwen3_5ForConditionalGeneration" if family == "qwen3_5" else "Qwen3_5MoeForConditionalGeneration"
    return {
        "architectures": [name],
        "image_token_id": 5,
        "model_type": family,
        "text_config": text,
        "tie_word_embeddings": tied,
        "video_token_id": 6,
        "vision_config": {"depth": 1, "hidden_size": 32, "model_type": family, "out_hidden_size": _HIDDEN},
        "vision_end_token_id": 3,
        "vision_start_token_id": 2,
    }


# What converters make of them


def _shifted(tensors: Tensors) -> Tensors:
    """Returns tensors with 1 added to each zero-centred norm, rounded to bf16 as a converter does."""
    return {
        name: bf16(widened(tensor) + 1.0) if name.endswith(_ZERO_CENTRED) else tensor
        for name, tensor in tensors.items()
    }


def _converted_target(raw: Tensors) -> Tensors:
    """Returns a target as mlx-lm's conversion writes it."""
    converted = {}
    for name, tensor in _stacked(_shifted(raw)).items():
        if name.startswith("model.visual"):
            continue
        if ".conv1d." in name:
            tensor = np.moveaxis(tensor, 2, 1)
        if tensor.dtype == np.float32 and not name.endswith("A_log"):
            tensor = bf16(tensor)
        if "model.language_model.embed_tokens.weight" in raw:
            name = "language_model." + name.replace("model.language_model.", "model.", 1)
        converted[name] = tensor
    return converted


def _converted_head(raw: Tensors, prefix: str = "mtp.") -> Tensors:
    return _renamed(_stacked(_shifted(raw)), prefix)


def _renamed(head: Tensors, prefix: str) -> Tensors:
    return {prefix + name.removeprefix("mtp."): tensor for name, tensor in head.items()}


def _quantized(tensors: Tensors, kept: tuple[str, ...] = ()) -> Tensors:
    """Returns tensors with each matrix in MLX's affine 4 bit, but those whose name ends as one of `kept`."""
    result: Tensors = {}
    for name, tensor in tensors.items():
        is_matrix = name.endswith(".weight") and tensor.ndim > 1 and tensor.shape[-1] % _GROUP == 0
        if not is_matrix or name.endswith(kept):
            result[name] = tensor
            continue
        groups = widened(tensor).reshape(*tensor.shape[:-1], -1, _GROUP)
        low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
        scale_bits, bias_bits = bf16((high - low) / (2**_BITS - 1)), bf16(low)
        levels = np.rint((groups - widened(bias_bits)) / np.maximum(widened(scale_bits), 1e-12))
        levels = np.clip(levels, 0, 2**_BITS - 1).astype(np.uint32).reshape(*tensor.shape[:-1], -1, _PER_WORD)
        words = np.bitwise_or.reduce(levels << np.arange(0, 32, _BITS, dtype=np.uint32), axis=-1)
        stem = name.removesuffix(".weight")
        result |= {name: words, f"{stem}.scales": scale_bits[..., 0], f"{stem}.biases": bias_bits[..., 0]}
    return result


def dequantized(tensors: Tensors) -> Tensors:
    """Returns tensors as float64, those in affine 4 bit as what they stand for."""
    result = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if f"{stem}.scales" not in tensors:
            result[name] = widened(tensor)
            continue
        levels = (tensor[..., None] >> np.arange(0, 32, _BITS, dtype=np.uint32)) & (2**_BITS - 1)
        groups = levels.reshape(*tensor.shape[:-1], -1, _GROUP)
        scales, biases = (widened(tensors[f"{stem}.{part}"])[..., None] for part in ("scales", "biases"))
        result[name] = (groups * scales + biases).reshape(*tensor.shape[:-1], -1)
    return result


def raw_head(layout: Layout, folder: Path) -> Tensors:
    """Returns the head of a written layout with the vendor's names and values, as float64.

    Experts are one by one or fused, as they were stored; MLX's stacks become fused.
    """
    stored, _ = read_safetensors(folder / layout.head.file)
    prefix = layout.head.prefix
    is_whole_file = not prefix
    head = {
        f"mtp.{name.removeprefix(prefix)}": tensor
        for name, tensor in dequantized(stored).items()
        if is_whole_file or name.startswith(prefix)
    }
    if layout.head.norms_shifted:
        head = {name: tensor - 1.0 if name.endswith(_ZERO_CENTRED) else tensor for name, tensor in head.items()}
    has_stacks = any(".switch_mlp." in name for name in head)
    return _fused(head) if has_stacks else head


def embedding_and_lm_head(layout: Layout, folder: Path) -> tuple[Array, Array]:
    """Returns the target's embedding and the matrix that makes logits, both (vocabulary, hidden)."""
    tensors: Tensors = {}
    for file in sorted(layout.target_folder(folder).glob("model*.safetensors")):
        tensors |= dequantized(read_safetensors(file)[0])
    embedding = next(tensor for name, tensor in tensors.items() if name.endswith("embed_tokens.weight"))
    lm_head = next((tensor for name, tensor in tensors.items() if name.endswith("lm_head.weight")), embedding)
    return embedding, lm_head


# Layouts


def _raw(family: str, *, tied: bool = False, numbered: bool = False, sharded: bool = False) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        head = _raw_head(family)
        if numbered:
            head = _numbered(head)
        target, config = _raw_target(family, tied), _config(family, tied)
        if sharded:
            _write(folder, config, target, _TORCH, extra=head)
        else:
            _write(folder, config, target | head, _TORCH)

    return write


def _converted(
    family: str, *, inside: Tensors | None = None, quantized: bool = False, config: Config | None = None
) -> Callable[[Path], None]:
    """Returns what writes a target as mlx-lm converts it, with the tensors `inside` in its file."""

    def write(folder: Path) -> None:
        whole = _config(family, tied=False) | (config or {})
        target = _converted_target(_raw_target(family, tied=False))
        if quantized:
            quantization = {"group_size": _GROUP, "bits": _BITS, "mode": "affine"}
            whole |= {"quantization": quantization, "quantization_config": quantization}
            target = _quantized(target)
        _write(folder, whole, target | (inside or {}), _MLX)

    return write


def _with_sidecar(
    write_target: Callable[[Path], None], file: str, head: Tensors, metadata: Mapping[str, str] | None
) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_target(folder)
        write_safetensors(folder / file, head, metadata)

    return write


def _with_drafter(
    write_target: Callable[[Path], None], family: str, head: Tensors, quantized: bool = False
) -> Callable[[Path], None]:
    """Returns what writes a target, and a drafter's repository as mlx-vlm splits it from a raw checkpoint."""

    def write(folder: Path) -> None:
        write_target(folder / "target")
        text = _config(family, tied=False)["text_config"]
        config = {"block_size": 3, "model_type": "qwen3_5_mtp", "text_config": text, "tie_word_embeddings": False}
        if quantized:
            quantization = {"group_size": _GROUP, "bits": _BITS, "mode": "affine"}
            config |= {"quantization": quantization, "quantization_config": quantization}
        _write_config(folder / "drafter", config)
        write_safetensors(folder / "drafter" / _MAIN_FILE, head, _MLX)

    return write


_DENSE_FAMILY, _MOE_FAMILY = "qwen3_5", "qwen3_5_moe"
_KEPT = ("fc.weight", ".gate.weight", ".shared_expert_gate.weight")
_MTP_QUANTIZATION = {
    "mtplx_mtp_quantization": {
        "prequantized": True,
        "bits": _BITS,
        "group_size": _GROUP,
        "mode": "affine",
        "policy": "cyankiwi",  # MTPLX's word for: all matrices but fc
    }
}
_MTP_FILE = {"mlx_lm_extra_tensors": {"mtp_file": "model-mtp.safetensors", "mtp_tensor_count": 15}}


def _layouts() -> list[Layout]:
    dense, moe = _raw_head(_DENSE_FAMILY), _raw_head(_MOE_FAMILY)
    bare_dense, bare_moe = _converted_head(dense, ""), _converted_head(moe, "")
    in_target, in_drafter = StoredHead(_MAIN_FILE, "mtp.", False), StoredHead(f"drafter/{_MAIN_FILE}", "", True)
    embedded = StoredHead(_MAIN_FILE, "mtp.", True)
    next_target, dense_target, moe_target = _converted("qwen3_next"), _converted(_DENSE_FAMILY), _converted(_MOE_FAMILY)
    return [
        Layout("qwen3_next_raw", "qwen3_next", in_target, _raw("qwen3_next")),
        Layout("qwen3_5_raw_tied", "qwen3_5_tied", in_target, _raw(_DENSE_FAMILY, tied=True)),
        Layout("qwen3_5_raw_untied", "qwen3_5", in_target, _raw(_DENSE_FAMILY)),
        Layout(
            "qwen3_5_raw_sharded",
            "qwen3_5",
            StoredHead("model-00002-of-00002.safetensors", "mtp.", False),
            _raw(_DENSE_FAMILY, sharded=True),
        ),
        Layout("qwen3_5_moe_raw", "qwen3_5_moe", in_target, _raw(_MOE_FAMILY)),
        # as the FP8 release of 35B-A3B and the 122B have it
        Layout("qwen3_5_moe_raw_numbered", "qwen3_5_moe", in_target, _raw(_MOE_FAMILY, numbered=True)),
        # 1 was added to the head's norms too, and mlx-lm's sanitize of qwen3_next does not drop the head
        Layout(
            "qwen3_next_mlx_embedded",
            "qwen3_next",
            embedded,
            _converted("qwen3_next", inside=_converted_head(_raw_head("qwen3_next"))),
        ),
        Layout("qwen3_5_mlx_embedded", "qwen3_5", embedded, _converted(_DENSE_FAMILY, inside=_converted_head(dense))),
        Layout(
            "qwen3_5_moe_mlx_embedded",
            "qwen3_5_moe",
            StoredHead(_MAIN_FILE, "language_model.mtp.", True),
            _converted(_MOE_FAMILY, inside=_converted_head(moe, "language_model.mtp.")),
        ),
        Layout(
            "qwen3_next_mlx_sidecar_raw",
            "qwen3_next",
            StoredHead("mtp.safetensors", "mtp.", False),
            _with_sidecar(next_target, "mtp.safetensors", _raw_head("qwen3_next"), _TORCH),
        ),
        Layout(
            "qwen3_5_mlx_sidecar_raw",
            "qwen3_5",
            StoredHead("mtp.safetensors", "mtp.", False),
            _with_sidecar(dense_target, "mtp.safetensors", dense, _TORCH),
        ),
        Layout(
            "qwen3_5_moe_mlx_sidecar_raw",
            "qwen3_5_moe",
            StoredHead("mtp.safetensors", "mtp.", False),
            _with_sidecar(moe_target, "mtp.safetensors", moe, _TORCH),
        ),
        Layout(
            "qwen3_5_mlx_sidecar_raw_4bit",
            "qwen3_5",
            StoredHead("mtp.safetensors", "mtp.", False),
            _with_sidecar(
                _converted(_DENSE_FAMILY, config=_MTP_QUANTIZATION),
                "mtp.safetensors",
                _quantized(dense, kept=_KEPT),
                None,
            ),
        ),
        Layout(
            "qwen3_5_mlx_sidecar_bare",
            "qwen3_5",
            StoredHead("mtp/weights.safetensors", "", True),
            _with_sidecar(dense_target, "mtp/weights.safetensors", bare_dense, _MLX),
        ),
        # vllm-mlx's add_mtp_weights_qwen35.py: the prefix stays, 1 is added, and no metadata says so
        Layout(
            "qwen3_5_mlx_sidecar_vllm_mlx",
            "qwen3_5",
            StoredHead("mtp/weights.safetensors", "mtp.", True),
            _with_sidecar(
                _converted(_DENSE_FAMILY, config={"num_nextn_predict_layers": 1}),
                "mtp/weights.safetensors",
                _converted_head(dense),
                None,
            ),
        ),
        Layout(
            "qwen3_5_moe_mlx_sidecar_vllm_mlx_4bit",
            "qwen3_5_moe",
            StoredHead("mtp/weights.safetensors", "mtp.", True),
            _with_sidecar(
                _converted(_MOE_FAMILY, config={"num_nextn_predict_layers": 1}),
                "mtp/weights.safetensors",
                _quantized(_converted_head(moe), kept=_KEPT),
                None,
            ),
        ),
        # mlx-lm's load_model reads this file too, since its name begins with "model"
        Layout(
            "qwen3_5_mlx_sidecar_mtp_file",
            "qwen3_5",
            StoredHead("model-mtp.safetensors", "mtp.", True),
            _with_sidecar(
                _converted(_DENSE_FAMILY, config=_MTP_FILE), "model-mtp.safetensors", _converted_head(dense), _MLX
            ),
        ),
        Layout("qwen3_5_drafter", "qwen3_5", in_drafter, _with_drafter(dense_target, _DENSE_FAMILY, bare_dense)),
        Layout(
            "qwen3_5_drafter_4bit",
            "qwen3_5",
            in_drafter,
            _with_drafter(dense_target, _DENSE_FAMILY, _quantized(bare_dense, kept=_KEPT), quantized=True),
        ),
        Layout(
            "qwen3_5_drafter_4bit_fc",
            "qwen3_5",
            in_drafter,
            _with_drafter(dense_target, _DENSE_FAMILY, _quantized(bare_dense), quantized=True),
        ),
        Layout("qwen3_5_moe_drafter", "qwen3_5_moe", in_drafter, _with_drafter(moe_target, _MOE_FAMILY, bare_moe)),
        # mlx-vlm keeps the router, and quantises the shared expert's gate and fc
        Layout(
            "qwen3_5_moe_drafter_4bit",
            "qwen3_5_moe",
            in_drafter,
            _with_drafter(moe_target, _MOE_FAMILY, _quantized(bare_moe, kept=("mlp.gate.weight",)), quantized=True),
        ),
        Layout(
            "qwen3_5_mlx_4bit_drafter_4bit",
            "qwen3_5_4bit",
            in_drafter,
            _with_drafter(
                _converted(_DENSE_FAMILY, quantized=True),
                _DENSE_FAMILY,
                _quantized(bare_dense, kept=_KEPT),
                quantized=True,
            ),
        ),
    ]


LAYOUTS = _layouts()


# Layouts of heads that are not served: names that are published, and no more


_ATTENTION_NAMES = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
_LAYER_NAMES = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *_ATTENTION_NAMES,
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)
_MLA_NAMES = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.q_a_proj.weight",
    "self_attn.q_a_layernorm.weight",
    "self_attn.q_b_proj.weight",
    "self_attn.kv_a_proj_with_mqa.weight",
    "self_attn.kv_a_layernorm.weight",
    "self_attn.kv_b_proj.weight",
    "self_attn.o_proj.weight",
)
_MOE_NAMES = (
    "mlp.gate.weight",
    "mlp.gate.e_score_correction_bias",
    *(f"mlp.experts.{n}.{part}_proj.weight" for n in range(2) for part in ("gate", "up", "down")),
    *(f"mlp.shared_experts.{part}_proj.weight" for part in ("gate", "up", "down")),
)
_NEXTN_NAMES = ("enorm.weight", "hnorm.weight", "eh_proj.weight")
_SHARED_NAMES = ("embed_tokens.weight", "shared_head.norm.weight", "shared_head.head.weight")
_TARGET_NAMES = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


def _under(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names)


_REFUSED: dict[str, tuple[Config, tuple[str, ...]]] = {
    "deepseek_v3": (
        {"architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 1},
        _under("model.layers.2", *_NEXTN_NAMES, *_SHARED_NAMES, *_MLA_NAMES, *_MOE_NAMES),
    ),
    "glm4_moe": (
        {"architectures": ["Glm4MoeForCausalLM"], "num_nextn_predict_layers": 1},
        _under("model.layers.2", *_NEXTN_NAMES, *_SHARED_NAMES, *_LAYER_NAMES[:6], *_MOE_NAMES),
    ),
    "mimo": (
        {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1},
        _under(
            "model.mtp_layers.0",
            *("token_layernorm.weight", "hidden_layernorm.weight", "input_proj.weight", "final_layernorm.weight"),
            *_LAYER_NAMES,
            *("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
        ),
    ),
    "step3p5": (
        {"architectures": ["Step3p5ForCausalLM"], "num_nextn_predict_layers": 3},
        tuple(
            name
            for layer in range(2, 5)
            for name in _under(
                f"model.layers.{layer}",
                *_NEXTN_NAMES,
                *("transformer.shared_head.norm.weight", "transformer.shared_head.output.weight"),
                *_LAYER_NAMES,
                *("self_attn.q_norm.weight", "self_attn.k_norm.weight", "self_attn.g_proj.weight"),
            )
        ),
    ),
    "exaone_moe": (
        {"architectures": ["ExaoneMoEForCausalLM"], "num_nextn_predict_layers": 1},
        (
            *("mtp.fc.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.norm.weight"),
            *_under("mtp.layers.0", *_LAYER_NAMES, "self_attn.q_norm.weight", "self_attn.k_norm.weight"),
        ),
    ),
    "ernie4_5_moe": (
        {"architectures": ["Ernie4_5_MoeForCausalLM"], "num_nextn_predict_layers": 1},
        (
            *_under("model.mtp_block.0", *_LAYER_NAMES),
            *("model.mtp_emb_norm.0.weight", "model.mtp_hidden_norm.0.weight", "model.mtp_linear_proj.0.weight"),
        ),
    ),
    "nemotron_h": (
        {
            "architectures": ["NemotronHForCausalLM"],
            "num_nextn_predict_layers": 1,
            "mtp_hybrid_override_pattern": "*E",
        },
        (
            *_under("mtp.layers.0", *_NEXTN_NAMES, "norm.weight"),
            *_under("mtp.layers.0.mixer", "q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"),
            *_under("mtp.layers.1", "norm.weight", "final_layernorm.weight"),
            *_under(
                "mtp.layers.1.mixer",
                *("gate.weight", "gate.e_score_correction_bias"),
                *("experts.0.up_proj.weight", "experts.0.down_proj.weight"),
                *("shared_experts.up_proj.weight", "shared_experts.down_proj.weight"),
            ),
        ),
    ),
    "longcat_flash": (
        {"architectures": ["LongcatFlashForCausalLM"], "num_nextn_predict_layers": 1},
        (
            *_under("model.mtp.layers.0", "enorm.m.weight", "hnorm.m.weight", "eh_proj.weight", *_MLA_NAMES),
            *_under(
                "model.mtp.layers.0.transformer_layer.mlp", "gate_proj.weight", "up_proj.weight", "down_proj.weight"
            ),
            *("model.mtp.embed_tokens.weight", "model.mtp.norm.weight"),
        ),
    ),
    "bailing_moe": (
        {"architectures": ["BailingMoeV2ForCausalLM"], "num_nextn_predict_layers": 1},
        _under(
            "model.layers.2",
            *_NEXTN_NAMES,
            *("final_layernorm.weight", "input_layernorm.weight", "post_attention_layernorm.weight"),
            *("attention.query_key_value.weight", "attention.dense.weight"),
            *("attention.query_layernorm.weight", "attention.key_layernorm.weight"),
            *_MOE_NAMES,
        ),
    ),
    "deepseek_v4": (
        {"architectures": ["DeepseekV4ForCausalLM"], "num_nextn_predict_layers": 1},
        _under(
            "mtp.0",
            *("enorm.weight", "hnorm.weight", "e_proj.weight", "h_proj.weight", "norm.weight"),
            *("attn.attn_sink", "attn_norm.weight", "ffn.gate.weight", "ffn_norm.weight"),
            *(f"hc_{place}_{part}" for place in ("attn", "ffn", "head") for part in ("base", "fn", "scale")),
            *(f"ffn.experts.0.w{n}.weight" for n in (1, 2, 3)),
        ),
    ),
    # Qwen3.8-Flash-Next, whose names begin as Qwen3.5's do
    "qwen4_exp": (
        {"architectures": ["Qwen4ExpForConditionalGeneration"], "mtp_num_hidden_layers": 1},
        (
            *("mtp.fc_embedding.weight", "mtp.fc_hidden.weight"),
            *("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"),
            *_under(
                "mtp.hyper_connection_mixer",
                *("hc_norm.weight", "input_mix_weight_down.weight", "input_mix_weight_up.weight"),
            ),
            *_under("mtp.layers.0", *_ATTENTION_NAMES, "self_attn.o_proj.weight"),
            *_under("mtp.layers.0", "self_attn.q_norm.weight", "self_attn.k_norm.weight"),
            *_under("mtp.layers.0", "mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
        ),
    ),
    "gemma4_assistant": (
        {"architectures": ["Gemma4AssistantForCausalLM"], "backbone_hidden_size": 64, "block_size": 4},
        (
            *("pre_projection.weight", "post_projection.weight"),
            *(
                name
                for layer in range(4)
                for name in _under(
                    f"model.layers.{layer}",
                    *("input_layernorm.weight", "post_attention_layernorm.weight"),
                    *("self_attn.q_proj.weight", "self_attn.q_norm.weight", "self_attn.o_proj.weight"),
                    *("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"),
                )
            ),
        ),
    ),
    "eagle3": (
        {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": 32},
        (
            *("fc.weight", "d2t", "t2d", "norm.weight", "lm_head.weight"),
            *_under("midlayer", "hidden_norm.weight", *_LAYER_NAMES),
        ),
    ),
    "dflash": (
        {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": 16,
            "dflash_config": {"mask_token_id": 255, "target_layer_ids": [0, 1]},
        },
        (
            *("fc.weight", "hidden_norm.weight", "norm.weight"),
            *_under("layers.0", *_LAYER_NAMES, "self_attn.q_norm.weight", "self_attn.k_norm.weight"),
        ),
    ),
}
_WITHOUT_TARGET = ("gemma4_assistant", "eagle3", "dflash")


def _refused(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        own, names = _REFUSED[name]
        config: Config = {
            "model_type": name,
            "hidden_size": _HIDDEN,
            "num_hidden_layers": 2,
            "vocab_size": _VOCABULARY,
            **own,
        }
        if name not in _WITHOUT_TARGET:
            names = (*_TARGET_NAMES, *_under("model.layers.0", *_LAYER_NAMES), *names)
        random = _Random(99)
        tensors = {
            tensor: random.matrix(8) if "norm" in tensor or "bias" in tensor else random.matrix(8, 8)
            for tensor in names
        }
        for integers in {"d2t", "t2d"} & tensors.keys():
            tensors[integers] = np.arange(8, dtype=np.int64)
        _write(folder, config, tensors, _TORCH)

    return write


REFUSED: list[tuple[str, Callable[[Path], None]]] = [(name, _refused(name)) for name in _REFUSED]
