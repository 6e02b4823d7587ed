"""Makes tiny models with random weights, and drafts from them by adding noise."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from draftd.models.mlx_lm import make_prompt_cache, model_classes
from tests.models.architectures import configuration
from tests.models.configurations import Config

_SEED = 7
_CONSTANT_NOISE = 0.2  # on what an architecture begins with as a constant, as gates, routers and biases
_GAIN, _EMBEDDING_GAIN = 2.5, 0.5  # what a model says next is to depend on more than its last token
_NOISES = (0.01, 0.03, 0.06, 0.1, 0.15, 0.25, 0.4, 0.7, 1.0)  # of a draft's weights, over those of the target
_AGREEMENT = 0.65  # share of tokens that a draft is to have right: some are accepted, some rejected
_GROUP, _BITS = 32, 4


def tiny(name: str, config: Config | None = None) -> Any:
    """Returns a model of this architecture in fp32, always the same. `config` replaces its tiny configuration."""
    config = config or configuration(name)
    model_class, args_class = model_classes(config)
    mx.random.seed(_SEED)
    model = model_class(args_class.from_dict(copy.deepcopy(config)))
    model.set_dtype(mx.float32)
    model.eval()
    embeddings = {path for path, module in model.named_modules() if isinstance(module, nn.Embedding)}
    weights = [
        (
            path,
            array
            if path.endswith(".signs")
            else _roughened(array, _EMBEDDING_GAIN if path.rpartition(".")[0] in embeddings else _GAIN),
        )
        for path, array in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten(weights))
    mx.eval(model.parameters())
    return model


def _roughened(array: mx.array, gain: float) -> mx.array:
    if array.dtype == mx.uint32:  # packed weights
        return mx.random.randint(0, 1 << 16, array.shape).astype(mx.uint32) * 0x9E3779B1
    if not mx.issubdtype(array.dtype, mx.floating) or array.size == 1:
        return array
    if bool((array == array.reshape(-1)[0]).all().item()):
        return array + _CONSTANT_NOISE * mx.random.normal(array.shape).astype(array.dtype)
    return array * gain if array.ndim > 1 else array


def draft_of(name: str, text: Sequence[int], prompt: int, config: Config | None = None) -> tuple[Any, float]:
    """Returns a draft for `tiny(name, config)`, and how often it agrees with the target. Its weights have so much noise
    that it agrees about as often as it should after the first `prompt` tokens of `text`, the target's own."""
    made: list[tuple[float, Any]] = []
    for noise in _NOISES:
        model = tiny(name, config)
        mx.random.seed(_SEED + 1)
        noisy = [(path, _noisy(array, noise)) for path, array in tree_flatten(model.parameters())]
        model.update(tree_unflatten(noisy))
        mx.eval(model.parameters())
        said = model(mx.array([text]), cache=make_prompt_cache(model))[0].argmax(axis=-1).tolist()
        right = [said[i - 1] == text[i] for i in range(prompt, len(text))]
        agreement = sum(right) / len(right)
        made.append((agreement, model))
        if agreement < _AGREEMENT:
            break
    agreement, model = min(made, key=lambda one: abs(one[0] - _AGREEMENT))
    return model, agreement


def _noisy(array: mx.array, noise: float) -> mx.array:
    if not mx.issubdtype(array.dtype, mx.floating):
        return array
    size = mx.sqrt(mx.mean(mx.square(array.astype(mx.float32))))
    return array + (noise * size * mx.random.normal(array.shape)).astype(array.dtype)


def quantised(name: str, config: Config | None = None) -> Any | None:
    """Returns the same model with 4-bit weights, as `mlx_lm.convert` makes them, or None if no layer can be
    quantised."""
    from mlx_lm.utils import quantize_model

    model = tiny(name, config)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints
        quantize_model(model, config or configuration(name), _GROUP, _BITS)
    mx.eval(model.parameters())
    return model if any(hasattr(module, "bits") for _, module in model.named_modules()) else None


def stored(folder: Path, model: Any, config: Config) -> Path:
    """Writes the model with this configuration to a folder, with a tokenizer that is only a dummy."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    weights = {path: array for path, array in tree_flatten(model.parameters()) if isinstance(array, mx.array)}
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


def logits(model: Any) -> mx.array:
    """Returns the logits after a text that is longer than every window."""
    return model(mx.array([[(7 * i) % 90 for i in range(24)]]))
