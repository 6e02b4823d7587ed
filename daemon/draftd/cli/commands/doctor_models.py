"""The doctor's findings on models: faults of their files, and what a pair can do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from draftd.cli.commands.doctor_head import check_head, head_folder
from draftd.cli.commands.status import capabilities
from draftd.cli.figures import size
from draftd.cli.findings import Finding, bad, note, ok
from draftd.cli.persistent_state import measured_worth, paths_of, quiet_transformers
from draftd.core import DRAFT_HEAD, DRAFT_MODEL, LIGHT_DRAFT_MODEL, DrafterName
from draftd.engine.depth.saved import DrafterWorth
from draftd.engine.drafters.sources import NO_HEAD, OTHER_DRAFT, DraftSource, LoadedHead, mismatch
from draftd.engine.pair import LoadedModels, assemble
from draftd.errors import ModelLoadError, in_one_line
from draftd.fronts.grpc import reply
from draftd.hardware.state import HardwareState, advance, takeable
from draftd.hardware.system import system_probe
from draftd.model_info import drafter_in_words
from draftd.models import blas
from draftd.models.advice import LARGE_DRAFT, warnings, without_draft
from draftd.models.check import not_served
from draftd.models.configuration import context_length_of, raised_context
from draftd.models.folder import ModelFolder, weight_bytes
from draftd.models.hub import CachedModel, find_cached, free_bytes, is_hub_id, no_room, storage_folder
from draftd.models.tokenizer import Tokenizer
from draftd.protocol import plain
from draftd.service.request import ServedModel
from draftd.settings import Settings

if TYPE_CHECKING:
    from draftd.engine.admission import Layout  # imports MLX

_SHORTEST_TEXT = 2  # tokens: one of a prompt, one of an answer
_NO_TEMPLATE = "put the one that it was trained with into chat_template.jinja in its folder, or send prompts"


class _Opened(NamedTuple):
    """An opened folder: mlx-lm's model, without its weights being read, the configuration and the tokenizer."""

    folder: ModelFolder
    model: Any
    config: dict[str, Any]
    tokenizer: Any


@dataclass(slots=True)
class _OpenedDrafts:
    """The drafts that could be opened, the draft head, and those that are refused, with the reason."""

    opened: dict[DrafterName, _Opened] = field(default_factory=dict)
    refused: dict[DrafterName, str] = field(default_factory=dict)
    head: LoadedHead = NO_HEAD

    @property
    def head_bytes(self) -> int:
        """Bytes of the draft head's weights in memory."""
        return 0 if self.head.info is None else self.head.info.weight_bytes


def look_at_models(settings: Settings) -> tuple[list[Finding], _Opened | None]:
    """Opens the models as `serve` does, without reading weights. Returns findings on what the pair can do, the memory
    that it takes and what it would refuse; and the opened target. Uses no network: a hub id is looked up in the
    cache."""
    blas.load_blas()  # before MLX is imported
    quiet_transformers()
    path, draft = paths_of(settings.model)
    finding, target = _open("model", path, settings.model.adapter_path)
    findings = [finding, *_surplus("model", target)]
    if target is not None and (changes := target.folder.tokenizer_changes):
        findings.append(note("tokenizer", changes))
    drafts, apart = _OpenedDrafts(), head_folder(draft)
    findings += _open_drafts(settings, target, draft if apart is None else None, drafts)
    machine = advance(None, system_probe().sample(), 0.0, settings.hardware.memory_floor_bytes)
    if target is None:
        return [*findings, check_memory(machine)], None
    shared = settings.distributed
    several_ranks = shared.ranks > 1 or shared.hostfile is not None
    head_findings, drafts.head = check_head(
        target.folder, target.config, target.model, apart, several_ranks=several_ranks
    )
    if drafts.head.info is not None and drafts.head.info.refusal:
        drafts.refused[DRAFT_HEAD] = drafts.head.info.refusal
    findings += head_findings
    if drafts.head.head is None or draft is not None:
        findings += check_draft(target, draft, drafts.opened.get(DRAFT_MODEL))
    findings += check_worth(measured_worth(settings, os.environ))
    return [*findings, *judge_pair(settings, machine, target, drafts)], target


def _open_drafts(
    settings: Settings, target: _Opened | None, draft: str | None, drafts: _OpenedDrafts
) -> Iterator[Finding]:
    """Opens the draft model `draft` and the light draft. Yields the findings on them and on how they fit the target,
    and adds them to `drafts`."""
    for name, subject, pair, named in (
        (DRAFT_MODEL, "draft model", "pair", draft),
        (LIGHT_DRAFT_MODEL, "light draft", "light pair", settings.model.light_draft_path),
    ):
        if named is None:
            continue
        finding, opened = _open(subject, named)
        yield from (finding, *_surplus(subject, opened))
        if target is None or opened is None:
            drafts.refused[name] = f"the {subject} could not be opened"
        elif why := mismatch(target.tokenizer, opened.tokenizer):
            yield bad(pair, f"{why}; it is served without this draft", OTHER_DRAFT)
            drafts.refused[name] = why
        else:
            yield ok(pair, "the draft's tokenizer is the target's")
            drafts.opened[name] = opened


def _open(subject: str, path: str, adapter: Path | None = None) -> tuple[Finding, _Opened | None]:
    """Opens a model. Returns the finding on it; and the model, or None if it is faulty or not on this machine."""
    from draftd.engine.cache.layouts import why_not_batched

    named = {path: False} | ({} if adapter is None else {str(adapter): True})
    for name in filter(is_hub_id, named):
        if not (copy := find_cached(name, adapter=named[name])).whole:
            return _not_cached(subject, name, copy), None
    try:
        folder = ModelFolder(path, subject, adapter, offline=True)
        model, config = folder.open()
        tokenizer = folder.tokenizer(config)
    except ModelLoadError as error:
        return bad(subject, error.what.removeprefix(f"{subject}: "), error.cure), None
    try:
        why_not_batched(model, weights=False)  # the answer is remembered, so later calls try nothing
    except Exception as error:
        what = f"{path}: mlx-lm cannot run {config['model_type']!r} here: {in_one_line(error)}"
        return bad(subject, what, "serve a model of another architecture"), None
    where = ", in the hub's cache" if is_hub_id(path) else ""
    text = f"{path} ({config['model_type']}, {size(weight_bytes(model))}{where})"
    return ok(subject, text), _Opened(folder, model, config, tokenizer)


def _not_cached(subject: str, name: str, copy: CachedModel) -> Finding:
    """The finding on a model or adapter that `serve` would download, or that finds no room on the disk."""
    if not copy.total:
        text = f"{name}: no such folder, so a hub id: {copy}, and is downloaded when it is served"
        return note(subject, text)
    if copy.missing > (free := free_bytes(storage_folder(name))):
        why = no_room(copy.missing, free, storage_folder(name))
        return bad(subject, f"{name}: {copy}: {why.what}", why.cure)
    return note(subject, f"{name}: {copy}; the rest is downloaded when it is served")


def check_draft(target: _Opened, named: str | None, draft: _Opened | None) -> list[Finding]:
    """Suggests a draft model if there is none, and warns of one that is too large to speed the target up."""
    if named is None:
        text = "none: only text that repeats itself is drafted (prompt_lookup)"
        return [note("draft model", text, without_draft(target.config))]
    if draft is None:
        return []
    share = weight_bytes(draft.model) / weight_bytes(target.model)
    if share <= LARGE_DRAFT:
        return []
    text = f"it has {share:.0%} of the target's bytes, so each drafted token takes about {share:.0%} of a step"
    mend = (
        "`draftd compare` measures whether it pays; a tenth of the bytes is better: see `draftd docs choosing-a-draft`"
    )
    return [note("draft size", text, mend)]


def check_worth(worth: DrafterWorth | None) -> list[Finding]:
    """Says whether the draft model pays, by what `serve` measured on this machine before."""
    if worth is None:
        return []
    if worth.warning:
        return [
            note("draft worth", worth.warning, "serve without it, or with another: see `draftd docs choosing-a-draft`")
        ]
    return [ok("draft worth", f"measured here: up to {worth.speedup:.2f} times the speed without drafts")]


def _surplus(subject: str, opened: _Opened | None) -> list[Finding]:
    """The finding on weight files in the folder that are not read, if there are any."""
    said = "" if opened is None else opened.folder.surplus
    return [note(subject, said, "take them out of the folder, or put the index there that names them")] if said else []


def judge_pair(settings: Settings, machine: HardwareState, target: _Opened, drafts: _OpenedDrafts) -> list[Finding]:
    """Returns findings on what `GetModel` would say and on what would be refused."""
    from draftd.engine.assembly import cache_limit, prefix_limit

    declared, max_context = context_length_of(target.config, target.tokenizer), settings.model.max_context
    models = _assemble(settings, target, drafts, max_context or declared)
    needed = models.info.weight_bytes + models.info.draft_weight_bytes + drafts.head_bytes
    loaded = replace(
        machine,
        available=None if machine.available is None else max(0, machine.available - needed),
        headroom=None if machine.headroom is None else machine.headroom - needed,
    )
    engine = settings.engine
    limits = engine.limits(headroom=lambda: takeable(loaded))
    layout, limit, info = cache_limit(models, limits)
    prefixes = prefix_limit(layout, limit, limits)
    served = ServedModel(
        info,
        engine.default_max_tokens,
        engine.max_draft_tokens,
        engine.depth_mode,
        models.tokenizer.has_chat_template,
        generic_tools=settings.model.generic_tools and models.tokenizer.generic_tools,
    )
    model_reply = reply.model(served)
    findings = [
        _judge_batching(info.batched_reason, plain(model_reply)),
        (ok if info.speculation_available else note)("speculation", info.speculation(engine.max_draft_tokens)),
        *(ok(subject, line) for subject, line in capabilities(model_reply)),
        *([note("max_context", raised)] if max_context and (raised := raised_context(max_context, declared)) else []),
        check_memory(machine, needed, limit, prefixes),
        *([ok("prefix cache", f"{size(prefixes)}: room for {info.prefix_room(prefixes)}")] if prefixes else []),
        *(note("tokenizer", *warning) for warning in warnings(target.config, models.tokenizer, info.vocab_size)),
    ]
    if not prefixes:
        findings.append(note("prefix cache", "off: engine.prefix_cache_bytes is 0"))
    return [*findings, *_refusals(served, layout, limit, drafts.refused)]


def _assemble(settings: Settings, target: _Opened, drafts: _OpenedDrafts, context_length: int) -> LoadedModels:
    draft, light = drafts.opened.get(DRAFT_MODEL), drafts.opened.get(LIGHT_DRAFT_MODEL)
    return assemble(
        target.model,
        draft and draft.model,
        Tokenizer(target.tokenizer),
        model=target.folder.name,
        draft_model=draft and draft.folder.name,
        light_draft_model=light and light.folder.name,
        context_length=context_length,
        backend="",
        prompt_lookup=settings.model.prompt_lookup,
        refused=drafts.refused,
        head=drafts.head,
        sources={LIGHT_DRAFT_MODEL: DraftSource("light draft", lambda: light.model)} if light else {},
        architecture=target.config["model_type"],
        left_out=not_served(target.config),
    )


def _judge_batching(reason: str, figures: dict[str, Any]) -> Finding:
    """The finding with all figures of the pair. `reason`: why requests share no forward passes; empty if they may."""
    if reason:
        return note("batching", f"none, each request has forward passes of its own: {reason}", figures=figures)
    text = "requests share forward passes; a trial when the weights are loaded decides it"
    return ok("batching", text, figures=figures | {"batched": None})


def _refusals(served: ServedModel, layout: Layout, limit: int, refused: Mapping[DrafterName, str]) -> Iterator[Finding]:
    """The findings on requests that would be refused. `limit`: bytes for key-value caches."""
    info = served.info
    if limit and info.largest_context < _SHORTEST_TEXT:
        need = size(layout.needed_bytes([_SHORTEST_TEXT]))
        text = f"{size(limit)} hold no request: one of {_SHORTEST_TEXT} tokens needs {need}"
        yield bad("KV cache", text, "raise engine.kv_cache_bytes")
    if not served.chat_template:
        yield note("refused", "chats: this model has no chat template", _NO_TEMPLATE)
    # A missing draft model has its finding already.
    named = [name for name in info.refused_drafters if name != DRAFT_MODEL or name in refused]
    reasons = {f"requests for the drafter {drafter_in_words(name)}": info.why_no(name) for name in named}
    if not info.speculation_available:
        reasons["requests for the mode SPECULATIVE"] = info.why_no_model_drafts
    if (whole := info.context_length) > info.largest_context:
        need = size(layout.needed_bytes([whole]))
        reasons[f"texts of more than {info.largest_context:,} tokens"] = (
            f"{whole:,} need {need} of KV cache, and {size(limit)} are there"
        )
    for what, why in reasons.items():
        yield note("refused", f"{what}: {why}")


def check_memory(machine: HardwareState, needed: int = 0, limit: int = 0, prefixes: int = 0) -> Finding:
    """Compares free memory with the `needed` bytes of weights. `limit`: bytes of key-value caches; `prefixes`: of the
    prefix cache."""
    if machine.available is None or machine.limit is None:
        return note("memory", "how much is free is not known")
    text = f"{machine.available / 1e9:.1f} of {machine.limit / 1e9:.1f} GB free"
    if machine.headroom is not None:
        text += f", {size(machine.headroom)} of headroom"
    if needed:
        text += f"; {size(needed)} needed for weights, then up to {size(limit)} for KV cache"
        text += f" and {size(prefixes)} for the prefix cache" if prefixes else ""
    if needed > machine.available:
        return bad("memory", text, "serve a smaller or quantised model, or close something")
    return ok("memory", text)
