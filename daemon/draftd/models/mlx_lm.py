"""draftd's interface to mlx-lm: the only module that imports it.

mlx-lm's import sets the process's limit of open files to 2,048 and lowers its maximum, which cannot be undone, and
fails if less is allowed. So that call is disabled during the import: the daemon decides its own limit at its start
(`draftd.hardware.descriptors`).
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

from draftd.models.head_families import family_inside
from draftd.models.tokenizer_file import BYTE_TOKEN, token_names

_real = resource.setrlimit
resource.setrlimit = lambda *_: None
try:
    from mlx_lm import tokenizer_utils, utils
    from mlx_lm.models import base
    from mlx_lm.models.cache import (
        ArraysCache,
        CacheList,
        ChunkedKVCache,
        KVCache,
        RotatingKVCache,
        create_attention_mask,
        make_prompt_cache,
    )
    from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, SPMStreamingDetokenizer
    from mlx_lm.tokenizer_utils import _byte_decoder as byte_characters  # for byte-level BPE: character to byte
    from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS, infer_quant_config, load_adapters, load_config, load_model
    from mlx_lm.utils import _get_classes as model_classes  # it uses two tables of other names
finally:
    resource.setrlimit = _real


def load_target(folder: Path, config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns a folder's model, without its weights read yet, and its configuration. The arrays of a draft head are
    left out before mlx-lm's `sanitize`, which for some architectures keeps them, or reads the others differently."""

    def classes(config: dict[str, Any]) -> tuple[Any, Any]:
        kind, arguments = model_classes(config)

        def sanitize(model: Any, weights: dict[str, Any]) -> dict[str, Any]:
            model.__class__ = kind
            family = family_inside(weights, config)
            heads = set() if family is None else set(family.own_arrays(weights))
            own = {name: array for name, array in weights.items() if name not in heads}
            return model.sanitize(own) if hasattr(model, "sanitize") else own

        return type(kind.__name__, (kind,), {"sanitize": sanitize}), arguments

    loaded: tuple[Any, dict[str, Any]] = load_model(folder, lazy=True, model_config=config, get_model_classes=classes)
    return loaded


def vocabulary_size(model: Any) -> int:
    """Returns the number of a model's logits. A model that contains a text model does not declare it, so the shape of a
    forward that is never computed tells."""
    size = getattr(getattr(model, "args", None), "vocab_size", None)
    if isinstance(size, int):
        return size
    import mlx.core as mx

    return int(model(mx.zeros((1, 1), dtype=mx.uint32), cache=make_prompt_cache(model)).shape[-1])


class _ByteLevelDetokenizer(BPEStreamingDetokenizer):
    """mlx-lm's detokenizer with a table of all ids: its own has one entry per token, too few if ids are left out."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenmap = token_names(tokenizer)
        self.reset()


class _SentencePieceDetokenizer(SPMStreamingDetokenizer):
    """mlx-lm's detokenizer with a table of all ids: its own cannot be created if ids are left out."""

    def __init__(self, tokenizer: Any, trim_space: bool = True) -> None:
        self.trim_space = trim_space
        self.tokenmap = [
            bytes.fromhex(byte[1]) if (byte := BYTE_TOKEN.fullmatch(name)) else name.encode()
            for name in token_names(tokenizer)
        ]
        self.reset()


def load_tokenizer(
    folder: Path, ends: int | Collection[int] | None, options: Mapping[str, Any], correct: Callable[[Any], None]
) -> Any:
    """Returns mlx-lm's wrapper of a folder's tokenizer. `ends`: the end tokens. `options`: transformers' own. `correct`
    changes transformers' tokenizer before anything is derived from it. Runs no code of the folder."""

    def make_tokenizer(*arguments: Any, **options: Any) -> Any:
        tokenizer = tokenizer_utils.AutoTokenizer.from_pretrained(*arguments, **options)
        correct(tokenizer)
        return tokenizer

    load = _with_globals(
        tokenizer_utils.load,
        AutoTokenizer=SimpleNamespace(from_pretrained=make_tokenizer),
        BPEStreamingDetokenizer=_ByteLevelDetokenizer,
        SPMStreamingDetokenizer=_SentencePieceDetokenizer,
    )
    # Explicit: otherwise a person at the terminal would be asked whether the folder's code may run.
    options = {"trust_remote_code": False, **options}
    return _with_globals(utils.load_tokenizer, _load_tokenizer=load)(folder, options, eos_token_ids=ends)


def _with_globals(function: Any, **others: Any) -> Any:
    """Returns a copy of mlx-lm's function with other globals; the original stays unchanged."""
    assert others.keys() <= set(function.__code__.co_names), f"mlx-lm's {function.__name__} is another"
    changed = {**function.__globals__, **others}
    return FunctionType(function.__code__, changed, function.__name__, function.__defaults__, function.__closure__)
