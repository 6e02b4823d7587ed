"""Makes and changes drafts on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def change_weights(folder: Path, change: Callable[[str, Any], Any]) -> None:
    """Replaces the weights in one step, as a deployment does."""
    import mlx.core as mx

    file = folder / "model.safetensors"
    weights = {name: change(name, array) for name, array in mx.load(str(file)).items()}
    mx.eval(weights)
    fresh = folder / "fresh.safetensors"
    mx.save_safetensors(str(fresh), weights, metadata={"format": "mlx"})
    fresh.replace(file)


def random_draft(like: str, folder: Path, *, hidden: int, layers: int, inner: int) -> Path:
    """Writes a Llama with random bfloat16 weights, and the tokenizer of the draft `like`."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.llama import Model, ModelArgs

    shutil.copytree(like, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inner}
    config |= {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": hidden // 8}
    (folder / "config.json").write_text(json.dumps(config))
    model = Model(ModelArgs.from_dict(config))
    model.set_dtype(mx.bfloat16)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    return folder


def quantised(like: str, folder: Path, bits: int) -> Path:
    """Copies a draft with coarser weights, as mlx-lm's converter makes them."""
    from mlx_lm.utils import load, quantize_model, save

    model, tokenizer, config = load(like, return_config=True)
    model, config = quantize_model(model, config, group_size=64, bits=bits)
    save(folder, like, model, tokenizer, config)
    return folder


def change_tokenizer(folder: Path) -> None:
    """Swaps the ids of two tokens."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    a, b = list(vocabulary)[500:502]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    file.write_text(json.dumps(tokenizer))


def mamba(folder: Path) -> Path:
    """Writes a tiny Mamba with random weights beside the tokenizer that is there."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.mamba import Model, ModelArgs

    config = {"model_type": "mamba", "vocab_size": 4096, "hidden_size": 16, "intermediate_size": 32}
    config |= {"state_size": 4, "num_hidden_layers": 1, "conv_kernel": 4, "time_step_rank": 2}
    config |= {"use_bias": False, "use_conv_bias": True}
    (folder / "config.json").write_text(json.dumps(config))
    model = Model(ModelArgs.from_dict(config))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    return folder
