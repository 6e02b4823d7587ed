"""Makes an engine's target exact, and begins its measurement, with the sizes that the limits allow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

from draftd.engine.exactness.measure import ExactLayers, make_exact, measure
from draftd.engine.exactness.operations import StepSizes
from draftd.engine.limits import EXACT_SLICE, Limits
from draftd.engine.pair import LoadedModels
from draftd.exactness import Exactness
from draftd.models.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

PromptSource = Callable[[Tokenizer], Sequence[Sequence[int]]]
"""Returns the prompts that exactness is measured over, as token ids."""

_BY_TOKEN = "engine.exact computes each token of each sequence individually: this model's layers cannot be called apart"


def exact_models(
    models: LoadedModels, limits: Limits, report: Callable[[str], None]
) -> tuple[LoadedModels, ExactLayers | None]:
    """Makes the target exact if the limits ask for it. Returns the models, and what makes the target exact."""
    if not limits.exact:
        return models, None
    exact = make_exact(models.target, models.info.vocab_size, _sizes(limits), EXACT_SLICE, report)
    _log.info(
        "engine.exact: %s", _BY_TOKEN if exact.by_token else "operations that differ are computed in smaller calls"
    )
    if exact.by_token:
        models = replace(models, info=replace(models.info, batched=False, batched_reason=_BY_TOKEN))
    return models, exact


def measurement(
    models: LoadedModels, limits: Limits, exactness_prompts: PromptSource | None, exact: ExactLayers | None
) -> Callable[[Any], Generator[str, None, Exactness]] | None:
    """Returns a function that begins to measure a model's exactness; None if nothing is to be measured."""
    if exactness_prompts is None or models.ranks is not None:
        return None
    tokenizer, vocabulary = models.tokenizer, models.info.vocab_size

    def begin(model: Any) -> Generator[str, None, Exactness]:
        return measure(model, vocabulary, exactness_prompts(tokenizer), _sizes(limits), EXACT_SLICE, exact=exact)

    return begin


def _sizes(limits: Limits) -> StepSizes:
    return StepSizes.of(limits.max_draft_tokens, limits.max_batch, (EXACT_SLICE,))
