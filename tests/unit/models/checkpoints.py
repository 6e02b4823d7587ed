"""Makes models on disk as people have them, from the embedded pair's draft; and mlx-lm's own texts of them."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load, quantize_model, save

PROMPT = list(range(260, 300, 3))
TOKENS = 14
INDEX = "model.safetensors.index.json"


def rewrite(file: Path, **values: Any) -> None:
    """Changes keys of a JSON file; None removes one."""
    config = (json.loads(file.read_text()) if file.exists() else {}) | values
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def reweigh(folder: Path, change: Callable[[dict[str, mx.array]], dict[str, mx.array]]) -> None:
    file = folder / "model.safetensors"
    weights = change(mx.load(str(file)))
    mx.eval(weights)
    mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})


def sharded(like: str, folder: Path) -> None:
    """Writes the model as two files and an index."""
    shutil.copytree(like, folder)
    weights = mx.load(str(folder / "model.safetensors"))
    mx.eval(weights)
    (folder / "model.safetensors").unlink()
    names, found = sorted(weights), {}
    for i, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in part}, metadata={"format": "mlx"})
        found |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"weight_map": found}))


def untied(like: str, folder: Path) -> None:
    """Writes the model with a head that differs from the embedding."""
    shutil.copytree(like, folder)
    rewrite(folder / "config.json", tie_word_embeddings=False)
    embedding = "model.embed_tokens.weight"
    reweigh(folder, lambda weights: weights | {"lm_head.weight": weights[embedding][::-1] * 1.1})


def quantised(mode: str, bits: int, group: int, mixed: bool = False) -> Callable[[str, Path], None]:
    """Returns a function that quantises a model as `mlx_lm.convert` does. `mixed`: the feed-forward layers in eight
    bits, their values not at all."""

    def predicate(path: str, module: Any) -> bool | dict[str, Any]:
        if path.endswith("v_proj"):
            return False
        return {"group_size": 64, "bits": 8, "mode": "affine"} if ".mlp." in path else True

    def make(like: str, folder: Path) -> None:
        model, tokenizer, config = load(like, return_config=True)
        with contextlib.redirect_stdout(io.StringIO()):
            model, config = quantize_model(
                model, config, group, bits, mode=mode, quant_predicate=predicate if mixed else None
            )
        save(folder, like, model, tokenizer, config)

    return make


def widened(like: str, folder: Path, rows: int, value: float = 0.0) -> Path:
    """Writes the model with so many more rows of embeddings than it has tokens; their values are `value`."""
    shutil.copytree(like, folder)
    config = json.loads((folder / "config.json").read_text())
    rewrite(folder / "config.json", vocab_size=config["vocab_size"] + rows)
    embedding = "model.embed_tokens.weight"

    def pad(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        return weights | {embedding: mx.pad(weights[embedding], [(0, rows), (0, 0)], constant_values=value)}

    reweigh(folder, pad)
    return folder


def adapter(like: str, folder: Path, kind: str = "lora", **config: Any) -> Path:
    """Writes an adapter with random weights, as `mlx_lm.lora` saves it."""
    model, _ = load(like)
    parameters = {"rank": 4, "scale": 10.0, "dropout": 0.1} | config.pop("lora_parameters", {})
    layers = config.pop("num_layers", 1)
    if kind != "full":
        linear_to_lora_layers(model, layers, parameters, use_dora=kind == "dora")
    mx.random.seed(3)
    weights = {}
    last = tuple(f"model.layers.{len(model.layers) - 1 - i}." for i in range(layers))
    for name, array in tree_flatten(model.parameters()):
        if kind == "full" and name.startswith(last):
            change = 0.1 if array.ndim == 2 else 0.0
            weights[name] = array + change * mx.random.normal(array.shape).astype(array.dtype)
        elif name.endswith((".lora_a", ".lora_b")):
            weights[name] = 0.1 * mx.random.normal(array.shape)
        elif name.endswith(".m"):
            weights[name] = array * 1.1
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    own = {"fine_tune_type": kind, "num_layers": layers, "lora_parameters": parameters, "model": like}
    rewrite(folder / "adapter_config.json", **(own | config))
    return folder


def reference(folder: Path | str, adapter: Path | None = None, prompt: list[int] = PROMPT) -> list[int]:
    """Returns mlx-lm's own greedy text, in fp32 as draftd computes here."""
    model, _ = load(str(folder), adapter_path=None if adapter is None else str(adapter))
    model.set_dtype(mx.float32)
    return [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=TOKENS)]
