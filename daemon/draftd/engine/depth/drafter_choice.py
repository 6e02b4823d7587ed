"""Chooses between a draft model and a draft head for texts whose plans allow both.

Two drafters in one step cost the time of both, so the choice is for a batch: each text its own best drafter, or one for
all, whichever gives the most expected tokens per second at its best depth. It is made again every few steps, and when
the batch changes.

Acceptance and costs of both must be known. A drafter that may be the faster one, as far as its few drafts tell, is
tried for some steps with the texts that it has at hand; from time to time any other is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draftd.core import GRAMMAR, PEER, PROMPT_LOOKUP, DrafterName
from draftd.engine.depth.acceptance_rates import Acceptance
from draftd.engine.depth.costs import Batch, StepCosts
from draftd.engine.depth.explorer import WORTH
from draftd.engine.drafters.base import Drafter
from draftd.engine.sequence import DecodeSequence

WEIGHTLESS = (GRAMMAR, PROMPT_LOOKUP)
COST_NOTHING = (*WEIGHTLESS, PEER)
LAG = 16  # tokens that a drafter may lag and still catch up within a step

_PREFILL_SHARE = 1 / 64  # of a plain step: a drafter's time for a prompt token, if unmeasured
_STEPS = 12  # between two choices
_TRIAL = 4  # steps of a trial
_PERIOD = 300  # steps after which a drafter is tried again that is not expected to be the faster one
_STAYS = 0.98  # a batch keeps its drafters if they give at least this share of the best rate
_HORIZON = 128  # tokens within which taking in a text must pay off


class DraftingModel(NamedTuple):
    """A drafter with weights for a sequence. `behind`: the tokens that it lags; None if it does not know the text. It
    needs `prefill_seconds` to take them in."""

    name: DrafterName
    behind: int | None
    prefill_seconds: float

    @property
    def ready(self) -> bool:
        """Whether it can draft in the next step."""
        return self.behind is not None and self.behind <= LAG


Choice = list[DraftingModel | None]
"""The drafter of each sequence of a batch; None for those whose plan has none."""


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
        self._ids: list[int] = []  # of the sequences that the last choice was for
        self._left = 0  # steps until the next choice
        self._since_trial = 0  # steps

    def choose(
        self, sequences: Sequence[DecodeSequence], drafters: Mapping[DrafterName, Drafter], batch: Batch, most: int
    ) -> Choice:
        """Returns the drafters with weights for the next step of sequences that each draft up to `most` tokens."""
        models = [self._models(sequence, drafters) for sequence in sequences]
        if all(len(own) < 2 for own in models):
            return [next(iter(own.values()), None) for own in models]
        ids = [sequence.id for sequence in sequences]
        chosen: Choice = [own.get(one.model_drafter or "") for one, own in zip(sequences, models, strict=True)]
        complete = not any(own and model is None for own, model in zip(models, chosen, strict=True))
        if not complete or self._left <= 0 or ids != self._ids:
            options = _Options(self._costs, self._acceptance, sequences, models, batch, most)
            chosen, self._ids = self._choose(options, chosen if complete else None), ids
            for sequence, model in zip(sequences, chosen, strict=True):
                sequence.model_drafter = None if model is None else model.name
        self._left -= 1
        self._since_trial += 1
        return chosen

    def prefill_seconds(self, kind: DrafterName) -> float:
        """Returns a drafter's seconds per prompt token."""
        return self._costs.prices.prefill.get(kind, self._costs.plain(Batch(1)) * _PREFILL_SHARE)

    def _models(
        self, sequence: DecodeSequence, drafters: Mapping[DrafterName, Drafter]
    ) -> dict[DrafterName, DraftingModel]:
        models = dict[DrafterName, DraftingModel]()
        for kind in sorted(draft_models(sequence)):
            if kind in drafters and not drafters[kind].misses(sequence):
                behind = drafters[kind].behind(sequence)
                tokens = len(sequence.tokens) if behind is None else behind
                models[kind] = DraftingModel(kind, behind, tokens * self.prefill_seconds(kind))
        return models

    def _choose(self, options: _Options, present: Choice | None) -> Choice:
        best = max(options.choices(), key=options.rate)
        if present is not None and options.rate(present) >= _STAYS * options.rate(best):
            best = present
        self._left, none = _STEPS, Choice([None] * len(best))
        for kind in options.kinds:
            tried = options.with_trial(kind, best)
            hopeful = options.rate(tried, hoped=kind) > WORTH * options.rate(best)
            drafts = options.rate(tried) > options.rate(none)  # otherwise it would not take in the texts
            if tried != best and drafts and (hopeful or self._since_trial >= _PERIOD):
                self._left, self._since_trial = _TRIAL, 0
                return tried
        return best


@dataclass(slots=True)
class _Options:
    """The drafters that a batch may use: `models` by name for each sequence."""

    costs: StepCosts
    acceptance: Acceptance
    sequences: Sequence[DecodeSequence]
    models: Sequence[Mapping[DrafterName, DraftingModel]]
    batch: Batch
    most: int

    @property
    def kinds(self) -> list[DrafterName]:
        return sorted({kind for own in self.models for kind in own})

    def choices(self) -> Iterator[Choice]:
        """Yields one drafter for all sequences that may use it, for each drafter; then each sequence's own best."""
        for kind in self.kinds:
            yield [own.get(kind) or next(iter(own.values()), None) for own in self.models]
        seconds = {kind: self.costs.by_depth(kind, self.batch, self.most) for kind in self.kinds}
        yield [
            max(
                own.values(),
                key=lambda model: _rate(seconds[model.name], self._tokens(i, model), model.prefill_seconds),
                default=None,
            )
            for i, own in enumerate(self.models)
        ]

    def with_trial(self, kind: DrafterName, choice: Choice) -> Choice:
        """Returns the choice with the drafter for all sequences whose text is new, or that it can take in within a
        plain step."""
        most = self.costs.plain(self.batch)
        return [
            own[kind] if kind in own and (sequence.emitted <= 1 or own[kind].prefill_seconds <= most) else model
            for sequence, own, model in zip(self.sequences, self.models, choice, strict=True)
        ]

    def rate(self, choice: Choice, hoped: DrafterName | None = None) -> float:
        """Returns the expected tokens per second. `hoped`: a drafter whose acceptance is taken to be as high as its few
        drafts allow."""
        models = [model for model in choice if model is not None]
        seconds = self.costs.together({model.name for model in models}, self.batch, self.most)
        tokens = [0.0] * len(seconds)
        for i, model in enumerate(choice):
            own = [1.0] if model is None else self._tokens(i, model, hoped=model.name == hoped)
            tokens = [total + own[min(depth, len(own) - 1)] for depth, total in enumerate(tokens)]
        return _rate(seconds, tokens, sum(model.prefill_seconds for model in models) / len(choice))

    def _tokens(self, i: int, model: DraftingModel, *, hoped: bool = False) -> Sequence[float]:
        sequence = self.sequences[i]
        most = min(sequence.depth, self.most)
        expected = self.acceptance.hoped_tokens if hoped else self.acceptance.expected_tokens
        return expected(sequence, model.name, most)


def _rate(seconds: Sequence[float], tokens: Sequence[float], prefill_seconds: float) -> float:
    """Returns the tokens per second at the best depth, with the time to take in a text spread over the tokens to
    come."""
    each = min(step / count for step, count in zip(seconds, tokens, strict=False))
    return 1 / (each + prefill_seconds / _HORIZON)
