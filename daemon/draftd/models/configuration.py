"""config.json in the form that mlx-lm reads, whichever major version of transformers wrote it.

Version 4 writes `rope_theta`, `rope_scaling` and `partial_rotary_factor`. Version 5 writes `rope_parameters`: one table
for all layers, or one for each type of layer. Each architecture of mlx-lm reads one of the two forms and ignores the
other. `normalise` adds the missing form. `check_read` refuses a value that still has no effect.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from draftd.errors import ModelLoadError, in_one_line
from draftd.models.names import (
    FULL,
    PERIODS,
    SLIDING,
    Architecture,
    architecture_of,
    head_size,
    is_length,
    modules_of,
    period_of,
    reads_period,
    rename,
)
from draftd.models.rope import (
    EXTENDED,
    LOCAL_THETA,
    ORIGINAL,
    PARTIAL,
    THETA,
    Rope,
    is_neutral,
    is_number,
    main_rope,
    read_ropes,
)

_PARTS = ("text_config", "llm_config", "language_config")  # where models with several parts keep the text model

_PER_LAYER = {"gemma4_text", "laguna", "mellum", "spark2_5"}  # they read one table for each type of layer
_NEEDS_SCALING = {"deepseek_v2": "yarn", "minicpm3": "longrope"}  # they require a table; a factor of 1 has no effect

_ACTIVATIONS = ("hidden_activation", "hidden_act", "activation_function")
# Parts of activations' names, in the source of an architecture and in configurations.
_FAMILIES = ((r"silu|swiglu", r"silu|swish"), (r"gelu|geglu", r"gelu"), (r"relu", r"relu"))
_READS_ACTIVATION = re.compile(r"hidden_act|activation_function|(args|config|self)\.\w*activation|activation\w*:")
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (None, 0),
    "final_logit_softcapping": (None, 0),
    "embedding_multiplier": (None, 1),
    "residual_multiplier": (None, 1),
    "logits_scaling": (None, 1),
    "logit_scale": (None, 1),
    "clip_qkv": (None,),
}

_LENGTHS = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "max_seq_length",
    "seq_length", "model_max_length", "max_context_length", "context_length", "block_size",
)  # fmt: skip


@dataclass(slots=True)
class Computation:
    """The constants and frequencies that a model computes with besides its weights, by module."""

    facts: dict[tuple[str, str], object] = field(default_factory=dict)
    rotates: bool = False
    bases: set[float] = field(default_factory=set)


def normalise(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy with the rotary embedding in the forms of both transformers 4 and 5, also in the text model's part
    (`text_config` and the like). A part that is null becomes a copy of the fields around it."""
    own = copy.deepcopy(dict(config))
    for name in ("quantization", "quantization_config"):
        if name in own and not own[name]:
            own[name] = None
    parts = [part for _, part in _text_parts(own)]
    for part in [own, *parts]:
        architecture = architecture_of(part, own)
        if part is own and parts and "vocab_size" in architecture.arguments and "vocab_size" in parts[0]:
            own.setdefault("vocab_size", parts[0]["vocab_size"])
        if ropes := read_ropes(part):
            _write(part, ropes, architecture)
        if part is not own or not parts:
            rename(part, own, architecture)
    absent = [name for name in _PARTS if name in own and own[name] is None]
    if absent:  # mlx-lm reads it all the same: its contents are one level up
        flat = {name: value for name, value in own.items() if name not in _PARTS}
        own |= {name: copy.deepcopy(flat) for name in absent}
    return own


def check_read(config: Mapping[str, Any]) -> None:
    """Raises ModelLoadError for a key that affects the numbers, has a value that is not neutral, and is not read by the
    architecture. It makes the model without weights, once as configured and once for each changed value: if both
    compute the same, the value is not read."""
    parts = [(name, dict(part)) for name, part in _text_parts(config)] or [("", dict(config))]
    for name, part in parts:
        prefix = f"{name}." if name else ""
        _check_rope(config, name, part, prefix)
        _check_layers(config, part, prefix)
        _check_constants(config, part, prefix)


def declared_context(config: Mapping[str, Any]) -> int | None:
    """Returns the tokens that the configuration declares, including the extension by its rotary embedding; None if it
    declares nothing."""
    for part in (config, *(part for _, part in _text_parts(config))):
        if declared := next((value for name in _LENGTHS if is_length(value := part.get(name))), None):
            return max(declared, _extended_context(part, declared))
    return None


def _extended_context(part: Mapping[str, Any], declared: int) -> int:
    ropes = read_ropes(part)
    rope = main_rope(ropes) if ropes else None
    if rope is None or rope.scaling is None or rope.scaling["type"] not in EXTENDED:
        return declared
    if str(part.get("model_type", "")).startswith("gemma3"):  # it declares the length including scaling
        return declared
    factor, original = rope.scaling.get("factor"), rope.scaling.get(ORIGINAL)
    if not is_number(factor) or not math.isfinite(factor):
        return declared
    return int((original if is_length(original) else declared) * factor)


def _text_parts(config: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, part) for name in _PARTS if isinstance(part := config.get(name), dict)]


def _write(part: dict[str, Any], ropes: Mapping[str, Rope], architecture: Architecture) -> None:
    """Adds the rotary embedding's keys of both transformers 4 and 5 to `part`, the whole configuration or the text
    model's. A table for each type of layer stays unchanged if the architecture reads such tables."""
    main, nested, reads_tables = main_rope(ropes), "" not in ropes, "rope_parameters" in architecture.arguments
    theta, parameters = main.theta, part.get("rope_parameters")
    if architecture.modules & _PER_LAYER:
        types = part.get("layer_types")
        if isinstance(parameters, Mapping) and not nested:
            own = {"rope_theta": theta} | dict(parameters) if theta is not None else dict(parameters)
            part["rope_parameters"] = {
                layer_type: dict(own) for layer_type in (types if isinstance(types, list) else (FULL, SLIDING))
            }
        return
    scaling = dict(main.scaling) if main.scaling else None
    if reads_tables and (nested or not isinstance(parameters, Mapping)):
        own = {"rope_type": "default"} | (scaling or {})
        own |= {"rope_theta": theta} if theta is not None else {}
        own |= {"partial_rotary_factor": main.partial} if main.partial is not None else {}
        if isinstance(parameters, Mapping) or theta is not None:
            part["rope_parameters"] = own
    elif reads_tables and scaling and isinstance(parameters, Mapping):
        part["rope_parameters"] = scaling | dict(parameters)
    if theta is not None:
        part.update(dict.fromkeys(THETA, theta))
        if isinstance(inner := part.get("attn_config"), dict):
            inner["rope_theta"] = theta
    if main.partial is not None:
        part.update(dict.fromkeys(PARTIAL, main.partial))
        if "rotary_dim" in architecture.arguments and part.get("rotary_dim") is None and (size := head_size(part)):
            part["rotary_dim"] = int(size * main.partial)
    if (sliding := ropes.get(SLIDING)) is not None and sliding.theta is not None:
        part.update(dict.fromkeys(LOCAL_THETA, sliding.theta))
    if scaling is None and (needing := architecture.modules & _NEEDS_SCALING.keys()):
        length = part.get("max_position_embeddings")
        scaling = {"type": _NEEDS_SCALING[needing.pop()], "factor": 1.0} | (
            {ORIGINAL: length} if is_length(length) else {}
        )
    if "phi3" in architecture.modules and scaling:
        scaling.setdefault("long_factor", None)  # the architecture requires the key for every type
    part["rope_scaling"] = scaling
    if scaling and ORIGINAL in scaling:
        part[ORIGINAL] = scaling[ORIGINAL]


def _check_rope(config: Mapping[str, Any], name: str, part: Mapping[str, Any], prefix: str) -> None:
    """Checks the rotary embedding. `name`: of the part in `config`; empty for the whole."""
    ropes = read_ropes(part)
    per_layer = bool(architecture_of(part, config).modules & _PER_LAYER)
    if not ropes or (
        per_layer and not isinstance(part.get("rope_parameters"), Mapping)
    ):  # keys beside them have no effect
        return

    def compute(**changes: Any) -> Computation:
        own = dict(part) | changes
        return computation(normalise(dict(config) | {name: own} if name else own))

    try:
        configured = compute()
    except Exception as error:
        if is_neutral(scaling := main_rope(ropes).scaling):
            return  # mlx-lm says what is wrong when it opens the model
        try:
            compute(**_without_scaling(part, next(layers for layers in ropes if layers != SLIDING)))
        except Exception:
            return
        raise _refusal(_scaling_words(prefix, scaling), config, in_one_line(error)) from None
    if not configured.rotates:
        return
    types = part.get("layer_types")
    for layers, rope in ropes.items():
        if layers and isinstance(types, list) and layers not in types:
            continue  # there are no such layers
        of = f" of {layers}" if layers else ""
        certain = layers != FULL or isinstance(types, list)  # otherwise there may be no such layers
        if certain and rope.theta is not None and configured.bases and rope.theta not in configured.bases:
            changed = compute(**_with_theta(part, layers))
            if changed.facts == configured.facts:
                raise _refusal(f"{prefix}rope_theta {rope.theta:g}{of}", config)
        if not is_neutral(rope.scaling):
            try:
                changed = compute(**_without_scaling(part, layers))
            except Exception:
                continue  # the architecture requires it, so it reads it
            if changed.facts == configured.facts:
                raise _refusal(_scaling_words(prefix, rope.scaling, of), config)


def _scaling_words(prefix: str, scaling: Mapping[str, Any] | None, of: str = "") -> str:
    scaling = scaling or {}
    factor = f" × {factor:g}" if is_number(factor := scaling.get("factor")) else ""
    return f"{prefix}rope_scaling {scaling.get('type')}{factor}{of}"


def _with_theta(part: Mapping[str, Any], layers: str) -> dict[str, Any]:
    """Returns the part's tables with another theta for these layers, wherever it is written."""
    changes = {}
    names = LOCAL_THETA if layers == SLIDING else THETA
    for name in names:
        if is_number(part.get(name)):
            changes[name] = 3 * part[name]
    if isinstance(part.get("rope_scaling"), Mapping) and layers != SLIDING:
        changes["rope_scaling"] = _triple_factors(part["rope_scaling"])
    if isinstance(part.get("rope_parameters"), Mapping):
        changes["rope_parameters"] = _in_table(part, layers, _triple_factors)
    return changes


def _triple_factors(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: 3 * value if name in THETA and is_number(value) else value for name, value in table.items()}


def _without_scaling(part: Mapping[str, Any], layers: str) -> dict[str, Any]:
    changes: dict[str, Any] = {} if layers == SLIDING else {"rope_scaling": None}
    if isinstance(part.get("rope_parameters"), Mapping):
        changes["rope_parameters"] = _in_table(part, layers, _plain)
    return changes


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: table[name] for name in (*THETA, *PARTIAL) if name in table} | {"rope_type": "default"}


def _in_table(part: Mapping[str, Any], layers: str, change: Any) -> dict[str, Any]:
    parameters = part["rope_parameters"]
    if isinstance(parameters.get(layers), Mapping):
        return dict(parameters) | {layers: change(parameters[layers])}
    return dict(parameters) if layers == SLIDING else dict(change(parameters))


def bare_model(config: dict[str, Any]) -> Any:
    """Returns mlx-lm's model without weights: its random values are never computed."""
    from draftd.models.mlx_lm import model_classes

    with contextlib.redirect_stdout(io.StringIO()):
        model_class, arguments = model_classes(config)
        return model_class(arguments.from_dict(config))


def computation(config: dict[str, Any]) -> Computation:
    """Returns the constants of the model without weights."""
    import mlx.core as mx
    from mlx import nn

    model, result = bare_model(config), Computation()
    copies = {*THETA, *LOCAL_THETA, *PARTIAL}
    for path, module in model.named_modules():
        kind = type(module).__name__.lower()
        result.rotates |= "rope" in kind or "rotary" in kind
        if isinstance(module, nn.RoPE):
            result.bases.add(module.base)
        for name, value in (*vars(module).items(), *module.items()):
            if isinstance(value, int | float) and name not in copies:
                result.facts[path, name] = value
            elif isinstance(value, mx.array) and name.startswith("_"):
                result.facts[path, name] = value.tolist()
    return result


def _check_layers(config: Mapping[str, Any], part: Mapping[str, Any], prefix: str) -> None:
    """Raises ModelLoadError if the layers that see the whole text are in no regular order, but the architecture only
    reads their period: every n-th layer."""
    architecture, types = architecture_of(part, config), part.get("layer_types")
    counted = architecture.arguments & set(PERIODS) and reads_period(architecture)
    if counted and isinstance(types, list) and FULL in types and period_of(types) is None:
        raise _refusal(f"{prefix}layer_types has {FULL} at irregular intervals", config)


def _check_constants(config: Mapping[str, Any], part: Mapping[str, Any], prefix: str) -> None:
    """Checks values besides the rotary embedding. An architecture reads a value if its source has the name."""
    source = "".join(inspect.getsource(module) for module in dict.fromkeys((*modules_of(part), *modules_of(config))))
    if not source:
        return
    for name, neutral in _NEUTRAL.items():
        softcap = "softcapping" in name and re.search(r"softcap|tanh", source)  # nanochat's is constant
        read = name in source or softcap
        if (value := part.get(name)) not in neutral and not read:
            raise _refusal(f"{prefix}{name} {value!r}", config)
    if _READS_ACTIVATION.search(source):
        return
    computed = [words for words, _ in _FAMILIES if re.search(words, source)]
    for name in _ACTIVATIONS:
        if isinstance(value := part.get(name), str):
            named = [words for words, values in _FAMILIES if re.search(values, value.lower())]
            if len(computed) == len(named) == 1 and named != computed:
                raise _refusal(f"{prefix}{name} {value!r}", config)
            return


def _refusal(what: str, config: Mapping[str, Any], why: str = "") -> ModelLoadError:
    reason = f"config.json: {what} decides the numbers, and mlx-lm {version('mlx-lm')} does not compute it for "
    cure = "serve another model, or install a newer mlx-lm; take the key out if the model was trained without it"
    return ModelLoadError(f"{reason}{config['model_type']!r}{f' ({why})' if why else ''}", cure)


def context_length_of(config: Mapping[str, Any], tokenizer: Any) -> int:
    """Tokens of the longest text that the model declares, or else that its tokenizer declares."""
    if (length := declared_context(config)) is not None:
        return length
    declared = getattr(tokenizer, "model_max_length", 0)
    return int(declared) if 0 < declared < 10**7 else 4096


def raised_context(max_context: int, declared: int) -> str:
    """The warning for a context longer than the model declares; empty if it is not."""
    if max_context <= declared:
        return ""
    return (
        f"model.max_context raises the context to {max_context:,} tokens, and the model declares {declared:,}: texts "
        "beyond that may make no sense"
    )
