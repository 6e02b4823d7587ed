"""Opens a draft head over its target: the arrays of the published layouts, put into the parts of its module.

Experts are stored one by one (`experts.3.up_proj.weight`), fused (`experts.gate_up_proj`), or stacked as in mlx-lm
(`switch_mlp.up_proj.weight`). A layer is quantised if its scales are stored; shapes tell how.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from draftd.errors import ModelLoadError, in_one_line
from draftd.models.chained import ChainedHeads
from draftd.models.check import ANOTHER_HEAD, FETCH
from draftd.models.configuration import bare_model, normalise
from draftd.models.dflash import DFlashHead
from draftd.models.eagle import EagleHead
from draftd.models.fed_head import norms
from draftd.models.head_families import DFLASH, EAGLE, HeadFiles
from draftd.models.layout import lay_out
from draftd.models.mlx_lm import infer_quant_config
from draftd.models.mtp import MTPHead
from draftd.models.target_parts import LayerKind, TargetParts, named_shapes, shapes

_EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(\w+\.\w+)")
_FUSED = re.compile(r"(.*)\.experts\.(gate_up_proj|down_proj)(?:\.(\w+))?")
_OWN_LAYER = re.compile(r"layers\.(\d+)\.")
_IN_CHAIN = (
    *((name, name) for name in ("enorm.", "hnorm.", "eh_proj.")),
    ("transformer.shared_head.norm.", "norm."),
    ("transformer.shared_head.output.", "lm_head."),
)
_MOST_CHAINED = 8  # heads
_LEAST_MEAN = 0.6  # of all norms; published heads have 0.2 if it is w, and 1.2 if it is 1 + w

Arrays = dict[str, mx.array]
Head = MTPHead | ChainedHeads | EagleHead | DFlashHead


def open_head(files: HeadFiles, target: Any) -> Head:
    """Returns the head over mlx-lm's model `target`, without its weights read yet. Raises ModelLoadError if it is not
    served, does not fit the target, or its files are unreadable.

    As for the target, weights become fp32 on a CPU, in the layout that BLAS multiplies fastest."""
    if files.refusal:
        raise ModelLoadError(files.refusal, ANOTHER_HEAD)
    try:
        head = fit(files, target)
    except ModelLoadError:
        raise
    except (Exception, SystemExit) as error:  # what mlx-lm raises for a configuration, or a layer, of another kind
        what = f"it cannot be opened over this target: {in_one_line(error)}"
        raise ModelLoadError(what, ANOTHER_HEAD) from error
    if mx.default_device() == mx.Device(mx.cpu):
        head.set_dtype(mx.float32)
    if head.zero_centred:
        raw = _norms_are_raw(head) if files.raw is None else files.raw
        head.take_form(replace(head.form, added_to_norms=int(raw)))
    if mx.default_device() == mx.Device(mx.cpu):
        lay_out(head)
    head.eval()
    return head


def misfit(files: HeadFiles, config: Mapping[str, Any]) -> str:
    """Returns why the head does not fit a target with this configuration; empty if it does. Tries it on the target
    without weights, and reads none of the head's, only its token ids."""
    try:
        fit(files, bare_model(normalise(config)))
    except ModelLoadError as error:
        return error.what
    except (Exception, SystemExit) as error:  # a configuration that mlx-lm refuses: the target's own check reports it
        return f"it cannot be tried: {in_one_line(error)}"
    return ""


def fit(files: HeadFiles, target: Any) -> Head:
    """Returns a head over the target with its stored arrays. Raises ModelLoadError, which names the first array that is
    missing, unknown or of a wrong shape."""
    if (parts := TargetParts.of(target)) is None:
        module = type(target).__module__.rpartition(".")[2]
        what = f"the target ({module}) has no embedding, layers and final norm of the usual names, which a head needs"
        raise ModelLoadError(what, ANOTHER_HEAD)
    arrays = _read_arrays(files)
    vocabulary = parts.embedding.weight.shape[0]
    ids = _target_ids(arrays.pop("d2t"), vocabulary) if "d2t" in arrays else None
    if files.family.kind == EAGLE.kind:
        head: Head = EagleHead(parts, _read_config(files), ids, arrays)
    elif files.family.kind == DFLASH.kind:
        head = DFlashHead(parts, _read_config(files), ids, arrays)
    elif files.family.chained:
        arrays, count = _chain(arrays)
        head = ChainedHeads(parts, count)
        head.form = files.family.form
    else:
        kinds, arrays = _convert(arrays, parts)
        if len(kinds) != files.family.layers:
            what = f"it has {len(kinds)} layers, and draftd serves heads of this family with {files.family.layers}"
            raise ModelLoadError(what, ANOTHER_HEAD)
        if files.family.target_norm:
            arrays["norm.weight"] = parts.norm.weight
        head = MTPHead(parts, ids, arrays, kinds)
        head.form = files.family.form
    _quantise(head, arrays)
    expected: Arrays = dict(tree_flatten(head.parameters()))
    if "lm_head" in head and "lm_head.weight" not in arrays:
        expected = {name: array for name, array in expected.items() if not name.startswith("lm_head.")}
    if problem := _difference(expected, arrays):
        raise ModelLoadError(problem, ANOTHER_HEAD)
    head.load_weights(list(arrays.items()), strict=False)
    return head


def _read_config(files: HeadFiles) -> dict[str, Any]:
    """Returns the configuration beside a head's weights. Raises ModelLoadError."""
    path = files.files[0].parent / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"the draft head's config.json cannot be read: {in_one_line(error)}", FETCH) from error
    if not isinstance(config, dict):
        raise ModelLoadError("the draft head's config.json is no object", FETCH)
    return config


def _read_arrays(files: HeadFiles) -> Arrays:
    """Returns the stored arrays by standard name; MLX reads them when they are first evaluated. Raises
    ModelLoadError."""
    loaded = dict[Any, Arrays]()
    try:
        for file in files.files:
            loaded[file] = mx.load(str(file))
        return {name: loaded[file][stored] for name, (file, stored) in files.names.items()}
    except Exception as error:
        raise ModelLoadError(f"the draft head cannot be read: {in_one_line(error)}", FETCH) from error


def _target_ids(d2t: mx.array, vocabulary: int) -> mx.array:
    """Returns the target's token id of each token d of the head: d + d2t[d]. Raises ModelLoadError for an id that the
    target does not have, or has twice."""
    if d2t.ndim != 1 or not mx.issubdtype(d2t.dtype, mx.integer):
        raise ModelLoadError("d2t is no list of integers", FETCH)
    try:
        ids = [d + offset for d, offset in enumerate(d2t.tolist())]
    except Exception as error:
        raise ModelLoadError(f"d2t cannot be read: {in_one_line(error)}", FETCH) from error
    if not ids or not 0 <= min(ids) <= max(ids) < vocabulary or len(set(ids)) < len(ids):
        raise ModelLoadError(f"d2t leads to ids that are not among the target's {vocabulary:,}", ANOTHER_HEAD)
    return mx.array(ids)


def _convert(arrays: Arrays, parts: TargetParts) -> tuple[list[LayerKind], Arrays]:
    """Converts the arrays of a head's layers as mlx-lm converts those of the target's layers. Returns the kind of each
    layer, whose arrays have the same names and shapes, or the most similar ones, and all converted arrays."""
    by_layer, converted = dict[int, Arrays](), dict[str, mx.array]()
    for name, array in arrays.items():
        if match := _OWN_LAYER.match(name):
            by_layer.setdefault(int(match[1]), {})[name[match.end() :]] = array
        else:
            converted[name] = array
    kinds = list[LayerKind]()
    if not parts.kinds:
        raise ModelLoadError("the target has no layer with attention that the head's could be like", ANOTHER_HEAD)
    for number, stored in sorted((by_layer or {0: {}}).items()):
        kind, layer = min(((kind, _as_in(parts, kind, stored)) for kind in parts.kinds), key=partial(_misfits, parts))
        converted |= {f"layers.{number}.{name}": array for name, array in layer.items()}
        kinds.append(kind)
    return kinds, converted


def _chain(arrays: Arrays) -> tuple[Arrays, int]:
    """Returns the arrays of chained heads by their names in `ChainedHeads`, and the number of heads. Raises
    ModelLoadError if these are too few or too many."""
    numbers = sorted({int(match[1]) for name in arrays if (match := _OWN_LAYER.match(name))})
    if not 2 <= len(numbers) <= _MOST_CHAINED:
        what = f"it has {len(numbers)} heads, and draftd serves 2 to {_MOST_CHAINED} in a chain"
        raise ModelLoadError(what, ANOTHER_HEAD)
    chained = dict[str, mx.array]()
    for name, array in arrays.items():
        match = _OWN_LAYER.match(name)
        own = name if match is None else name[match.end() :]
        if match is not None:
            place = next((new + own[len(old) :] for old, new in _IN_CHAIN if own.startswith(old)), f"layer.{own}")
            own = f"heads.{numbers.index(int(match[1]))}.{place}"
        chained[own] = array
    return chained, len(numbers)


def _as_in(parts: TargetParts, kind: LayerKind, arrays: Arrays) -> Arrays:
    """Returns a layer's arrays as mlx-lm's `sanitize` leaves those of the target's layer of this kind."""
    if parts.zero_centred or not hasattr(parts.target, "sanitize"):  # it would shift some of the norms
        return _stack_experts(arrays)
    layer = f"{parts.layers_path}.{kind.mlp}."
    named = {layer + name: array for name, array in arrays.items()}
    if parts.halved:  # there are two of each
        named = {name.replace(".self_attn.", ".self_attn.0."): array for name, array in named.items()}
    sanitized = type(parts.target).sanitize(parts.target, named)
    if parts.halved:
        sanitized = {name.replace(".self_attn.0.", ".self_attn."): array for name, array in sanitized.items()}
    return _stack_experts({name.removeprefix(layer): array for name, array in sanitized.items()})


def _misfits(parts: TargetParts, converted: tuple[LayerKind, Arrays]) -> int:
    """Returns how many arrays of a layer differ from those of its kind in name or shape."""
    kind, arrays = converted
    return len(named_shapes(arrays).items() ^ shapes(parts.new_layer(kind)).items())


def _stack_experts(arrays: Arrays) -> Arrays:
    """Returns arrays with experts stacked, as mlx-lm has them. Raises ModelLoadError for an expert that is missing or
    of another shape than the first."""
    result, experts = dict[str, mx.array](), dict[str, dict[int, mx.array]]()
    for name, array in arrays.items():
        if (match := _EXPERT.fullmatch(name)) is not None:
            experts.setdefault(f"{match[1]}.switch_mlp.{match[3]}", {})[int(match[2])] = array
        elif (match := _FUSED.fullmatch(name)) is None:
            result[name] = array
        else:
            prefix, leaf = f"{match[1]}.switch_mlp", match[3] or "weight"
            if match[2] == "down_proj":
                result[f"{prefix}.down_proj.{leaf}"] = array
            elif array.ndim != 3 or array.shape[1] % 2:
                raise ModelLoadError(f"{name} has the shape {array.shape}", FETCH)
            else:
                gate, up = mx.split(array, 2, axis=1)
                result |= {f"{prefix}.gate_proj.{leaf}": gate, f"{prefix}.up_proj.{leaf}": up}
    for name, numbered in experts.items():
        lacking = set(range(max(numbered) + 1)) - numbered.keys()
        if lacking or len({array.shape for array in numbered.values()}) > 1:
            which = f"expert {min(lacking)} is missing" if lacking else "their shapes differ"
            raise ModelLoadError(f"{name}: {which}", FETCH)
        result[name] = mx.stack([numbered[number] for number in sorted(numbered)])
    return result


def _quantise(head: Head, arrays: Arrays) -> None:
    """Quantises the layers whose scales are stored. Raises ModelLoadError for scales that do not fit their weights."""
    current = ""

    def options(path: str, module: Any) -> Any:
        nonlocal current
        current = path
        stored = f"{path}.scales" in arrays and hasattr(module, "to_quantized")
        return infer_quant_config(path, module, arrays) if stored else False

    try:
        nn.quantize(head, class_predicate=options)
    except Exception as error:
        what = f"{current} is quantised in a way that MLX does not have: {in_one_line(error)}"
        raise ModelLoadError(what, ANOTHER_HEAD) from error


def _difference(expected: Arrays, arrays: Arrays) -> str:
    """Returns how the stored arrays differ from those that the head needs; empty if they do not."""
    if missing := sorted(expected.keys() - arrays.keys()):
        return f"it lacks {missing[0]}{_and_more(missing)}"
    if unknown := sorted(arrays.keys() - expected.keys()):
        return f"it has {unknown[0]}{_and_more(unknown)}, which draftd does not know"
    for name, array in arrays.items():
        if array.shape != (shape := expected[name].shape):
            return f"its {name} has the shape {array.shape}, and the target needs {shape}"
        if mx.issubdtype(array.dtype, mx.floating) != mx.issubdtype(expected[name].dtype, mx.floating):
            return f"its {name} is {str(array.dtype).removeprefix('mlx.core.')}, which its layer does not take"
    return ""


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _norms_are_raw(head: Head) -> bool:
    """Guesses by their mean whether norms hold w of 1 + w, where no name or metadata tells. Reads the norms. Raises
    ModelLoadError if they are unreadable."""
    try:
        means = sorted(float(norm.weight.astype(mx.float32).mean().item()) for norm in norms(head))
    except Exception as error:
        raise ModelLoadError(f"the draft head cannot be read: {in_one_line(error)}", FETCH) from error
    return means[len(means) // 2] < _LEAST_MEAN
