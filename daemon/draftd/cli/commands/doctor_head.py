"""The doctor's findings on a draft head: which one there is, whether it fits the model, and what its trial found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftd.cli.commands.status import describe_head
from draftd.cli.findings import Finding, note, ok
from draftd.engine.drafters.sources import NO_HEAD, NOT_WITH_RANKS, LoadedHead
from draftd.errors import ModelLoadError
from draftd.fronts.grpc import reply
from draftd.model_info import HeadInfo
from draftd.models.folder import ModelFolder, weight_bytes
from draftd.models.heads import find_head, head_repository
from draftd.models.hub import find_cached, is_hub_id

_SUBJECT = "draft head"
_TRIED_LATER = "`draftd doctor --exactness` loads them"


def head_folder(named: str | None) -> ModelFolder | None:
    """Returns the folder that was given as the draft model if it holds a draft head; None for a whole model, and for a
    folder that is not on this machine."""
    if named is None or (is_hub_id(named) and not find_cached(named).whole):
        return None
    try:
        folder = ModelFolder(named, "draft model", offline=True)
        return None if head_repository(folder.files().folder) is None else folder
    except ModelLoadError:
        return None


def check_head(
    folder: ModelFolder, config: Mapping[str, Any], target: Any, apart: ModelFolder | None, *, several_ranks: bool
) -> tuple[list[Finding], LoadedHead]:
    """Opens the draft head in the folder `apart`, or else in the target's own `folder`, if there is one, without
    reading its weights. Returns the finding on it, and the head or why it is refused. `target`: opened, with its
    `config`."""
    from draftd.engine.cache.layouts import why_not_batched
    from draftd.models.check import ANOTHER_HEAD
    from draftd.models.head_weights import open_head

    files = find_head(folder.files().folder, config) if apart is None else head_repository(apart.files().folder)
    if files is None:
        return [], NO_HEAD
    info = HeadInfo(files.family.kind, files.family.words, tuple(file.name for file in files.files), files.nbytes)
    try:
        if several_ranks and not files.refusal:
            raise ModelLoadError(NOT_WITH_RANKS, ANOTHER_HEAD)
        head = open_head(files, target)
        why_not_batched(head, weights=False)  # the answer is remembered, so later calls try nothing
    except ModelLoadError as error:
        info = replace(info, refusal=error.what)
        return [judge_head(info, error.cure)], LoadedHead(info)
    info = replace(info, weight_bytes=weight_bytes(head))
    return [judge_head(info)], LoadedHead(info, head)


def judge_head(info: HeadInfo, cure: str = "") -> Finding:
    """Returns the finding on a draft head, tried or not. `cure`: what to do if it is refused."""
    message = reply.draft_head(info)
    assert message is not None
    text = describe_head(message)
    if info.refusal:
        return note(_SUBJECT, f"{text}; the model is served without it", cure)
    return ok(_SUBJECT, text if info.form else f"{text} ({_TRIED_LATER})")
