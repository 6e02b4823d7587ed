"""Chooses between a draft model and a draft head for a text whose plan allows both: the one with more expected tokens
per second at its best depth.

Acceptance and costs of both must be known, so one that has hardly drafted goes first, and now and then a text goes to
the one that was not chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from draftd.core import GRAMMAR, PEER, PROMPT_LOOKUP, DrafterName
from draftd.engine.depth.acceptance_rates import Acceptance
from draftd.engine.depth.costs import Batch, StepCosts
from draftd.engine.drafters.base import Drafter
from draftd.engine.sequence import DecodeSequence

WEIGHTLESS = (GRAMMAR, PROMPT_LOOKUP)
COST_NOTHING = (*WEIGHTLESS, PEER)

_PREFILL_SHARE = 1 / 64  # of a plain step: a drafter's time for a prompt token, if unmeasured
_TOKENS = 32  # of a text between two choices
_HARDLY = 24.0  # recent drafts: a drafter with fewer goes first
_TURNS = 24  # choices, of which one goes to a drafter that was not chosen
_STAYS = 0.98  # a text keeps its drafter if that gives at least this share of the best rate
_HORIZON = 128  # tokens within which taking in a text must pay off


class DraftingModel(NamedTuple):
    """A drafter with weights for a sequence. `behind`: the tokens that it lags; None if it does not know the text. It
    needs `prefill_seconds` to take them in."""

    name: DrafterName
    behind: int | None
    prefill_seconds: float


def draft_models(sequence: DecodeSequence) -> list[DrafterName]:
    """Returns the drafters of the sequence's plan that need weights."""
    return [kind for kind in sequence.drafters if kind not in COST_NOTHING]


def draft_model(sequence: DecodeSequence) -> DrafterName | None:
    """Returns the drafter with weights that was chosen for the sequence; None if its plan has none."""
    return sequence.model_drafter or min(draft_models(sequence), default=None)


class DrafterChoice:
    """Engine thread only."""

    def __init__(self, costs: StepCosts, acceptance: Acceptance) -> None:
        self._costs, self._acceptance = costs, acceptance
        self._turn = 0

    def choose(
        self, sequence: DecodeSequence, drafters: Mapping[DrafterName, Drafter], batch: Batch, most: int
    ) -> DraftingModel | None:
        """Returns the drafter with weights for a sequence that drafts up to `most` tokens; None if there is none."""
        models = {
            kind: self._model(sequence, kind, drafters[kind].behind(sequence))
            for kind in sorted(draft_models(sequence))
            if kind in drafters and not drafters[kind].misses(sequence)
        }
        chosen = models.get(sequence.model_drafter or "")
        if len(models) < 2:
            return next(iter(models.values()), None)
        if chosen is None or sequence.emitted >= sequence.chosen_at + _TOKENS:
            chosen = self._best(sequence, models, batch, most)
            sequence.model_drafter, sequence.chosen_at = chosen.name, sequence.emitted
        return chosen

    def prefill_seconds(self, kind: DrafterName) -> float:
        """Returns a drafter's seconds per prompt token."""
        return self._costs.prices.prefill.get(kind, self._costs.plain(Batch(1)) * _PREFILL_SHARE)

    def _model(self, sequence: DecodeSequence, kind: DrafterName, behind: int | None) -> DraftingModel:
        tokens = len(sequence.tokens) if behind is None else behind
        return DraftingModel(kind, behind, tokens * self.prefill_seconds(kind))

    def _best(
        self, sequence: DecodeSequence, models: Mapping[DrafterName, DraftingModel], batch: Batch, most: int
    ) -> DraftingModel:
        rates = {kind: self._rate(sequence, model, batch, most) for kind, model in models.items()}
        best = max(models, key=lambda kind: rates[kind])
        chosen = sequence.model_drafter
        if chosen in rates and rates[chosen] >= _STAYS * rates[best]:
            best = chosen
        untried = [kind for kind in models if self._drafts(sequence, kind) < _HARDLY]
        if untried and best not in untried:
            return models[untried[0]]
        self._turn += 1
        others = [kind for kind in models if kind != best]
        return models[others[0] if self._turn % _TURNS == 0 else best]

    def _drafts(self, sequence: DecodeSequence, kind: DrafterName) -> float:
        return self._acceptance.drafted_count(sequence.evidence_key(kind), 1)

    def _rate(self, sequence: DecodeSequence, model: DraftingModel, batch: Batch, most: int) -> float:
        """Returns the expected tokens per second, with the time to take in the text spread over the tokens to come."""
        tokens = self._acceptance.expected_tokens(sequence, model.name, most)
        seconds = self._costs.by_depth(model.name, batch, most)
        each = min(step / count for step, count in zip(seconds, tokens, strict=False))
        return 1 / (each + model.prefill_seconds / _HORIZON)
