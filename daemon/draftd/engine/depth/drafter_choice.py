"""Chooses between a draft model and a draft head for texts whose plans allow both.

Two drafters in one step cost the time of both, so the choice is for a batch: each text its own best drafter, or one for
all, whichever gives the most expected tokens per second at its best depth. It is made again every few steps, and when
the batch changes.

Acceptance and costs of both must be known. A drafter that may be the faster one, as far as its few drafts tell, is
tried for some steps, with new texts and with those that it can take in at once; from time to time any other is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draftd.core import GRAMMAR, PEER, PROMPT_LOOKUP, DrafterName
from draftd.engine.depth.acceptance_rates import Acceptance, AnswerLengths
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
_PREFILLING_STEP = 1 / 16  # what counts of a step in which a chosen drafter still prefills
_PERIOD = 300  # steps after which a drafter is tried again that is not expected to be the faster one
_STAYS = 0.98  # a batch keeps its drafters if they give at least this share of the best rate


class DraftingModel(NamedTuple):
    """A drafter with weights for a sequence. `behind`: the tokens that it lags; None if it does not know the text. It
    needs `prefill_seconds` to take them in, and drafts up to `longest` tokens."""

    name: DrafterName
    behind: int | None
    prefill_seconds: float
    longest: int = 1 << 30

    @property
    def ready(self) -> bool:
        """Whether it can draft in the next step."""
        return self.behind is not None and self.behind <= LAG


Choice = list[DraftingModel | None]
"""The drafter of each sequence of a batch; None for those whose plan has none that is loaded and has their text."""


def draft_models(sequence: DecodeSequence) -> list[DrafterName]:
    """Returns the drafters of the sequence's plan that need weights."""
    return [kind for kind in sequence.drafters if kind not in COST_NOTHING]


def draft_model(sequence: DecodeSequence) -> DrafterName | None:
    """Returns the drafter with weights that was chosen for the sequence, or else any of its plan's; None if that has
    none."""
    return sequence.model_drafter or min(draft_models(sequence), default=None)


class DrafterChoice:
    """Engine thread only."""

    def __init__(self, costs: StepCosts, acceptance: Acceptance, lengths: AnswerLengths) -> None:
        self._costs, self._acceptance, self._lengths = costs, acceptance, lengths
        self._ids: set[int] = set()  # of the sequences that the last choice was for
        self._left = 0.0  # steps until the next choice
        self._since_trial = 0  # steps

    def choose(
        self, sequences: Sequence[DecodeSequence], drafters: Mapping[DrafterName, Drafter], batch: Batch, most: int
    ) -> Choice:
        """Returns the drafters with weights for the next step of sequences that each draft up to `most` tokens."""
        models = [self._models(sequence, drafters) for sequence in sequences]
        if all(len(own) < 2 for own in models):
            chosen: Choice = [next(iter(own.values()), None) for own in models]
        else:
            chosen = [own.get(one.model_drafter or "") for one, own in zip(sequences, models, strict=True)]
            complete = not any(own and model is None for own, model in zip(models, chosen, strict=True))
            ids = {sequence.id for sequence in sequences}
            if not complete or self._left <= 0 or ids != self._ids:
                options = _Options(self._costs, self._acceptance, self._lengths, sequences, models, batch, most)
                chosen, self._ids = self._choose(options, chosen if complete else None), ids
        for sequence, model in zip(sequences, chosen, strict=True):
            sequence.model_drafter = None if model is None else model.name
        self._left -= 1 if all(model is None or model.ready for model in chosen) else _PREFILLING_STEP
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
                seconds = tokens * self.prefill_seconds(kind)
                models[kind] = DraftingModel(kind, behind, seconds, drafters[kind].longest)
        return models

    def _choose(self, options: _Options, present: Choice | None) -> Choice:
        best = max(options.choices(), key=options.rate)
        if present is not None and options.rate(present) >= _STAYS * options.rate(best):
            best = present
        self._left, none = _STEPS, Choice([None] * len(best))
        for kind in options.kinds:
            tried = options.with_trial(kind, best)
            if tried == best:
                continue
            hopeful, due = options.rate(tried, hoped=kind) > WORTH * options.rate(best), self._since_trial >= _PERIOD
            pays = options.rate(tried) > options.rate(none)  # otherwise it would not draft
            if due:
                self._since_trial = 0
            if due and not pays:
                self._fade_evidence(kind, tried, options.sequences)
            elif pays and (hopeful or due):
                self._left = _TRIAL
                return tried
        return best

    def _fade_evidence(self, kind: DrafterName, choice: Choice, sequences: Sequence[DecodeSequence]) -> None:
        """Halves the evidence against a drafter that would not even draft in a trial."""
        keys = {
            s.evidence_key(kind) for s, model in zip(sequences, choice, strict=True) if model and model.name == kind
        }
        for key in keys:
            self._acceptance.fade(key, 0.5)


@dataclass(slots=True)
class _Options:
    """The drafters that a batch may use: `models` by name for each sequence."""

    costs: StepCosts
    acceptance: Acceptance
    lengths: AnswerLengths
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
                key=lambda model: _rate(seconds[model.name], self._tokens(i, model), self._prefill_share(i, model)),
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
        seconds = self.costs.together({model.name for model in choice if model is not None}, self.batch, self.most)
        tokens, prefill = [0.0] * len(seconds), 0.0
        for i, model in enumerate(choice):
            own = [1.0] if model is None else self._tokens(i, model, hoped=model.name == hoped)
            tokens = [total + own[min(depth, len(own) - 1)] for depth, total in enumerate(tokens)]
            prefill += 0.0 if model is None else self._prefill_share(i, model)
        return _rate(seconds, tokens, prefill / len(choice))

    def _tokens(self, i: int, model: DraftingModel, *, hoped: bool = False) -> Sequence[float]:
        sequence = self.sequences[i]
        most = min(sequence.depth, self.most, model.longest)
        expected = self.acceptance.hoped_tokens if hoped else self.acceptance.expected_tokens
        return expected(sequence, model.name, most)

    def _prefill_share(self, i: int, model: DraftingModel) -> float:
        """Returns the drafter's prefill seconds for each token that the sequence may still emit."""
        return model.prefill_seconds / max(1.0, self.lengths.horizon(self.sequences[i]))


def _rate(seconds: Sequence[float], tokens: Sequence[float], prefill: float) -> float:
    """Returns the tokens per second at the best depth. `prefill`: a drafter's prefill seconds for each token."""
    return 1 / (min(step / count for step, count in zip(seconds, tokens, strict=False)) + prefill)
