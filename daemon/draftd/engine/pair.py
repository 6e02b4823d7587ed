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

from draftd.core import DRAFT_HEAD, DRAFT_MODEL, GRAMMAR, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName
from draftd.engine.drafters.registry import DrafterNeeds, DrafterRegistry, built_in_drafters
from draftd.engine.drafters.sources import NO_HEAD, DraftSource, HeadSource, LoadedHead, Unfit, in_folder, try_out
from draftd.model_info import ModelInfo
from draftd.models.advice import warnings, without_draft
from draftd.models.blas import compute_backend, load_blas
from draftd.models.check import not_served
from draftd.models.configuration import context_length_of, raised_context
from draftd.models.folder import ModelFiles, ModelFolder, PairFiles, parameters, read, weight_bytes
from draftd.models.grammar import Grammars
from draftd.models.heads import head_repository
from draftd.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from draftd.engine.ranks.caches import RankedModel
    from draftd.engine.ranks.channel import RecordSender
    from draftd.engine.ranks.group import RankGroup

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 2.0  # between two lines on weights that take long to read


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """A target, perhaps a draft, and what they can do together. `target` and `draft` are mlx-lm models, `head` is a
    draft head over the target. `sources`: of the drafts that can be released and loaded again. `files`: of all
    configured models."""

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
    head: Any | None = None
    head_source: HeadSource | None = None


@dataclass(frozen=True, slots=True)
class ModelPaths:
    """Folders or hub ids of the models, and how they are used. Another process can load them from this value."""

    model: str
    draft: str | None = None
    light_draft: str | None = None
    adapter: Path | None = None
    prompt_lookup: bool = True
    max_context: int | None = None
    trials: Path | None = None

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
    trials: Path | None = None,
    registry: DrafterRegistry | None = None,
    progress: Callable[[str], None] = print,
    group: RankGroup | None = None,
    sender: RecordSender | None = None,
) -> LoadedModels:
    """Loads a local folder or a hub id, and its drafts. Raises ModelLoadError with what is wrong and where.

    A light draft is checked and not loaded yet. On Linux, floating-point weights are cast to fp32, the only type that
    goes through BLAS. `trials`: a file that keeps what the trials of draft heads found. `group`: the ranks that share
    the target; `sender` sends them their work from rank 0."""
    load_blas()
    folder, draft_folders, head_folder = _check_folders(model, draft, light_draft, adapter, progress)
    target = _load_target(folder, group, sender, progress)
    drafts = _load_drafts(draft_folders, target.tokenizer, progress)
    drafts.add(_load_head((folder, head_folder), target, progress, trials))
    progress("checking what the pair can do")
    models = assemble(
        target.model,
        drafts.model,
        Tokenizer(target.tokenizer),
        model=folder.name,
        draft_model=drafts.labels.get(DRAFT_MODEL),
        light_draft_model=drafts.labels.get(LIGHT_DRAFT_MODEL),
        context_length=_context_length(folder.called, target, max_context),
        backend=compute_backend(),
        prompt_lookup=prompt_lookup,
        refused=drafts.refused,
        sources=drafts.sources,
        files=PairFiles(target.files, drafts.files),
        registry=registry,
        **target.declared,
        head=drafts.head,
    )
    target.warn(folder.called, models)
    return models


def _check_folders(
    model: str, draft: str | None, light_draft: str | None, adapter: Path | None, progress: Callable[[str], None]
) -> tuple[ModelFolder, dict[DrafterName, ModelFolder], ModelFolder | None]:
    """Returns the folders of the target, of the drafts, and of a draft head that was given as the draft model. All are
    checked before the first is read, which may take minutes."""
    progress(f"looking at {model}")
    draft_folders = {  # first: a wrong name is found before the target is downloaded
        name: ModelFolder(path, name.replace("_", " "), progress=progress)
        for name, path in ((DRAFT_MODEL, draft), (LIGHT_DRAFT_MODEL, light_draft))
        if path is not None
    }
    head_folder = None
    if DRAFT_MODEL in draft_folders and head_repository(draft_folders[DRAFT_MODEL].files().folder) is not None:
        head_folder = draft_folders.pop(DRAFT_MODEL)
    folder = ModelFolder(model, adapter=adapter, progress=progress)
    for checked in (folder, *draft_folders.values()):
        checked.check()
        if warning := checked.surplus:
            _log.warning("%s: %s", checked.called, warning)
    progress(f"loading {model}{f' with the adapter {adapter}' if adapter else ''}")
    return folder, draft_folders, head_folder


@dataclass(frozen=True, slots=True)
class _Target:
    """The target with its weights. `tokenizer`: mlx-lm's. `left_out`: inputs of the model that are not served. `ranks`:
    rank 0's part, if several ranks share it; such a target has no source to load it again from."""

    model: Any
    config: dict[str, Any]
    tokenizer: Any
    files: ModelFiles
    left_out: str
    source: DraftSource | None
    ranks: RankedModel | None

    @property
    def declared(self) -> dict[str, Any]:
        """Arguments of `assemble` about the target alone."""
        parts = {"target_source": self.source, "ranks": self.ranks, "left_out": self.left_out}
        return {**parts, "architecture": self.config["model_type"]}

    def warn(self, called: str, models: LoadedModels) -> None:
        if models.info.draft_model is None:
            _log.info("no draft model: %s", without_draft(self.config))
        for warning, cure in warnings(self.config, models.tokenizer, models.info.vocab_size):
            _log.warning("%s: %s: %s", called, warning, cure)


def _load_target(
    folder: ModelFolder, group: RankGroup | None, sender: RecordSender | None, progress: Callable[[str], None]
) -> _Target:
    """Reads the target's weights, or this rank's share of them."""
    from draftd.engine.ranks.caches import lead
    from draftd.engine.ranks.model_shard import open_share, read_share

    files, part = folder.files(), None
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
    source = None if ranks else DraftSource(folder.called, lambda: folder.open()[0], folder.files)
    return _Target(target, config, tokenizer, files, left_out, source, ranks)


@dataclass(slots=True)
class _Drafts:
    """The configured drafts. `model`: the draft model, loaded; `head`: the draft head, if the target or a draft has
    one. `refused`: those that do not fit, and why."""

    labels: dict[DrafterName, str]
    model: Any | None = None
    head: LoadedHead = NO_HEAD
    sources: dict[DrafterName, DraftSource] = field(default_factory=dict)
    files: dict[DrafterName, ModelFiles] = field(default_factory=dict)
    refused: dict[DrafterName, str] = field(default_factory=dict)

    def add(self, head: LoadedHead) -> None:
        """Adds the draft head, or why there is none."""
        self.head = head
        if self.head.info is not None and self.head.info.refusal:
            self.refused[DRAFT_HEAD] = self.head.info.refusal
        if self.head.files is not None:
            self.files[DRAFT_HEAD] = self.head.files


def _load_drafts(
    folders: Mapping[DrafterName, ModelFolder], tokenizer: Any, progress: Callable[[str], None]
) -> _Drafts:
    """Opens all drafts, and reads the draft model's weights."""
    drafts = _Drafts({name: folder.name for name, folder in folders.items()})
    for name, folder in folders.items():
        progress(f"loading {name.replace('_model', '').replace('_', ' ')} {folder.path}")
        source, files = in_folder(folder, tokenizer), folder.files()
        drafts.files[name] = replace(files, stamps=None)
        try:
            opened = source.open()
        except Unfit as unfit:
            drafts.refused[name] = unfit.what
            _log.warning("%s: %s", source.name, unfit.message)
            continue
        drafts.sources[name] = source
        if name == DRAFT_MODEL:
            drafts.model, drafts.files[name] = opened, files
            for _ in read(parameters(opened), source.name):
                pass
            try_out(opened, source.name)
    return drafts


def _load_head(
    folders: tuple[ModelFolder, ModelFolder | None], target: _Target, progress: Callable[[str], None], kept: Path | None
) -> LoadedHead:
    from draftd.engine.head_loading import load_head_of

    return load_head_of(*folders, target.model, target.config, target.tokenizer, progress, kept)


def _context_length(called: str, target: _Target, max_context: int | None) -> int:
    """Returns the configured context, with a warning if that is longer than declared, or else the declared one."""
    declared = context_length_of(target.config, target.tokenizer)
    if max_context is None:
        return declared
    if warning := raised_context(max_context, declared):
        _log.warning("%s: %s", called, warning)
    return max_context


def _read(model: Any, called: str, progress: Callable[[str], None], beside: Future[Any]) -> None:
    """Reads a model's weights, which may take minutes, and reports the progress every few seconds. `beside`: a task on
    another thread; if it fails meanwhile, its error is raised at once. Raises ModelLoadError."""
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
    context_length: int,
    backend: str,
    prompt_lookup: bool = True,
    refused: Mapping[DrafterName, str] | None = None,
    sources: Mapping[DrafterName, DraftSource] | None = None,
    files: PairFiles | None = None,
    registry: DrafterRegistry | None = None,
    target_source: DraftSource | None = None,
    ranks: RankedModel | None = None,
    head: LoadedHead = NO_HEAD,
    **declared: Any,
) -> LoadedModels:
    """Checks what models in memory can do together. `refused`: why drafts were refused. A draft without a source in
    `sources` stays in memory; a light draft needs one. `declared`: other fields of ModelInfo."""
    registry, refused, sources = registry or built_in_drafters(), dict(refused or {}), dict(sources or {})
    if draft is None:
        refused.setdefault(DRAFT_MODEL, "no draft model is loaded")
    else:
        sources.setdefault(DRAFT_MODEL, DraftSource("draft model", lambda: draft))
    info = _describe_target(
        target,
        tokenizer,
        ranks,
        model=model,
        draft_model=draft_model,
        context_length=context_length,
        draft_weight_bytes=0 if draft is None else weight_bytes(draft),
        backend=backend,
        **declared,
    )
    grammars = tokenizer.grammars(info.vocab_size)
    with_weights = sources if head.head is None else {*sources, DRAFT_HEAD}
    drafters = _usable_drafters(registry, with_weights, refused, grammars, prompt_lookup=prompt_lookup)
    info = replace(info, drafters=drafters, registered_drafters=registry.names, refused_drafters=refused)
    info, files = replace(info, head=head.info), files or PairFiles()
    parts = target, draft, tokenizer, info, sources, files, registry, grammars, target_source, ranks
    return LoadedModels(*parts, head.head, head.source)


def _describe_target(target: Any, tokenizer: Tokenizer, ranks: RankedModel | None, **declared: Any) -> ModelInfo:
    """Returns what the target can do, without drafters. `declared`: fields of ModelInfo that do not follow from it."""
    from draftd.engine.cache.batched import FULL, layer_kinds
    from draftd.engine.cache.layouts import why_not_batched
    from draftd.models.mlx_lm import vocabulary_size

    not_batched, layers = why_not_batched(target), layer_kinds(target) if ranks is None else ranks.part.layers
    return ModelInfo(
        **declared,
        vocab_size=vocabulary_size(target),
        drafters=(),
        weight_bytes=weight_bytes(target),
        batched=not not_batched,
        batched_reason=not_batched,
        layers=layers,
        partial_prefixes=set(layers) == {FULL},
        end_tokens=tokenizer.end_tokens,
        tools=tokenizer.tools,
        thinking=tokenizer.thinking,
    )


def _usable_drafters(
    registry: DrafterRegistry,
    sources: Collection[DrafterName],
    refused: dict[DrafterName, str],
    grammars: Grammars | None,
    *,
    prompt_lookup: bool,
) -> tuple[DrafterName, ...]:
    """Returns the drafters that can draft, and adds the others to `refused` with the reason."""
    if grammars is None:
        refused[GRAMMAR] = "its tokenizer supports no grammars"
    drafters = list[DrafterName]()
    for name in registry.names:
        if name == PROMPT_LOOKUP and not prompt_lookup:
            continue
        if name in (LIGHT_DRAFT_MODEL, DRAFT_HEAD) and name not in sources and name not in refused:
            continue
        if why := refused.get(name) or _missing(registry.get(name).needs, name in sources):
            refused[name] = why
        else:
            drafters.append(name)
    return tuple(drafters)


def _missing(needs: DrafterNeeds, has_model: bool) -> str:
    """Says which need of a drafter is not met; empty if it can draft."""
    if needs is not DrafterNeeds.NOTHING and not has_model:
        return f"it needs {needs.value}, and none is configured for it"
    return ""
