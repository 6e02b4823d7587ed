"""Makes a useless draft model: random weights with the tokenizer of a real model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def random_draft(like: str, folder: Path, *, hidden: int, layers: int, inner: int) -> Path:
    """Writes a Llama with random bfloat16 weights to `folder`, with the tokenizer of the model folder `like`, and
    returns `folder`. `inner` is the MLP's size."""
    from draftd.models.blas import load_blas

    load_blas()
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.llama import Model, ModelArgs

    shutil.copytree(like, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inner}
    config |= {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": hidden // 8}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mx.random.seed(0)
    model = Model(ModelArgs.from_dict(config))
    model.set_dtype(mx.bfloat16)
    fresh = folder / "fresh.safetensors"
    mx.save_safetensors(str(fresh), dict(tree_flatten(model.parameters())))
    fresh.replace(folder / "model.safetensors")
    return folder
