"""Loads the draft head of a checkpoint, and finds out which form it has by what the target accepts.

Sources contradict each other about details that change no text, only how much is accepted. So all forms are tried on
one text, and a head that predicts the target's tokens no better than chance in any form is refused.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import mlx.core as mx

from draftd.engine.cache.layouts import make_caches, ranks_of, why_not_batched
from draftd.engine.cache.model_layers import record_states, stop_recording
from draftd.engine.drafters.sources import NOT_WITH_RANKS, HeadSource, LoadedHead, try_out
from draftd.engine.head_trials import HeadTrial, KeptTrials, trial_key
from draftd.errors import ModelLoadError
from draftd.model_info import HeadInfo
from draftd.models.folder import ModelFiles, ModelFolder, parameters, read, weight_bytes
from draftd.models.head_families import HeadFiles
from draftd.models.head_weights import open_head
from draftd.models.heads import find_head, head_repository
from draftd.models.mlx_lm import vocabulary_size
from draftd.models.mtp import HeadForm, MTPHead, TargetParts

_log = logging.getLogger(__name__)

_TOKENS, _TOKENS_OF_LARGE, _LARGE = 256, 128, 1 << 17  # of the trial's text; of a large vocabulary; tokens of one
_PIECES = (32, 64, 128)  # tokens after which a trial may end
_SURE = 2.5  # standard deviations by which a form must lead
_ALIKE, _MANY = 1 / 16, 100  # of so many tokens: forms that differ in no more than this share are taken to be the same
TRIAL_TEXT = """The river rises in the hills above the town, where three streams meet below an old stone bridge. In \
spring, when the snow melts, the water is high and brown, and the farmers move their cattle to the upper fields. In \
the summer it is so low that children cross it on the stones. The town has a market on Saturdays, and people come from \
all the villages of the valley to buy bread, fruit, tools and cloth.

def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)

def largest(values):
    best = values[0]
    for value in values[1:]:
        if value > best:
            best = value
    return best

Question: What is the capital of France? Answer: The capital of France is Paris. It lies on the Seine, and it has been \
the capital for many centuries. Question: What is two plus three? Answer: Two plus three is five.

{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}
{"name": "get_weather", "arguments": {"city": "Berlin", "unit": "celsius"}}
"""


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

    def find_trial(head: MTPHead) -> HeadTrial:
        if (trial := kept.get(key)) is None:
            trial = try_forms(head, target, trial_tokens(tokenizer.encode(TRIAL_TEXT), vocabulary_size(target)))
            kept.keep(key, trial)
        return trial

    return load_head(files, source, target, find_trial)


def load_head(
    files: HeadFiles, folder: ModelFolder, target: Any, find_trial: Callable[[MTPHead], HeadTrial]
) -> LoadedHead:
    """Loads a head over the loaded `target`. `folder`: where it lies. `find_trial` finds its form. A
    head that cannot be used is no error: the reason is in the result."""
    info = HeadInfo(files.kind, files.family, tuple(file.name for file in files.files), files.nbytes)
    began = time.perf_counter()
    try:
        head = open_head(files, target)
        for _ in read(parameters(head), folder.called):
            pass
        try_out(head, f"the draft head of {folder.called}")
        not_batched = why_not_batched(head)
    except ModelLoadError as error:
        _log.warning("%s: its draft head is not used: %s", folder.called, error.message)
        return LoadedHead(replace(info, refusal=error.what))
    if not_batched:
        return LoadedHead(replace(info, refusal=f"its layers cannot be batched: {not_batched}"))
    info = replace(info, weight_bytes=weight_bytes(head))
    trial = find_trial(head)
    info = replace(info, accepted=trial.accepted, chance=trial.chance, positions=trial.positions)
    if not trial.convincing:
        why = f"in none of {trial.forms} forms it predicts the model's tokens better than chance"
        figures = f"{trial.accepted:.0%} of {trial.positions} accepted, {trial.chance:.0%} by chance"
        _log.warning("%s: its draft head is not used: %s (%s)", folder.called, why, figures)
        return LoadedHead(replace(info, refusal=f"{why} ({figures})"))
    form = trial.form
    _log.info(
        "%s: draft head (%s), %s: %.0f %% accepted in the trial of %d forms, loaded in %.1f s",
        folder.called, files.family, form, 100 * trial.accepted, trial.forms, time.perf_counter() - began,
    )  # fmt: skip
    take_form(head, target, form)
    return LoadedHead(replace(info, form=str(form)), head, _source(files, folder, form), head_files(folder, form))


def _source(files: HeadFiles, folder: ModelFolder, form: HeadForm) -> HeadSource:
    def open_again(target: Any) -> MTPHead:
        head = open_head(files, target)
        take_form(head, target, form)
        return head

    return HeadSource(f"the draft head of {folder.called}", open_again, partial(head_files, folder, form))


def head_files(folder: ModelFolder, form: HeadForm) -> ModelFiles:
    """Returns the present state of the files of a head of this form, which are its target's too."""
    return replace(folder.files(), part=f"draft head, {form}")


def take_form(head: MTPHead, target: Any, form: HeadForm) -> None:
    """Gives the head this form, and makes the target record the hidden states that it needs."""
    head.take_form(form)
    record_states(target, before=None if form.after_norm else _parts(target).body.norm)


def _parts(target: Any) -> TargetParts:
    parts = TargetParts.of(target)
    assert parts is not None, "the head was opened over this target"
    return parts


def try_forms(head: MTPHead, target: Any, text: Sequence[int]) -> HeadTrial:
    """Tries all forms that the head may have. It predicts each of the text's tokens from the second on; accepted is
    what the target would choose there. Ends early once one form leads clearly. Afterwards the target records
    no hidden states."""
    first = head.form
    offsets = [first.added_to_norms, 1 - first.added_to_norms] if head.zero_centred else [first.added_to_norms]
    forms = [HeadForm(order, added, norm) for norm, order, added in product((True, False), (True, False), offsets)]
    take_form(head, target, replace(first, after_norm=False))
    caches = make_caches(target).fresh()
    states, choices = list[mx.array](), list[int]()
    try:
        for start, end in pairwise([0, *(count for count in _PIECES if count < len(text)), len(text)]):
            logits = caches.forward(mx.array([list(text[start:end])], dtype=mx.uint32), [end - start])
            chosen = mx.argmax(logits[0], axis=-1)
            assert caches.states is not None, "the target records its states"
            mx.eval(chosen, caches.states, caches.arrays())
            states.append(caches.states)
            choices += chosen.tolist()
            trial, sure = _compare_forms(head, target, forms, mx.concatenate(states, axis=1), choices, text[:end])
            if sure:
                break
    finally:
        caches.clear()
        stop_recording(target)
    return trial


def _compare_forms(
    head: MTPHead, target: Any, forms: Sequence[HeadForm], before: mx.array, choices: list[int], text: Sequence[int]
) -> tuple[HeadTrial, bool]:
    """Returns the trial's result for a text, and whether more of it could hardly change the form. `before`: the
    target's hidden states in front of its final norm, 1 × tokens × size; `choices`: its token after each."""
    after, agreed = _parts(target).body.norm(before), list[list[bool]]()
    for form in forms:
        head.take_form(form)
        drafts = _draft(head, after if form.after_norm else before, text)
        agreed.append([draft == choice for draft, choice in zip(drafts, choices[1:], strict=True)])
    best = max(range(len(forms)), key=lambda i: sum(agreed[i]))  # the first of equals
    positions = len(agreed[best])
    chance = Counter(choices[1:]).most_common(1)[0][1] / positions
    trial = HeadTrial(forms[best], sum(agreed[best]) / positions, chance, positions, len(forms))
    differences = [[a - b for a, b in zip(agreed[best], other, strict=True)] for other in agreed]
    return trial, trial.convincing and all(_leads_clearly(one) for i, one in enumerate(differences) if i != best)


def _leads_clearly(differences: Sequence[int]) -> bool:
    """Whether the better of two forms would stay the better one, or they hardly differ. `differences`: for each token 1
    if only the better one was right, -1 if only the other was (a sign test)."""
    apart, positions = sum(map(abs, differences)), len(differences)
    alike = positions >= _MANY and apart <= positions * _ALIKE
    return alike or sum(differences) >= _SURE * math.sqrt(max(apart, 1))


def trial_tokens(text: Sequence[int], vocabulary: int) -> Sequence[int]:
    """Returns the beginning of the trial's text that is used with a vocabulary of this size."""
    return text[: _TOKENS if vocabulary < _LARGE else _TOKENS_OF_LARGE]


def _draft(head: MTPHead, states: mx.array, text: Sequence[int]) -> list[int]:
    """Returns the head's token for each of the text's from the third on, and for the one after its end."""
    with head.fed.of(states[:, :-1]):
        drafts = mx.argmax(head(mx.array([list(text[1:])], dtype=mx.uint32))[0], axis=-1)
    if head.ids is not None:
        drafts = head.ids[drafts]
    mx.eval(drafts)
    return list(drafts.tolist())
