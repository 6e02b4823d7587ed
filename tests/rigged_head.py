"""Draft heads for tests: one that compares what it is fed, and drafts what it is told to."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from draftd.engine.cache.model_layers import record_states
from draftd.engine.drafters.base import DraftSequence
from draftd.engine.drafters.block import BlockDrafter
from draftd.engine.drafters.chained import ChainedDrafter
from draftd.engine.drafters.draft_head import DraftHead
from draftd.engine.features import Features
from draftd.engine.pair import LoadedModels
from draftd.models.chained import ChainedHeads
from draftd.models.dflash import DFlashHead
from draftd.models.eagle import EagleHead
from draftd.models.head_families import DFLASH, EAGLE, MTP
from draftd.models.head_weights import Head
from draftd.models.mtp import MTPHead
from draftd.models.target_parts import TargetParts

CHAINED, WINDOWED = "chained", "windowed"  # kinds of heads that are no family's: the second is a DFlash head
TOLERANCE = 1e-5
TOLERANCE_OF_STATES = 3e-4  # random recurrent layers enlarge the rounding of other slices


def random_head(target: Any, kind: str = MTP, seed: int = 7) -> Head:
    """Returns a draft head of random weights over a target, which records the states that the head takes from now on.
    `kind`: of its family, CHAINED or WINDOWED. Heads of EAGLE-3 and DFlash take the inputs of three layers of a Llama
    model."""
    mx.random.seed(seed)
    parts = TargetParts.of(target)
    assert parts is not None
    if kind == MTP:
        head: Head = MTPHead(parts)
    elif kind == CHAINED:
        head = ChainedHeads(parts, 3)
    else:
        kinds = ["full_attention", "sliding_attention"] if kind == WINDOWED else ["full_attention"] * 3
        layer = {**vars(parts.args), "num_hidden_layers": len(kinds), "layer_types": kinds, "sliding_window": 24}
        taps = [1, len(parts.layers) // 2, len(parts.layers)]
        if kind == EAGLE.kind:
            config = {"transformer_layer_config": layer, "eagle_aux_hidden_state_layer_ids": taps}
            head = EagleHead(parts, config, stored=["layers.0.hidden_norm.weight"])
        else:
            config = {**layer, "aux_hidden_state_layer_ids": taps, "block_size": 5, "mask_token_id": 3}
            head = DFlashHead(parts, config)
    mx.eval(head.parameters())
    record_states(target, [parts.place(tap) for tap in head.form.taps])
    return head


def with_random_head(models: LoadedModels, kind: str = MTP) -> LoadedModels:
    """Returns the models with a draft head of random weights over their target."""
    return replace(models, head=random_head(models.target, kind))


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

    @property
    def taps(self) -> Sequence[int]:
        return self._head.form.taps

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


class RiggedBlock(RiggedHead, BlockDrafter):
    """The same of a head that drafts blocks."""


class RiggedChain(RiggedHead, ChainedDrafter):
    """The same of chained heads."""


def rigged(kind: str) -> type[RiggedHead]:
    """Returns the rigged drafter for heads of this kind."""
    return {DFLASH.kind: RiggedBlock, WINDOWED: RiggedBlock, CHAINED: RiggedChain}.get(kind, RiggedHead)


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
        states = hidden_states(models.target, sequence.tokens, head.taps)
        largest = float(mx.abs(states).max().item())
        for start, positions, fed, row, first in parts:
            assert start == at, f"position {start} came after {at - 1}"
            got, at = fed[row, first : first + positions], start + positions
            apart = float(mx.abs(got - states[start:at]).max().item())
            assert apart <= tolerance * largest, f"positions {start} to {at} differ by {apart}"


def hidden_states(target: Any, tokens: Sequence[int], taps: Sequence[int]) -> mx.array:
    """Returns the target's last hidden states of a text, tokens × size, by mlx-lm's own forward; with `taps` the inputs
    of these layers of a Llama model, side by side."""
    body = getattr(target, "language_model", target).model
    if not taps:
        return body(mx.array([list(tokens)]))[0]
    inputs = [body.embed_tokens(mx.array([list(tokens)]))]
    for layer in body.layers:
        inputs.append(layer(inputs[-1], "causal", None))
    return mx.concatenate([inputs[tap] for tap in taps], axis=-1)[0]
