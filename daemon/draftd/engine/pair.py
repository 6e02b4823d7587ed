"""Loads the pair through mlx-lm, and says what it can do.

Runs on the engine thread: weights built lazily on another thread cannot be evaluated here (mlx#3727).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftd.core import DRAFT_MODEL, GRAMMAR, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName
from draftd.engine.drafters.registry import DrafterNeeds, DrafterRegistry, built_in_drafters
from draftd.engine.drafters.sources import DraftSource, Unfit, in_folder, try_out
from draftd.model_info import ModelInfo
from draftd.models.advice import warnings, without_draft
from draftd.models.blas import compute_backend, load_blas
from draftd.models.check import not_served
from draftd.models.configuration import declared_context
from draftd.models.folder import ModelFiles, ModelFolder, PairFiles, parameters, read, weight_bytes
from draftd.models.grammar import Grammars
from draftd.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from draftd.engine.ranks.caches import RankedModel
    from draftd.engine.ranks.channel import RecordSender
    from draftd.engine.ranks.group import RankGroup
    from draftd.engine.ranks.model_shard import ModelShard

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 2.0  # between two lines on weights that take long to read


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """A target, perhaps a draft, and what they can do together. `target` and `draft` are mlx-lm models. `sources`: of
    the drafts that can be released and loaded again. `files`: of all configured models."""

    target: Any
    draft: Any | None
    tokenizer: Tokenizer
    info: ModelInfo
    sources: Mapping[DrafterName, DraftSource] = field(default_factory=dict)
    files: PairFiles = field(default_factory=PairFiles)
    registry: DrafterRegistry = field(default_factory=built_in_drafters)
    grammars: Grammars | None = None
    target_source: DraftSource | None = None  # the target's source; None if it was made in memory
    ranks: RankedModel | None = None  # set if several ranks share the target


@dataclass(frozen=True, slots=True)
class ModelPaths:
    """Folders or hub ids of the models, and how they are used. Another process can load them from this value."""

    model: str
    draft: str | None = None
    light_draft: str | None = None
    adapter: Path | None = None
    prompt_lookup: bool = True
    max_context: int | None = None

    def __call__(self, progress: Callable[[str], None], **more: Any) -> LoadedModels:
        """Loads them. `more`: other arguments of `load_models`. Raises ModelLoadError."""
        return load_models(**asdict(self), progress=progress, **more)


def load_models(
    model: str,
    draft: str | None = None,
    light_draft: str | None = None,
    *,
    adapter: Path | None = None,
    max_context: int | None = None,
    prompt_lookup: bool = True,
    registry: DrafterRegistry | None = None,
    progress: Callable[[str], None] = print,
    group: RankGroup | None = None,
    sender: RecordSender | None = None,
) -> LoadedModels:
    """Loads a local folder or a hub id, and its draft. Raises ModelLoadError with what is wrong and where.

    A light draft is checked and not loaded yet. `adapter`: the folder of the target's adapter.
    `max_context`: the context in tokens, in place of the target's own. On Linux, floating-point weights are cast to
    fp32: other types do not go through BLAS there. `group`: the ranks that share the target, of which this is rank 0;
    `sender` sends the others their work."""
    load_blas()
    from draftd.engine.ranks.caches import lead
    from draftd.engine.ranks.model_shard import open_share, read_share

    paths = {DRAFT_MODEL: draft, LIGHT_DRAFT_MODEL: light_draft}
    progress(f"looking at {model}")
    draft_folders = {  # first: a wrong name is found before the target is downloaded
        name: ModelFolder(path, name.replace("_", " "), progress=progress)
        for name, path in paths.items()
        if path is not None
    }
    folder = ModelFolder(model, adapter=adapter, progress=progress)
    # All are checked before the first is read, which may take minutes.
    for checked in (folder, *draft_folders.values()):
        checked.check()
        if warning := checked.surplus:
            _log.warning("%s: %s", checked.called, warning)
    progress(f"loading {model}{f' with the adapter {adapter}' if adapter else ''}")
    target_files = folder.files()
    part: ModelShard | None = None
    if group is None:
        target, config = folder.open()
    else:
        part, config = open_share(folder, group)
        target = part.model
    ranks: RankedModel | None = None
    with ThreadPoolExecutor(1, "draftd-tokenizer") as beside:  # a small model's weights take no longer than it does
        loading_tokenizer = beside.submit(folder.tokenizer, config)
        if part is None:
            _read(target, folder.called, progress, loading_tokenizer)
            try_out(target, folder.called)  # computes, which leaves a processor to the tokenizer
        else:
            assert sender is not None
            loading_tokenizer.result()
            read_share(part, folder.called)
            progress(f"waiting for the other {part.group.size - 1} ranks")
            ranks = lead(part, sender)
            try_out(target, folder.called)
        tokenizer = loading_tokenizer.result()
    if folder.tokenizer_changes:
        _log.warning("%s: %s", folder.called, folder.tokenizer_changes)
    if left_out := not_served(config):
        progress(f"{folder.name} is served for text only, without its {left_out}")
    loaded_draft: Any | None = None
    sources: dict[DrafterName, DraftSource] = {}
    files: dict[DrafterName, ModelFiles] = {}
    refused: dict[DrafterName, str] = {}
    for name, draft_folder in draft_folders.items():
        progress(f"loading {name.replace('_model', '').replace('_', ' ')} {paths[name]}")
        source, noted = in_folder(draft_folder, tokenizer), draft_folder.files()
        files[name] = replace(noted, stamps=None)
        try:
            opened = source.open()
        except Unfit as unfit:
            refused[name] = unfit.what
            _log.warning("%s: %s", source.name, unfit.message)
            continue
        sources[name] = source
        if name == DRAFT_MODEL:
            loaded_draft, files[name] = opened, noted
            for _ in read(parameters(opened), source.name):
                pass
            try_out(opened, source.name)
    context_length = context_length_of(config, tokenizer)
    if max_context is not None:
        if warning := raised_context(max_context, context_length):
            _log.warning("%s: %s", folder.called, warning)
        context_length = max_context
    if draft is None:
        _log.info("no draft model: %s", without_draft(config))
    progress("checking what the pair can do")
    labels = {name: draft_folder.name for name, draft_folder in draft_folders.items()}
    models = assemble(
        target,
        loaded_draft,
        Tokenizer(tokenizer),
        model=folder.name,
        draft_model=labels.get(DRAFT_MODEL),
        light_draft_model=labels.get(LIGHT_DRAFT_MODEL),
        context_length=context_length,
        backend=compute_backend(),
        prompt_lookup=prompt_lookup,
        refused=refused,
        sources=sources,
        files=PairFiles(target_files, files),
        registry=registry,
        target_source=None if ranks else DraftSource(folder.called, lambda: folder.open()[0], folder.files),
        architecture=config["model_type"],
        left_out=left_out,
        ranks=ranks,
    )
    for warning, cure in warnings(config, models.tokenizer, models.info.vocab_size):
        _log.warning("%s: %s: %s", folder.called, warning, cure)
    return models


def _read(model: Any, called: str, progress: Callable[[str], None], beside: Future[Any]) -> None:
    """Reads a model's weights, and reports every few seconds how far it is. Raises ModelLoadError, or the error of
    `beside` as soon as that fails, since weights may take minutes."""
    arrays = parameters(model)
    total, reported_at = sum(array.nbytes for array in arrays), time.monotonic()
    for _ in read(arrays, called):
        if beside.done():
            beside.result()
        if time.monotonic() - reported_at >= _PROGRESS_SECONDS:
            reported_at, left = time.monotonic(), sum(array.nbytes for array in arrays)
            progress(f"loading {called}: {100 * (total - left) // total}% of {total / 1e9:.1f} GB")


def load_tokenizer(model: str, ends: Collection[int] = ()) -> Tokenizer:
    """The tokenizer alone, of a local folder or a hub id. `ends`: the tokens that end a text, if the model's
    configuration names others than the tokenizer's."""
    load_blas()
    return Tokenizer(ModelFolder(model).tokenizer({"eos_token_id": sorted(ends)} if ends else None))


def assemble(
    target: Any,
    draft: Any | None,
    tokenizer: Tokenizer,
    *,
    model: str,
    draft_model: str | None,
    light_draft_model: str | None = None,
    context_length: int,
    backend: str,
    prompt_lookup: bool = True,
    refused: Mapping[DrafterName, str] | None = None,
    sources: Mapping[DrafterName, DraftSource] | None = None,
    files: PairFiles | None = None,
    registry: DrafterRegistry | None = None,
    target_source: DraftSource | None = None,
    architecture: str = "",
    left_out: str = "",
    ranks: RankedModel | None = None,
) -> LoadedModels:
    """Checks what models in memory can do together. `refused`: why drafts were refused. A draft without a source in
    `sources` stays in memory; a light draft needs one."""
    from draftd.engine.cache.batched import FULL, layer_kinds
    from draftd.engine.cache.layouts import why_not_batched
    from draftd.models.mlx_lm import vocabulary_size

    registry, refused, sources = registry or built_in_drafters(), dict(refused or {}), dict(sources or {})
    if draft is not None:
        sources.setdefault(DRAFT_MODEL, DraftSource("draft model", lambda: draft))
    else:
        refused.setdefault(DRAFT_MODEL, "no draft model is loaded")
    vocabulary = vocabulary_size(target)
    grammars = tokenizer.grammars(vocabulary)
    if grammars is None:
        refused[GRAMMAR] = "there are no grammars for its tokenizer"
    not_batched, drafters = why_not_batched(target), list[DrafterName]()
    for name in registry.names:
        if (name == PROMPT_LOOKUP and not prompt_lookup) or (name == LIGHT_DRAFT_MODEL and name not in sources):
            continue
        if why := refused.get(name) or _missing(registry.get(name).needs, name in sources):
            refused[name] = why
        else:
            drafters.append(name)
    layers = layer_kinds(target) if ranks is None else ranks.part.layers
    info = ModelInfo(
        model=model,
        draft_model=draft_model,
        context_length=context_length,
        vocab_size=vocabulary,
        drafters=tuple(drafters),
        weight_bytes=weight_bytes(target),
        draft_weight_bytes=0 if draft is None else weight_bytes(draft),
        backend=backend,
        batched=not not_batched,
        batched_reason=not_batched,
        light_draft_model=light_draft_model,
        registered_drafters=registry.names,
        refused_drafters=refused,
        architecture=architecture,
        layers=layers,
        partial_prefixes=set(layers) == {FULL},
        end_tokens=tokenizer.end_tokens,
        tools=tokenizer.tools,
        thinking=tokenizer.thinking,
        left_out=left_out,
    )
    return LoadedModels(
        target, draft, tokenizer, info, sources, files or PairFiles(), registry, grammars, target_source, ranks
    )


def _missing(needs: DrafterNeeds, has_model: bool) -> str:
    """Says which need of a drafter is not met; empty if it can draft."""
    if needs is DrafterNeeds.HIDDEN_STATES:
        return f"it needs {needs.value}, which no target gives yet"
    if needs is DrafterNeeds.MODEL and not has_model:
        return f"it needs {needs.value}, and none is configured for it"
    return ""


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
