"""Folders whose weights are not finite or not all of the model's, and incomplete adapters."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from tests.folders.place import Asked, Case, Place, reweigh, rewrite
from tests.unit.models.checkpoints import INDEX, adapter, quantised, sharded

_DOWN = "model.layers.0.mlp.down_proj"
_NOT_FINITE = "some of its weights are not finite"
_SHARDS = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
_NOT_READ = f"files that {INDEX} does not name are not read"
_Arrays = dict[str, mx.array]


def _spoilt(folder: Path, name: str, value: float) -> Path:
    """Changes one number of an array."""

    def change(found: _Arrays) -> _Arrays:
        array = found[name]
        first = (mx.arange(array.size) == 0).reshape(array.shape)
        return found | {name: mx.where(first, mx.array(value).astype(array.dtype), array)}

    reweigh(folder / "model.safetensors", change)
    return folder


def _with(value: float) -> Callable[[Place], Asked]:
    return lambda place: Asked(_spoilt(place.copy(), f"{_DOWN}.weight", value), refused=_NOT_FINITE, unread=True)


def _draft(place: Place) -> Asked:
    spoilt = _spoilt(place.copy("draft"), f"{_DOWN}.weight", float("nan"))
    return Asked(place.copy(), draft=spoilt, refused=f"draft model: {spoilt}: {_NOT_FINITE}", unread=True)


def _scales(place: Place) -> Asked:
    """Builds a case of mxfp4, where a byte stands for each scale."""
    quantised("mxfp4", 4, 32)(place.like, place.path())
    return Asked(_spoilt(place.path(), f"{_DOWN}.scales", 255), refused=_NOT_FINITE, unread=True)


def _too_large(place: Place) -> Asked:
    """Builds a case of finite weights with which the trial at load computes values that are not finite."""
    folder = place.copy()
    file = folder / "model.safetensors"
    reweigh(file, lambda found: found | {"model.norm.weight": mx.full(found["model.norm.weight"].shape, 3e38)})
    return Asked(folder, refused="what it computes is not finite", unread=True)


_NUMBERS = {
    "NaN": _with(float("nan")),
    "infinity": _with(float("inf")),
    "NaN in a draft": _draft,
    "a scale that is no number": _scales,
    "logits that overflow": _too_large,
}


def _left(*names: str) -> Callable[[Place], Asked]:
    """Adds other files with all arrays, beside two shards and their index."""

    def case(place: Place) -> Asked:
        folder = place.path()
        sharded(place.like, folder)
        weights = mx.load(str(Path(place.like) / "model.safetensors"))
        zeros = {name: mx.zeros_like(one) for name, one in weights.items()}
        for name in names:
            mx.save_safetensors(str(folder / name), zeros, metadata={"format": "mlx"})
        return Asked(folder, clean=Path(place.like), said=_NOT_READ)

    return case


def _broken_left(place: Place) -> Asked:
    sharded(place.like, place.path())
    (place.path() / "model-00006-of-00045.safetensors").write_bytes(b"\0" * 100)
    return Asked(place.path(), clean=Path(place.like), said=_NOT_READ)


def _missing(place: Place) -> Asked:
    sharded(place.like, place.path())
    (place.path() / _SHARDS[1]).unlink()
    return Asked(place.path(), refused=f"missing: {_SHARDS[1]}, of 2 files that {INDEX} lists")


def _twice(place: Place) -> Asked:
    folder = place.copy()
    shutil.copy(folder / "model.safetensors", folder / "model.fp16.safetensors")
    return Asked(folder, refused="and only one of them can be the model's")


_FILES = {
    "a shard of another download": _left("model-00006-of-00045.safetensors"),
    "shards and a whole file": _left("model-00000-of-00045.safetensors", "model.safetensors"),
    "half of another download": _broken_left,
    "a shard that is missing": _missing,
    "two whole files": _twice,
}


def _without(words: str, kind: str, drop: Callable[[str], bool]) -> Callable[[Place], Asked]:
    def case(place: Place) -> Asked:
        made = adapter(place.like, place.path("adapter"), kind)
        reweigh(
            made / "adapters.safetensors",
            lambda found: {name: one for name, one in found.items() if not drop(name)},
        )
        return Asked(place.copy(), adapter=made, refused=words)

    return case


def _fewer_keys(place: Place) -> Asked:
    """Builds a case with arrays of seven matrices where the configuration names one."""
    made = adapter(place.like, place.path("adapter"))
    parameters = {"rank": 4, "scale": 10.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    rewrite(made / "adapter_config.json", lora_parameters=parameters)
    return Asked(place.copy(), adapter=made, refused="12 arrays do not fit the model")


_ADAPTERS = {
    "all lora_b missing": _without("lacks 7 of the 14 arrays", "lora", lambda name: name.endswith("lora_b")),
    "half of lora_b missing": _without(
        "lacks 4 of the 14 arrays", "lora", lambda name: name.endswith("lora_b") and "self_attn" in name
    ),
    "a matrix missing": _without("lacks 2 of the 14 arrays", "lora", lambda name: "q_proj" in name),
    "magnitudes of DoRA missing": _without("lacks 7 of the 21 arrays", "dora", lambda name: name.endswith(".m")),
    "matrices of a whole layer missing": _without("arrays that adapter_config", "full", lambda name: ".mlp." in name),
    "more than the configuration names": _fewer_keys,
}

WEIGHTS = (
    *(Case("not a number", name, make) for name, make in _NUMBERS.items()),
    *(Case("surplus files", name, make) for name, make in _FILES.items()),
    *(Case("adapter", name, make) for name, make in _ADAPTERS.items()),
)
