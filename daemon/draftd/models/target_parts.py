"""The parts of a target that a draft head shares with it, and the kinds of layers that a head is built of.

A head's layer is like one of its target's: attention like in one of the target's layers, and an MLP like in the same or
in another one. Which ones, the names and shapes of the head's arrays tell.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from draftd.errors import ModelLoadError
from draftd.models.check import ANOTHER_HEAD
from draftd.models.mlx_lm import CacheList, KVCache, make_prompt_cache

_ZERO_CENTRED = ("qwen3_5", "qwen3_5_moe", "qwen3_next")  # mlx-lm's modules
_MOST_TAPS = 16  # layers whose inputs a head takes
_MIXERS = {"M": True, "*": True, "E": False, "-": False}  # Nemotron-H's blocks: whether mlx-lm gives them a cache
_QUANTISED = (".scales", ".biases")  # the ends of the names of arrays that only a quantised layer has


class LayerKind(NamedTuple):
    """A kind of layer: like the target's layer with the number `number`, with the MLP of the layer `mlp`."""

    number: int
    mlp: int


class HalfLayer(nn.Module):  # type: ignore[misc]
    """A layer of LongCat-Flash's head: the first half of one of its target's layers, without the experts."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.self_attn, self.mlp = whole.self_attn[0], whole.mlps[0]
        self.input_layernorm, self.post_attention_layernorm = (
            whole.input_layernorm[0],
            whole.post_attention_layernorm[0],
        )

    def __call__(self, x: mx.array, mask: mx.array | None, cache: Any) -> mx.array:
        x = x + self.self_attn(self.input_layernorm(x), mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class TargetParts(NamedTuple):
    """The parts of a target that a head shares, or is built like. `layers_path`: the path of its layers in the model.
    `norm`: the final one. `lm_head`: the module whose weight makes logits; the embedding if they are tied."""

    target: Any
    args: Any
    layers_path: str
    layers: Sequence[Any]
    embedding: Any
    norm: Any
    lm_head: Any

    @classmethod
    def of(cls, target: Any) -> TargetParts | None:
        """Returns the parts; None if the target has none of the usual names for them."""
        text_model = getattr(target, "language_model", target)
        body_name = "backbone" if "backbone" in text_model else "model"
        path = f"{body_name}.layers" if text_model is target else f"language_model.{body_name}.layers"
        try:
            body = text_model[body_name]
            embedding = _first_of(body, "embed_tokens", "word_embeddings", "embeddings")
            norm, lm_head = _first_of(body, "norm", "norm_f"), text_model.get("lm_head", embedding)
            return cls(target, text_model.args, path, body["layers"], embedding, norm, lm_head)
        except (AttributeError, KeyError, StopIteration):
            return None

    @property
    def size(self) -> int:
        """Numbers of a hidden state."""
        return int(self.args.hidden_size)

    @property
    def zero_centred(self) -> bool:
        """Whether norms of the target's family are published as the w of 1 + w."""
        return type(self.args).__module__.rpartition(".")[2] in _ZERO_CENTRED

    @property
    def halved(self) -> bool:
        """Whether a head's layer is half of one of the target's."""
        return isinstance(self.layers[0].get("self_attn"), list)

    @property
    def kinds(self) -> list[LayerKind]:
        """The kinds that a head's layer may be of, those with full attention first."""
        rest, mlps = dict[Any, int](), dict[Any, int]()
        for number, layer in sorted(enumerate(self.layers), key=lambda numbered: self._has_window(numbered[0])):
            if any(part in layer for part in ("self_attn", "attention", "mixer")):
                arrays = shapes(HalfLayer(layer) if self.halved else layer).items()
                mlp = frozenset(array for array in arrays if array[0].startswith("mlp."))
                rest.setdefault(frozenset(arrays - mlp), number)
                if mlp:
                    mlps.setdefault(mlp, number)
        return [LayerKind(*numbers) for numbers in product(rest.values(), mlps.values())] or [
            LayerKind(number, number) for number in rest.values()
        ]

    def read_taps(self, name: str, value: Any, shift: int = 0) -> tuple[int, ...]:
        """Returns the layers that a configuration names, each number plus `shift`; the number of layers is the final
        norm. Raises ModelLoadError unless they are two or more, and the target has them."""
        most = len(self.layers) - shift
        numbers = value if isinstance(value, list) else []
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if not 2 <= len(numbers) <= _MOST_TAPS or not whole or not all(0 <= number <= most for number in numbers):
            what = f"its {name} is {value!r:.100}, and allowed are two to {_MOST_TAPS} layers from 0 to {most}"
            raise ModelLoadError(what, ANOTHER_HEAD)
        return tuple(number + shift for number in numbers)

    def place(self, tap: int) -> Any:
        """Returns the module whose input is a tap: a layer, or the final norm for the number of layers."""
        return self.norm if tap == len(self.layers) else self.layers[tap]

    def _has_window(self, number: int) -> bool:
        return not isinstance(_first_cache(self.new_caches([LayerKind(number, number)])[0]), KVCache | None)

    def new_layer(self, kind: LayerKind) -> Any:
        """Returns a new layer of this kind, with random weights."""
        layer = self.new_layer_at(kind.number)
        if kind.mlp != kind.number:
            layer.mlp = self.new_layer_at(kind.mlp).mlp
        return layer

    def new_layer_at(self, number: int) -> Any:
        """Returns a new layer as the target would have it with this number, which may be one after its last."""
        layer = self.layers[min(number, len(self.layers) - 1)]
        kind = getattr(sys.modules[type(layer).__module__], type(layer).__name__)  # without what draftd changed in it
        if self.halved:
            return HalfLayer(kind(self.args))
        parameters = inspect.signature(kind.__init__).parameters
        if "block_type" in parameters:
            return kind(self.args, layer.block_type)
        return kind(self.args, number) if "layer_idx" in parameters else kind(self.args)

    def new_caches(self, kinds: Sequence[LayerKind]) -> list[Any]:
        """Returns a new cache of mlx-lm for a layer of each kind; None for a layer without."""
        caches = iter(make_prompt_cache(self.target))
        by_layer = [next(caches) if _MIXERS[getattr(layer, "block_type", "*")] else None for layer in self.layers]
        own = [by_layer[kind.number] for kind in kinds]
        return [_first_cache(cache) for cache in own] if self.halved else own


def _first_of(body: nn.Module, *names: str) -> Any:
    return next(body[name] for name in names if name in body)


def _first_cache(cache: Any) -> Any:
    return cache[0] if isinstance(cache, CacheList) else cache


def shapes(layer: nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a layer's arrays by name, as `named_shapes`."""
    return named_shapes(dict(tree_flatten(layer.parameters())))


def named_shapes(arrays: Mapping[str, mx.array]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of arrays by name, without what quantisation adds or changes: scales and biases, and a
    matrix's last dimension."""
    return {name: array.shape[:-1] for name, array in arrays.items() if not name.endswith(_QUANTISED)}
