"""Loads the pair through mlx-lm, and says what it can do.

Runs on the engine thread: weights built lazily on another thread cannot be evaluated here (mlx#3727).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from draftd.core import DrafterKind, ModelInfo
from draftd.engine.blas import load_blas
from draftd.errors import ModelLoadError


class Detokenizer(Protocol):
    """Token ids to text, piece by piece. One instance serves one text."""

    def add(self, token: int) -> str:
        """The text that became certain with this token; empty while a character is unfinished."""
        ...

    def finish(self) -> str:
        """What remains; an unfinished character becomes U+FFFD."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back. Safe to read from any thread."""

    vocab_size: int
    eos_ids: frozenset[int]
    has_chat_template: bool

    def encode(self, text: str) -> list[int]:
        """Ids of raw text, with the beginning-of-text token where the model wants one and the text has none."""
        ...

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of messages (role, content) in the model's chat template, ready for the answer."""
        ...

    def detokenizer(self) -> Detokenizer: ...


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """A target, perhaps a draft, and what they can do together. `target` and `draft` are mlx-lm models."""

    target: Any
    draft: Any | None
    tokenizer: Tokenizer
    info: ModelInfo


def load_models(
    model: str,
    draft_model: str | None = None,
    *,
    prompt_lookup: bool = True,
    progress: Callable[[str], None] = print,
) -> LoadedModels:
    """Loads a local folder or a hub id, and its draft. Raises ModelLoadError with what is wrong and where.

    On Linux, floating-point weights are cast to fp32: other types do not go through BLAS there.
    """
    backend = load_blas()
    progress(f"loading {model}")
    target, tokenizer, config = _load(model)
    draft: Any | None = None
    mismatch = ""
    if draft_model is not None:
        progress(f"loading draft {draft_model}")
        draft, draft_tokenizer, _ = _load(draft_model)
        mismatch = _mismatch(tokenizer, draft_tokenizer)
    progress("checking what the pair can do")
    return assemble(
        target,
        None if mismatch else draft,
        MlxTokenizer(tokenizer),
        model=_name(model),
        draft_model=None if draft_model is None else _name(draft_model),
        context_length=_context_length(config, tokenizer),
        backend=backend if backend == "metal" else f"cpu ({backend})",
        prompt_lookup=prompt_lookup,
        mismatch=mismatch,
    )


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer alone, of a local folder or a hub id."""
    load_blas()
    from mlx_lm.utils import load_tokenizer as load_mlx_tokenizer

    return MlxTokenizer(load_mlx_tokenizer(_local(model)))


def assemble(
    target: Any,
    draft: Any | None,
    tokenizer: Tokenizer,
    *,
    model: str,
    draft_model: str | None,
    context_length: int,
    backend: str,
    prompt_lookup: bool = True,
    mismatch: str = "",
) -> LoadedModels:
    """Checks what models already in memory can do together. `mismatch` says why a draft was turned away."""
    from mlx.utils import tree_flatten

    from draftd.engine.cache import RaggedCaches, cannot_trim, make_caches, rollback_limit

    def weight_bytes(m: Any) -> int:
        return sum(array.nbytes for _, array in tree_flatten(m.parameters()))

    drafters: list[DrafterKind] = []
    reason = mismatch
    if fixed := cannot_trim(target):
        reason = f"the model's cache cannot be rolled back ({fixed})"
    else:
        if draft is not None and (fixed := cannot_trim(draft)):
            reason = f"the draft model's cache cannot be rolled back ({fixed})"
        elif draft is not None:
            drafters.append(DrafterKind.DRAFT_MODEL)
        elif not reason:
            reason = "no draft model is loaded"
        if prompt_lookup:
            drafters.append(DrafterKind.PROMPT_LOOKUP)
    limits = [limit for m in (target, draft) if m is not None and (limit := rollback_limit(m)) is not None]
    info = ModelInfo(
        model=model,
        draft_model=draft_model,
        context_length=context_length,
        vocab_size=_vocabulary(target, tokenizer),
        drafters=tuple(drafters),
        speculation_reason="" if DrafterKind.DRAFT_MODEL in drafters else reason,
        weight_bytes=weight_bytes(target),
        draft_weight_bytes=0 if draft is None else weight_bytes(draft),
        backend=backend,
        batched=isinstance(make_caches(target), RaggedCaches),
        rollback_limit=min(limits) if limits else None,
    )
    return LoadedModels(target, draft if DrafterKind.DRAFT_MODEL in drafters else None, tokenizer, info)


def _load(path: str) -> tuple[Any, Any, dict[str, Any]]:
    import mlx.core as mx
    from mlx_lm import load

    local = _local(path)
    try:
        model, tokenizer, config = load(local, return_config=True)
    except Exception as error:
        raise ModelLoadError(f"model: {path}: {type(error).__name__}: {error}") from error
    if mx.default_device() == mx.Device(mx.cpu):
        model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    model.eval()
    return model, tokenizer, config


def _local(path: str) -> str:
    """The folder of a model that lies here, or the hub id as it is. Raises ModelLoadError for what can be neither."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        for pattern in ("config.json", "*.safetensors"):
            if not list(folder.glob(pattern)):
                raise ModelLoadError(f"model: {path}: no {pattern} in this folder")
        return str(folder)
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelLoadError(f"model: {path}: no such folder")
    return path


def _name(path: str) -> str:
    """A label of low cardinality: a hub id as it is, a folder by its last one or two parts."""
    local = Path(path).expanduser()
    if not local.is_dir():
        return path
    local = local.resolve()
    generic = {"target", "draft", "model"}
    return f"{local.parent.name}/{local.name}" if local.name in generic else local.name


def _context_length(config: Mapping[str, Any], tokenizer: Any) -> int:
    text = config.get("text_config", {})
    for source in (config, text):
        value = source.get("max_position_embeddings")
        if isinstance(value, int) and value > 0:
            return value
    declared = getattr(tokenizer, "model_max_length", 0)
    return int(declared) if 0 < declared < 10**7 else 4096


def _vocabulary(target: Any, tokenizer: Tokenizer) -> int:
    args = getattr(target, "args", None)
    size = getattr(args, "vocab_size", None)
    return int(size) if isinstance(size, int) else tokenizer.vocab_size


def _mismatch(target: Any, draft: Any) -> str:
    """Compares two tokenizers by id. Empty when every token that both have means the same, and neither has more."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours == theirs:
        return ""
    differing = sum(1 for token, i in ours.items() if theirs.get(token) != i)
    differing += sum(1 for token in theirs if token not in ours)
    return f"the draft's tokenizer is not the target's ({differing} of {max(len(ours), len(theirs))} tokens differ)"


class MlxTokenizer:
    """mlx-lm's tokenizer, as `Tokenizer`."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self.vocab_size = len(wrapper.get_vocab())
        self.eos_ids = frozenset(int(i) for i in wrapper.eos_token_ids)
        self.has_chat_template = bool(wrapper.has_chat_template)

    def encode(self, text: str) -> list[int]:
        bos = self._wrapper.bos_token
        return list(self._wrapper.encode(text, add_special_tokens=bos is None or not text.startswith(bos)))

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        rendered = self._wrapper.apply_chat_template(
            [dict(m) for m in messages], add_generation_prompt=True, tokenize=True
        )
        return list(rendered)

    def detokenizer(self) -> Detokenizer:
        return _MlxDetokenizer(self._wrapper.detokenizer)


class _MlxDetokenizer:
    def __init__(self, streaming: Any) -> None:
        self._streaming = streaming
        streaming.reset()

    def add(self, token: int) -> str:
        self._streaming.add_token(token)
        return str(self._streaming.last_segment)

    def finish(self) -> str:
        self._streaming.finalize()
        return str(self._streaming.last_segment)
