"""Advice about a model's folder: why it cannot be loaded, and which features will not work.

Causes are looked for only after mlx-lm or transformers refused a folder: nothing here refuses one that they load.
"""

from __future__ import annotations

import contextlib
import json
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftd.errors import ModelLoadError
from draftd.models.check import CONVERT, FETCH, check_weights, read_json
from draftd.models.tokenizer import Tokenizer

_CONFIG = "config.json"
_WHOLE = "give a whole model; as --draft-model a small one of its family, or a head that was made for it, or none"
_FUSE = "make one model of it and its base model with `mlx_lm.fuse`, or give it as --adapter-path beside its base model"
_MERGE = "merge it into its base model with PEFT's merge_and_unload, and convert that with `mlx_lm.convert`"

# Draft heads: words of their configuration, and prefixes of their weights' names.
_HEADS = (
    ("EAGLE", r"eagle|draft_vocab_size", r"midlayer\.|fc\.weight|d2t"),
    ("Medusa", r"medusa", r"medusa_|\d+\.\d+\.(linear\.)?weight"),
    ("MLP speculator", r"mlp_?speculator", r"speculator\."),
    ("speculators", r"speculators_", r"(?!)"),
    ("MTP", r"mtp\b|mtpmodel|nextn(?!_predict)", r"mtp\.|mtp_|eh_proj|enorm|hnorm"),
)
_KEYS_OF_HEADS = ("medusa_", "eagle_", "draft_vocab_size", "speculators_")
_OF_A_WHOLE_MODEL = ("model.layers.", "language_model.", "transformer.h.")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_ABOVE_ZERO = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


def no_model(folder: Path) -> ModelLoadError | None:
    """Returns the error for a folder without a whole model, such as a draft head or an adapter; None for others."""
    if not (folder / _CONFIG).is_file() and (folder / "adapter_config.json").is_file():
        peft = any(folder.glob("adapter_model.*"))
        what = "this is an adapter, which changes the weights of another model, and no whole model"
        return ModelLoadError(what, _MERGE if peft else _FUSE)
    config = _config(folder)
    keys = (name for name in config if name.startswith(_KEYS_OF_HEADS))
    named = " ".join(map(str, (config.get("model_type"), config.get("architectures"), *keys))).lower()
    names = set[str]()
    for file in folder.glob("*.safetensors"):
        with contextlib.suppress(ModelLoadError, OSError):
            names |= check_weights(file)
    weights = set() if any(name.startswith(_OF_A_WHOLE_MODEL) for name in names) else names
    for kind, words, beginning in _HEADS:
        if re.search(words, named) or any(re.match(rf"(model\.)?({beginning})", name) for name in weights):
            what = f"this is a draft head ({kind}), which drafts from its target's hidden states"
            return ModelLoadError(what, _WHOLE)
    return None


def explain_error(folder: Path, error: Exception, *, tokenizer: bool = False) -> ModelLoadError | None:
    """Returns the error that explains another library's `error` about the model, or, with `tokenizer`, about its
    tokenizer; None if the folder does not tell."""
    if (other := no_model(folder)) is not None:
        return other
    config = _config(folder)
    for why in (_weights, _missing, _refused_value, _wrong_value, _wrong_token):
        if (advice := why(str(error), folder, config)) is not None:
            return advice
    if tokenizer and isinstance(error, KeyError):
        return _unreadable(folder) or ModelLoadError(f"its tokenizer cannot be loaded: its files lack {error}", FETCH)
    return _unreadable(folder) if tokenizer else _unknown_form(error, config)


def _config(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(ModelLoadError, OSError):
        if isinstance(config := read_json(folder / _CONFIG), dict):
            return config
    return {}


def _weights(said: str, folder: Path, config: Mapping[str, Any]) -> ModelLoadError | None:
    """Explains weights that do not fit the model in config.json, from MLX's message."""
    packed = f"; {_CONFIG} says that they are packed by {how!r}" if (how := _packing(config)) else ""
    names = re.split(r",\s+", re.sub(r"^.*?:\s*", "", said, count=1, flags=re.DOTALL))
    first = names[0].rstrip(". \n")
    if match := re.match(r"Missing (\d+) parameters", said):
        what = f"its weights lack {match[1]} arrays that config.json asks for, such as {first}{packed}"
    elif match := re.match(r"Received (\d+) parameters not in model", said):
        what = f"its weights have {match[1]} arrays that config.json does not ask for, such as {first}{packed}"
    elif match := re.match(r"Expected shape (\(.*?\)) but received shape (\(.*?\)) for parameter (\S+)", said):
        what = f"{match[3].rstrip('.')} has the shape {match[2]}, and config.json asks for {match[1]}{packed}"
    else:
        return None
    return ModelLoadError(what, CONVERT)


def _missing(said: str, folder: Path, config: Mapping[str, Any]) -> ModelLoadError | None:
    """Explains missing keys that the architecture needs."""
    match = re.search(r"missing \d+ required (?:positional|keyword-only) arguments?: (.*)", said)
    if match is None:
        return None
    keys = re.findall(r"'(\w+)'", match[1])
    part = next((name for name, value in config.items() if name.endswith("_config") and not value), "")
    where = f"{part} in {_CONFIG}" if part and part not in keys else _CONFIG
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ModelLoadError(f"{where} lacks {', '.join(keys[:3])}{more}, which its model_type needs", CONVERT)


def _refused_value(said: str, folder: Path, config: Mapping[str, Any]) -> ModelLoadError | None:
    """Explains a value of config.json that transformers, which makes the tokenizer, refuses."""
    if (match := re.search(r"Validation error for field '(\w+)'", said)) is None:
        return None
    name = "rope_scaling" if match[1] == "rope_parameters" and match[1] not in config else match[1]
    what = f"{_CONFIG}: {name} is {json.dumps(config.get(name))}, which transformers does not take"
    return ModelLoadError(what, f"correct {name} in {_CONFIG}, or {FETCH}")


def _wrong_value(said: str, folder: Path, config: Mapping[str, Any]) -> ModelLoadError | None:
    """Explains a value that should be a number, a number above 0 or an object, and is not."""
    numbers = _numbers(config)
    for name, value in config.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in _ABOVE_ZERO and not (number and value > 0):
            wanted = "a number above 0"
        elif not number and name in numbers:
            wanted = "a number"
        elif name.endswith("_config") and not isinstance(value, dict | None):
            wanted = "an object"
        else:
            continue
        return ModelLoadError(
            f"{_CONFIG}: {name} is {json.dumps(value)}, and must be {wanted}", f"correct it, or {FETCH}"
        )
    return None


def check_numbers(config: Mapping[str, Any]) -> None:
    """Raises ModelLoadError for text where mlx-lm needs a number: some values are used only once the model runs."""
    numbers = _numbers(config)
    if wrong := next((name for name, value in config.items() if isinstance(value, str) and name in numbers), ""):
        what = f"{_CONFIG}: {wrong} is {json.dumps(config[wrong])}, and must be a number"
        raise ModelLoadError(what, f"correct it, or {FETCH}")


def _numbers(config: Mapping[str, Any]) -> set[str]:
    """Returns the keys whose values must be numbers for mlx-lm, and are not null."""
    from draftd.models.mlx_lm import model_classes

    with contextlib.suppress(Exception):
        _, arguments = model_classes(dict(config))
        return {name for name, hint in typing.get_type_hints(arguments).items() if hint in (int, float)}
    return set()


def _wrong_token(said: str, folder: Path, config: Mapping[str, Any]) -> ModelLoadError | None:
    if (match := re.search(r"Special token (\w+) has to be", said)) is None:
        return None
    what = f"tokenizer_config.json: {match[1]} must be the text of a token"
    return ModelLoadError(what, "write it there as tokenizer.json has it, or " + FETCH)


def _unreadable(folder: Path) -> ModelLoadError | None:
    """Explains a tokenizer file whose content does not fit its name."""
    for name in _TOKENIZER_FILES:
        file = folder / name
        if file.is_dir():
            return ModelLoadError(f"{name} is a folder, where a file should be", FETCH)
        if file.is_file():
            try:
                if not isinstance(read_json(file), dict):
                    return ModelLoadError(f"{name} is no JSON object", FETCH)
            except ModelLoadError as found:
                return found
    return None


def _unknown_form(error: Exception, config: Mapping[str, Any]) -> ModelLoadError | None:
    """Explains weights in a format unknown to mlx-lm."""
    if packed := _packing(config):
        return ModelLoadError(f"mlx-lm does not read weights that are packed by {packed!r}", CONVERT)
    if isinstance(error, KeyError):
        return ModelLoadError(f"its weights, or its {_CONFIG}, lack {error}, which its model_type needs", CONVERT)
    return None


def _packing(config: Mapping[str, Any]) -> str:
    method = config.get("quantization_config")
    return str(method.get("quant_method") or "") if isinstance(method, dict) else ""


def end_ids(config: Mapping[str, Any]) -> list[int]:
    """Returns the ids in `eos_token_id`. Raises ModelLoadError for anything but ids."""
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
        where = f"{_CONFIG} or generation_config.json"
        raise ModelLoadError(
            f"{where}: eos_token_id is {json.dumps(value)}, and must be an id or a list of ids",
            "correct it: the id of the token that ends an answer, as in tokenizer.json",
        )
    return ids


def usable_end_ids(config: Mapping[str, Any]) -> list[int]:
    """Returns those of `end_ids` that the model can emit. Raises the same errors."""
    parts = (config, *(part for part in config.values() if isinstance(part, dict)))
    sizes = (size for part in parts if isinstance(size := part.get("vocab_size"), int))
    return [one for one in end_ids(config) if 0 <= one < next(sizes, 1 << 31)]


def warnings(config: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: int) -> list[tuple[str, str]]:
    """Returns pairs of what will not work as expected in a loaded model, and the remedy. `vocabulary`: rows of its
    embedding."""
    complaints = []
    if wrong := [one for one in end_ids(config) if not 0 <= one < vocabulary]:
        what = f"the end tokens that its configuration names have no embedding and are not used: {wrong}"
        complaints.append((what, "correct eos_token_id in config.json and generation_config.json"))
    if not any(one < vocabulary for one in tokenizer.eos_ids):
        what = "no token ends an answer: each goes on to a stop string or to max_tokens"
        cure = "set eos_token_id in generation_config.json to the id of the token that does, or send `stop`"
        complaints.append((what, cure))
    if beyond := tokenizer.tokens_beyond(vocabulary):
        first = min(beyond)
        what = (
            f"tokens without an embedding: {len(beyond)}, such as {beyond[first]} ({first}); texts with one are refused"
        )
        template = "" if tokenizer.template is None else tokenizer.template.source
        if any(text in template for text in beyond.values()):
            what += ", and the chat template writes one in each chat"
        complaints.append(
            (what, "use the tokenizer that the model was trained with, or the weights that go with this one")
        )
    return complaints


LARGE_DRAFT = 0.25
"""A draft with more of the target's bytes hardly pays, however much of it is accepted."""

# Small models by family, with their hidden size; docs/choosing-a-draft.md lists them too.
_SMALL_MODELS = {
    "qwen3": ("Qwen3-0.6B", 1024),
    "qwen3_moe": ("Qwen3-0.6B", 1024),
    "qwen2": ("Qwen2.5-0.5B-Instruct", 896),
    "gemma3": ("gemma-3-270m-it", 640),
    "gemma3_text": ("gemma-3-270m-it", 640),
    "gemma2": ("gemma-2-2b-it", 2304),
    "olmo2": ("OLMo-2-0425-1B-Instruct", 2048),
}
_SMALL_LLAMAS = {128_256: ("Llama-3.2-1B-Instruct", 2048), 49_152: ("SmolLM2-135M-Instruct", 576)}  # by vocabulary


def small_model(config: Mapping[str, Any]) -> str:
    """Returns the name of a small model of the target's family that may draft for it; empty if none is known, or the
    target is as small."""
    name, hidden_size = _smallest(config)
    return name if _hidden_size(config) > hidden_size else ""


def without_draft(config: Mapping[str, Any]) -> str:
    """Tells people who serve a target without a draft model which one may fit."""
    name, _ = _smallest(config)
    if name and not small_model(config):
        advice = f"none smaller of its family is known than {name}: only text that repeats itself is drafted"
    else:
        advice = f"{name or 'a small model of its family'} may draft for it, for faster answers (--draft-model)"
    return f"{advice}: see `draftd docs choosing-a-draft`"


def _smallest(config: Mapping[str, Any]) -> tuple[str, int]:
    """Returns the small model of the target's family and its hidden size; an empty name if none is known."""
    kind, vocabulary = str(config.get("model_type")), (config.get("text_config") or config).get("vocab_size", 0)
    return _SMALL_LLAMAS.get(vocabulary, ("", 0)) if kind == "llama" else _SMALL_MODELS.get(kind, ("", 0))


def _hidden_size(config: Mapping[str, Any]) -> int:
    return int((config.get("text_config") or config).get("hidden_size", 0))
