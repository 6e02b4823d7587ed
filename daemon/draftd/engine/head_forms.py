"""Finds out which form a draft head has, by what the target accepts.

Sources contradict each other about details that change no text, only how much is accepted. So all forms are tried on
one text, and a head that predicts the target's tokens no better than chance in any form is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import mlx.core as mx

from draftd.engine.cache.layouts import make_caches
from draftd.engine.cache.model_layers import logits_at, record_states, states_of, stop_recording
from draftd.engine.head_trials import HeadTrial
from draftd.models.chained import ChainedHeads
from draftd.models.dflash import DFlashHead
from draftd.models.eagle import EagleHead
from draftd.models.head_families import HeadForm
from draftd.models.head_weights import Head
from draftd.models.mtp import MTPHead
from draftd.models.target_parts import TargetParts

_TOKENS, _TOKENS_OF_LARGE, _LARGE = 256, 128, 1 << 17  # of the trial's text; of a large vocabulary; tokens of one
_PIECES = (32, 64, 128)  # tokens after which a trial may end
_BLOCKS = 64  # blocks of a head that drafts blocks, spread over the text
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


def take_form(head: Head, target: Any, form: HeadForm) -> None:
    """Gives the head this form, and makes the target record the hidden states that it needs."""
    head.take_form(form)
    parts = _parts(target)
    record_states(target, [parts.place(tap) for tap in form.taps] or ([] if form.after_norm else [parts.norm]))


def _parts(target: Any) -> TargetParts:
    parts = TargetParts.of(target)
    assert parts is not None, "the head was opened over this target"
    return parts


def trial_tokens(text: Sequence[int], vocabulary: int) -> Sequence[int]:
    """Returns the beginning of the trial's text that is used with a vocabulary of this size."""
    return text[: _TOKENS if vocabulary < _LARGE else _TOKENS_OF_LARGE]


def try_forms(head: Head, target: Any, text: Sequence[int]) -> HeadTrial:
    """Tries all forms that the head may have. It predicts each of the text's tokens from the second on; accepted is
    what the target would choose there. Ends early once one form leads clearly. Afterwards the target records
    no hidden states."""
    parts = _parts(target)
    forms = _forms(head, len(parts.layers))
    places = sorted({tap for form in forms for tap in form.taps or [len(parts.layers)]})
    caches = make_caches(target).fresh()
    record_states(target, [parts.place(tap) for tap in places])
    recorded, choices = list[mx.array](), list[int]()
    try:
        for start, end in pairwise([0, *(count for count in _PIECES if count < len(text)), len(text)]):
            logits = caches.forward(_ids(text[start:end]), [end - start])
            chosen = mx.argmax(logits[0], axis=-1)
            assert caches.states is not None, "the target records its states"
            mx.eval(chosen, caches.states, caches.arrays())
            recorded.append(caches.states)
            choices += chosen.tolist()
            read = _ReadText(head, parts, text[:end], choices, mx.concatenate(recorded, axis=1), places)
            trial, sure = read.compare(forms)
            if sure:
                break
        own = read.own_after_norm(trial.form)
    finally:
        caches.clear()
        stop_recording(target)
    return replace(trial, form=replace(trial.form, own_after_norm=own))


def _forms(head: Head, layers: int) -> list[HeadForm]:
    """Returns the forms that the head may have over a target of so many layers, the one that it has now first."""
    first, flip = head.form, (False, True)
    if first.taps:
        shifted = [tuple(tap + shift for tap in first.taps) for shift in (0, 1, -1)]
        return [
            replace(first, taps=taps, normed_residual=first.normed_residual != other)
            for taps, other in product(shifted, flip if isinstance(head, EagleHead) else flip[:1])
            if 0 <= min(taps) <= max(taps) <= layers
        ]
    ordered = isinstance(head, MTPHead | ChainedHeads)
    return [
        replace(
            first,
            embedding_first=first.embedding_first != other_order,
            added_to_norms=abs(first.added_to_norms - other_offset),
            after_norm=first.after_norm != other_place,
        )
        for other_place, other_order, other_offset in product(
            flip, flip if ordered else flip[:1], flip if head.zero_centred else flip[:1]
        )
    ]


@dataclass(frozen=True, slots=True)
class _ReadText:
    """A text that the target has read. `choices`: its token after each of the text's. `recorded`: the inputs of its
    layers `places`, 1 × tokens × (places · size)."""

    head: Head
    parts: TargetParts
    text: Sequence[int]
    choices: Sequence[int]
    recorded: mx.array
    places: Sequence[int]

    def states(self, form: HeadForm) -> mx.array:
        """Returns the target's hidden states that a form takes, 1 × tokens × (taps · size)."""
        inputs = mx.split(self.recorded, len(self.places), axis=-1)
        if form.taps:
            return mx.concatenate([inputs[self.places.index(tap)] for tap in form.taps], axis=-1)
        return self.parts.norm(inputs[-1]) if form.after_norm else inputs[-1]

    def compare(self, forms: Sequence[HeadForm]) -> tuple[HeadTrial, bool]:
        """Returns the trial's result, and whether more text could hardly change the form."""
        agreed = list[list[bool]]()
        for form in forms:
            self.head.take_form(form)
            agreed.append(self._find_agreement(self.head.project(self.states(form)), 1))
        best = max(range(len(forms)), key=lambda i: sum(agreed[i]))
        if not _leads([a - b for a, b in zip(agreed[best], agreed[0], strict=True)]):
            best = 0  # as its configuration has it
        positions = len(agreed[best])
        chance = Counter(self.choices[1:]).most_common(1)[0][1] / positions
        trial = HeadTrial(forms[best], sum(agreed[best]) / positions, chance, positions, len(forms))
        differences = [[a - b for a, b in zip(agreed[best], other, strict=True)] for other in agreed]
        return trial, trial.convincing and all(_leads_clearly(one) for i, one in enumerate(differences) if i != best)

    def own_after_norm(self, form: HeadForm) -> bool:
        """Returns whether the head's own states are taken after its final norm: as it has it, unless it predicts the
        token after the next one clearly better in the other way."""
        head, usual = self.head, form.own_after_norm
        if isinstance(head, DFlashHead) or "norm" not in head:
            return usual
        head.take_form(form)
        record_states(head, [head.norm])
        with head.fed.of(head.project(self.states(form)[:, :-1])):
            _, own = states_of(head, lambda: logits_at(head, _ids(self.text[1:]), None, None))
        assert own is not None, "the head records its states"
        after, before = self._find_agreement(head.norm(own), 2), self._find_agreement(own, 2)
        usually, otherwise = (after, before) if usual else (before, after)
        return usual != _leads([a - b for a, b in zip(otherwise, usually, strict=True)])

    def _find_agreement(self, states: mx.array, ahead: int) -> list[bool]:
        """Returns for each token from the one with the number `ahead` + 1 on, and the one after the text's end, whether
        the head's is the target's; for some of them if it drafts blocks. `states`: 1 × positions × size, each paired
        with the token `ahead` further on."""
        choices = self.choices[ahead:]
        if isinstance(self.head, DFlashHead):
            every = max(1, len(choices) // _BLOCKS)
            choices = choices[::every]
            drafts = mx.stack([_after_block(self.head, states, self.text, every * i) for i in range(len(choices))])
        else:
            with self.head.fed.of(states[:, : len(choices)]):
                drafts = mx.argmax(self.head(_ids(self.text[ahead:]))[0], axis=-1)
        if self.head.ids is not None:
            drafts = self.head.ids[drafts]
        mx.eval(drafts)
        return [draft == choice for draft, choice in zip(drafts.tolist(), choices, strict=True)]


def _after_block(head: DFlashHead, states: mx.array, text: Sequence[int], i: int) -> mx.array:
    """Returns the id that a block's first drafted token has, after the text's token i + 1 and the states up to i."""
    cache = head.make_cache()
    with head.fed.of(states[:, : i + 1]):
        head(_ids(text[1 : i + 2]), cache)
    with head.whole_blocks():
        return mx.argmax(head(_ids([text[i + 1], *[head.mask_token] * (head.block - 1)]), cache)[0, 1])


def _leads_clearly(differences: Sequence[int]) -> bool:
    """Whether the better of two forms would stay the better one, or they hardly differ. `differences`: for each token 1
    if only the better one was right, -1 if only the other was (a sign test)."""
    apart, positions = sum(map(abs, differences)), len(differences)
    return (positions >= _MANY and apart <= positions * _ALIKE) or _leads(differences)


def _leads(differences: Sequence[int]) -> bool:
    return sum(differences) >= _SURE * math.sqrt(max(sum(map(abs, differences)), 1))


def _ids(text: Sequence[int]) -> mx.array:
    return mx.array([list(text)], dtype=mx.uint32)
