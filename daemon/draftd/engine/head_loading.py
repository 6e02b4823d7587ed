"""Loads the draft head of a checkpoint, in the form that its trial finds (head_forms.py)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from draftd.engine.cache.layouts import ranks_of, why_not_batched
from draftd.engine.drafters.sources import NOT_WITH_RANKS, HeadSource, LoadedHead, try_out
from draftd.engine.head_forms import TRIAL_TEXT, take_form, trial_tokens, try_forms
from draftd.engine.head_trials import HeadTrial, KeptTrials, trial_key
from draftd.errors import ModelLoadError, NotServing, in_one_line
from draftd.model_info import HeadInfo
from draftd.models.folder import ModelFiles, ModelFolder, parameters, read, weight_bytes
from draftd.models.head_families import HeadFiles, HeadForm
from draftd.models.head_weights import Head, open_head
from draftd.models.heads import find_head, head_repository
from draftd.models.mlx_lm import vocabulary_size

_log = logging.getLogger(__name__)


def load_head_of(
    folder: ModelFolder,
    apart: ModelFolder | None,
    target: Any,
    config: Mapping[str, Any],
    tokenizer: Any,
    progress: Callable[[str], None],
    trials: Path | None,
) -> LoadedHead:
    """Loads the draft head that lies in the folder `apart`, or else in the target's own `folder`, if there is one.
    `target`: loaded, with its `config` and mlx-lm's `tokenizer`. `trials`: a file that keeps what earlier
    trials found."""
    source = folder if apart is None else apart
    files = find_head(folder.files().folder, config) if apart is None else head_repository(apart.files().folder)
    if files is None:
        return LoadedHead()
    progress(f"loading the draft head of {source.path}")
    if ranks_of(target) is not None and not files.refusal:
        files = replace(files, refusal=NOT_WITH_RANKS)
    kept, key = KeptTrials(trials), trial_key(TRIAL_TEXT, folder, source)

    def find_trial(head: Head) -> HeadTrial:
        if (trial := kept.get(key)) is None:
            trial = try_forms(head, target, trial_tokens(tokenizer.encode(TRIAL_TEXT), vocabulary_size(target)))
            kept.keep(key, trial)
        return trial

    return load_head(files, source, target, find_trial)


def load_head(
    files: HeadFiles, folder: ModelFolder, target: Any, find_trial: Callable[[Head], HeadTrial]
) -> LoadedHead:
    """Loads a head over the loaded `target`. `folder`: where it lies. `find_trial` finds its form. A
    head that cannot be used is no error: the reason is in the result."""
    info = HeadInfo(files.family.kind, files.family.words, tuple(file.name for file in files.files), files.nbytes)
    began = time.perf_counter()
    try:
        head = open_head(files, target)
        for _ in read(parameters(head), folder.called):
            pass
        try_out(head, f"the draft head of {folder.called}")
        not_batched = why_not_batched(head) or _needs_equal_widths(head)
    except ModelLoadError as error:
        _log.warning("%s: its draft head is not used: %s", folder.called, error.message)
        return LoadedHead(replace(info, refusal=error.what))
    except NotServing:
        raise
    except Exception as error:
        _log.warning("%s: its draft head is not used: it cannot be tried", folder.called, exc_info=True)
        return LoadedHead(replace(info, refusal=f"it cannot be tried: {in_one_line(error)}"))
    if not_batched:
        return LoadedHead(replace(info, refusal=f"its layers cannot be batched: {not_batched}"))
    info = replace(info, weight_bytes=weight_bytes(head))
    try:
        trial = find_trial(head)
    except NotServing:
        raise
    except Exception as error:
        _log.warning("%s: its draft head is not used: its trial failed", folder.called, exc_info=True)
        return LoadedHead(replace(info, refusal=f"its trial failed: {in_one_line(error)}"))
    info = replace(info, accepted=trial.accepted, chance=trial.chance, positions=trial.positions)
    if not trial.convincing:
        why = f"in none of {trial.forms} forms it predicts the model's tokens better than chance"
        figures = f"{trial.accepted:.0%} of {trial.positions} accepted, {trial.chance:.0%} by chance"
        _log.warning("%s: its draft head is not used: %s (%s)", folder.called, why, figures)
        return LoadedHead(replace(info, refusal=f"{why} ({figures})"))
    form = trial.form
    _log.info(
        "%s: draft head (%s), %s: %.0f %% accepted in the trial of %d forms, loaded in %.1f s",
        folder.called, files.family.words, form, 100 * trial.accepted, trial.forms, time.perf_counter() - began,
    )  # fmt: skip
    take_form(head, target, form)
    return LoadedHead(replace(info, form=str(form)), head, _source(files, folder, form), head_files(folder, form))


def _needs_equal_widths(head: Head) -> str:
    return "they take only texts that feed equally many tokens" if "level" in getattr(head, "_draftd_way", {}) else ""


def _source(files: HeadFiles, folder: ModelFolder, form: HeadForm) -> HeadSource:
    def open_again(target: Any) -> Head:
        head = open_head(files, target)
        take_form(head, target, form)
        return head

    return HeadSource(f"the draft head of {folder.called}", open_again, partial(head_files, folder, form))


def head_files(folder: ModelFolder, form: HeadForm) -> ModelFiles:
    """Returns the present state of the files of a head of this form, which are its target's too."""
    return replace(folder.files(), part=f"draft head, {form}")
