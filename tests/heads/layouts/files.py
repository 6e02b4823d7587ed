"""Reads and writes safetensors and config.json with NumPy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = dict[str, Array]  # uint16 holds bf16; float32, uint32 and int64 are themselves
Config = dict[str, Any]

MODEL_FILE = "model.safetensors"
TORCH, MLX = {"format": "pt"}, {"format": "mlx"}  # metadata of safetensors
_INDEX_FILE = "model.safetensors.index.json"
_KINDS: dict[str, Any] = {"BF16": np.uint16, "F32": np.float32, "U32": np.uint32, "I64": np.int64, "BOOL": np.bool_}
_KIND_NAMES = {np.dtype(kind): name for name, kind in _KINDS.items()}


def bf16(values: Array) -> Array:
    """Returns the bits of `values` rounded to bf16, to nearest and to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def float64(tensor: Array) -> Array:
    """Returns a stored tensor as float64."""
    if tensor.dtype == np.uint16:
        tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
    return tensor.astype(np.float64)


def write_safetensors(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": _KIND_NAMES[tensor.dtype],
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
        flat = np.frombuffer(content[begin + first : begin + last], _KINDS[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, metadata


def write_model(folder: Path, config: Config, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Writes a model whose weights are one file."""
    write_config(folder, config)
    write_safetensors(folder / MODEL_FILE, tensors, metadata)


def write_sharded_model(folder: Path, config: Config, shards: list[Tensors], metadata: Mapping[str, str]) -> None:
    """Writes a model with one file for each of `shards`, and their index."""
    write_config(folder, config)
    files: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(folder / file, shard, metadata)
        files.update(dict.fromkeys(shard, file))
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    _write_json(folder / _INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))})


def write_config(folder: Path, config: Config) -> None:
    """Writes config.json."""
    _write_json(folder / "config.json", config)


def _write_json(path: Path, content: Config) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
