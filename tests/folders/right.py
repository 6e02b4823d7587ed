"""Folders without a fault. Each has one peculiarity of real folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from tests.folders.place import Asked, Case, Place, reweigh, rewrite
from tests.models.configurations import FULL, SLIDING
from tests.unit.models.checkpoints import INDEX, adapter, quantised, sharded, untied, widened

_CHAT = "<|bos|><|user|>Hi<|end|><|assistant|>"  # of the embedded pair's template


def _made(make: Callable[[str, Path], object]) -> Callable[[Place], Asked]:
    def case(place: Place) -> Asked:
        make(place.like, place.path())
        return Asked(place.path())

    return case


def _adapted(kind: str) -> Callable[[Place], Asked]:
    return lambda place: Asked(place.copy(), adapter=adapter(place.like, place.path("adapter"), kind))


def _random(architecture: str, **read: Any) -> Callable[[Place], Asked]:
    return lambda place: place.random(architecture, read)


def _with_draft(place: Place) -> Asked:
    return Asked(place.copy(), draft=place.copy("draft"), chat=_CHAT, ends=frozenset({1}), context=1024)


def _links(place: Place) -> Asked:
    place.copy("snapshot")
    place.path().mkdir()
    for file in place.path("snapshot").iterdir():
        (place.path() / file.name).symlink_to(file)
    return Asked(place.path())


def _index_of_others(place: Place) -> Asked:
    """Writes the index of a converter, which names files that are not there."""
    folder = place.copy()
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))
    return Asked(folder)


def _sidecar(place: Place) -> Asked:
    """Adds a head that predicts further tokens, beside the files of the index."""
    sharded(place.like, place.path())
    mx.save_safetensors(str(place.path() / "model-mtp.safetensors"), {"mtp.fc.weight": mx.zeros((4, 4))})
    rewrite(place.path() / "config.json", tie_word_embeddings=True)
    return Asked(place.path())


def _halves(place: Place) -> Asked:
    folder = place.copy(torch_dtype="float16")
    reweigh(folder / "model.safetensors", lambda found: {name: one.astype(mx.float16) for name, one in found.items()})
    return Asked(folder)


def _several_ends(place: Place) -> Asked:
    folder = place.copy()
    rewrite(folder / "generation_config.json", eos_token_id=[1, 5])
    return Asked(folder, ends=frozenset({1, 5}))


def _template_beside(place: Place) -> Asked:
    folder = place.copy()
    rewrite(folder / "tokenizer_config.json", chat_template=None)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<|user|>{{ m.content }}!{% endfor %}")
    return Asked(folder, chat="<|user|>Hi!")


def _padded(place: Place) -> Asked:
    return Asked(widened(place.like, place.path(), 64, value=-5.0))


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

RIGHT = tuple(
    Case("right", name, make)
    for name, make in {
        "a pair, with its chat template": _with_draft,
        "shards and their index": _made(sharded),
        "a head of its own": _made(untied),
        "4 bits": _made(quantised("affine", 4, 64)),
        "mixed bits": _made(quantised("affine", 4, 64, mixed=True)),
        "mxfp4": _made(quantised("mxfp4", 4, 32)),
        "more embeddings than tokens": _padded,
        "links to a download": _links,
        "the index of the originals": _index_of_others,
        "16 bits": _halves,
        "several end tokens": _several_ends,
        "chat_template.jinja": _template_beside,
        "an adapter, LoRA": _adapted("lora"),
        "an adapter, DoRA": _adapted("dora"),
        "an adapter, whole layers": _adapted("full"),
        "windows": _random("gemma3_text", rope_theta=500.0, rope_local_base_freq=50.0),
        "latent attention, yarn": _random("deepseek_v3", rope_theta=500.0, rope_scaling=_YARN | {"type": "yarn"}),
        "a state": _random("mamba"),
        "experts": _random("qwen3_moe", rope_theta=500.0),
        "a part for text": _random("qwen2_vl", rope_theta=500.0),
        "types of layers": _random("llama", rope_theta=500.0, layer_types=[FULL, SLIDING, FULL], sliding_window=8),
    }.items()
)
