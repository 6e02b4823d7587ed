"""Adapters: the results of fine-tuning a model, in folders of their own, as made by `mlx_lm.lora`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from draftd.errors import ModelLoadError
from draftd.models.check import check_no_pointer, check_weights, read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"
_ANOTHER = "give the folder that `mlx_lm.lora` made (--adapter-path)"
_FETCH = "fetch the adapter again"
_KINDS = ("lora", "dora", "full")
_NUMBERS = ("rank", "scale", "dropout")
_LEAVES = ("lora_a", "lora_b", "m")  # the arrays of an adapted layer; only DoRA has the last


def check_adapter(folder: Path) -> None:
    """Checks the names, sizes and headers of an adapter's files. Raises ModelLoadError for the first fault, OSError for
    an unreadable file. Whether it fits the model shows only when it is applied."""
    if not folder.is_dir():
        raise ModelLoadError("no such folder", _ANOTHER)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            peft = next(folder.glob("adapter_model.*"), None)
            also = f"; {peft.name} is PEFT's, which mlx-lm does not read" if peft else ""
            raise ModelLoadError(f"no {name} in this folder{also}", _ANOTHER)
        check_no_pointer(folder / name)
    _check_config(read_json(folder / CONFIG))
    names = check_weights(folder / WEIGHTS)
    alone = sorted(name for name in names if name.endswith(".lora_b") and f"{name[:-1]}a" not in names)
    if alone or not names:
        what = f"has {alone[0]} without its lora_a" if alone else "is empty"
        raise ModelLoadError(f"{WEIGHTS} {what}", _FETCH)


def apply_adapter(model: Any, folder: Path) -> None:
    """Applies the adapter to mlx-lm's model, without reading weights yet. Raises ModelLoadError if it belongs to
    another model, or lacks an array that its configuration requires: mlx-lm would keep the model's own array
    instead."""
    from draftd.models.mlx_lm import load_adapters

    try:
        load_adapters(model, str(folder))
    except ValueError as error:
        first, *arrays = str(error).splitlines()
        what = f"{len(arrays)} arrays do not fit the model, such as {arrays[0].strip()}" if arrays else first
        cure = f"give an adapter that was made for this model, with its own {CONFIG}"
        raise ModelLoadError(f"{WEIGHTS}: {what}", cure) from None
    expected = _trained_arrays(model, read_json(folder / CONFIG))
    missing = sorted(expected - check_weights(folder / WEIGHTS))
    if missing:
        what = f"{WEIGHTS} lacks {len(missing)} of the {len(expected)} arrays that {CONFIG} lists"
        raise ModelLoadError(f"{what}, such as {missing[0]}", f"fetch the adapter again, with its own {CONFIG}")


def _trained_arrays(model: Any, config: Mapping[str, Any]) -> set[str]:
    """Returns the arrays that `mlx_lm.lora` trains and saves with this configuration."""
    if config.get("fine_tune_type") != "full":
        modules = [(path, module) for path, module in model.named_modules() if _LEAVES[0] in module]
        return {f"{path}.{leaf}" for path, module in modules for leaf in _LEAVES if leaf in module}
    from mlx.utils import tree_flatten

    model.freeze()
    for layer in model.layers[-max(config["num_layers"], 0) :]:
        layer.unfreeze()
    names = {name for name, _ in tree_flatten(model.trainable_parameters())}
    model.unfreeze()
    quantised = [
        path for path, module in model.named_modules() if hasattr(module, "bits")
    ]  # quantized layers cannot be trained
    return names - {f"{path}.{name}" for path in quantised for name in ("weight", "scales", "biases")}


def _check_config(config: Any) -> None:
    """Checks the values that mlx-lm reads."""

    def refuse(what: str, cure: str = _ANOTHER) -> NoReturn:
        raise ModelLoadError(f"{CONFIG} {what}", cure)

    if not isinstance(config, Mapping):
        refuse("is no table", _FETCH)
    if "peft_type" in config:
        refuse("is PEFT's, whose adapters mlx-lm does not read", "merge it into its model, and convert that")
    kind = config.get("fine_tune_type", "lora")
    if kind not in _KINDS:
        refuse(f"has fine_tune_type {kind!r}, not one of {', '.join(_KINDS)}")
    if not isinstance(config.get("num_layers"), int):
        refuse("has no num_layers")
    if kind == "full":
        return
    parameters = config.get("lora_parameters")
    if not isinstance(parameters, Mapping):
        refuse("has no lora_parameters")
    for name in _NUMBERS:
        if not isinstance(parameters.get(name), (int, float)):
            refuse(f"has no number lora_parameters.{name}")
    if parameters["rank"] < 1:
        refuse(f"has lora_parameters.rank {parameters['rank']}, which must be at least 1")
