"""Draft heads for tests: one that compares what it is fed, and drafts what it is told to."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from draftd.engine.cache.model_layers import record_states
from draftd.engine.drafters.base import DraftSequence
from draftd.engine.drafters.draft_head import DraftHead
from draftd.engine.features import Features
from draftd.engine.pair import LoadedModels
from draftd.models.mtp import MTPHead, TargetParts

TOLERANCE = 1e-5
TOLERANCE_OF_STATES = 3e-4  # random recurrent layers enlarge the rounding of other slices


def with_random_head(models: LoadedModels, seed: int = 7) -> LoadedModels:
    """Returns the models with a draft head of random weights over their target."""
    mx.random.seed(seed)
    parts = TargetParts.of(models.target)
    assert parts is not None
    head = MTPHead(parts)
    mx.eval(head.parameters())
    record_states(models.target)
    return replace(models, head=head)


class RiggedHead(DraftHead):
    """A draft head that keeps what it is fed, and can be told what to draft."""

    right: float | None = None  # the share of tokens that are drafted right; None: as the head computes
    answers: Mapping[tuple[int, ...], Sequence[int]] = {}  # by prompt: the whole text that the target will decode

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fed_features: list[tuple[DraftSequence, Features]] = []
        self.drafts: list[list[list[int]]] = []  # by step, what it drafted: sequences × k
        self.dice = random.Random(5)
        self._further = 0

    def feed(self, sequence: DraftSequence, features: Features) -> None:
        self.fed_features.append((sequence, features))
        super().feed(sequence, features)

    def note_drafted(self, sequences: Sequence[DraftSequence], drafted: mx.array) -> None:
        self.drafts.append(drafted.tolist())

    def catch_up(self, drafting: Sequence[int]) -> mx.array:
        logits = super().catch_up(drafting)
        self._further = 0
        return self._told(logits)

    def go_on(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        logits = super().go_on(tokens, widths)
        self._further += 1
        return self._told(logits)

    def _told(self, logits: mx.array) -> mx.array:
        if self.right is None:
            return logits
        chosen = []
        for sequence in self.sequences:
            whole = next(
                text for prompt, text in self.answers.items() if tuple(sequence.tokens[: len(prompt)]) == prompt
            )
            at = min(len(sequence.tokens) + self._further, len(whole) - 1)
            wrong = self.dice.random() >= self.right
            chosen.append((whole[at] + wrong) % self.vocabulary)
        ids = mx.array(chosen)[:, None]
        return mx.where(mx.arange(logits.shape[-1]) == ids, 50.0, -50.0) + 0 * logits


def check_fed(models: LoadedModels, head: RiggedHead, *, whole: bool = True, tolerance: float = TOLERANCE) -> None:
    """Compares all hidden states that a head was fed with those of a separate forward over each text. Each position
    must have come once and in order; if `whole`, from the first to the last but one. `tolerance`: relative to the
    largest number."""
    by_sequence: dict[int, tuple[DraftSequence, list[Features]]] = {}
    for sequence, features in head.fed_features:
        by_sequence.setdefault(id(sequence), (sequence, []))[1].append(features)
    assert by_sequence
    for sequence, parts in by_sequence.values():
        at = 0 if whole else parts[0].start
        states = last_states(models.target, sequence.tokens)
        largest = float(mx.abs(states).max().item())
        for start, positions, fed, row, first in parts:
            assert start == at, f"position {start} came after {at - 1}"
            got, at = fed[row, first : first + positions], start + positions
            apart = float(mx.abs(got - states[start:at]).max().item())
            assert apart <= tolerance * largest, f"positions {start} to {at} differ by {apart}"


def last_states(target: Any, tokens: Sequence[int]) -> mx.array:
    """Returns the target's last hidden states of a text, tokens × size, by mlx-lm's own forward."""
    body = getattr(target, "language_model", target).model
    return body(mx.array([list(tokens)]))[0]
